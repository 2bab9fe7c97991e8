"""Attacks that a user without rights carries out against the daemon, each in processes of another user and cgroup."""
