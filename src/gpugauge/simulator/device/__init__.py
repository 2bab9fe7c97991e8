"""Simulated GPUs as functions of time."""
