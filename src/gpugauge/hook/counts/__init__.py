"""Counts, phases and waits of the training thread, and the shared record."""
