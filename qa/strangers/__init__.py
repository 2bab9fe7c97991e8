"""Drawn training programs that measure themselves, and the comparison with what the daemon reports about them."""
