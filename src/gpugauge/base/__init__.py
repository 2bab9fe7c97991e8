"""Small modules without a place of their own: text, durations, log lines, files, processes."""
