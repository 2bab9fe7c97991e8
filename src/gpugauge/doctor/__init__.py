"""`gpugauge doctor`: the daemon's question asked once, in a terminal. A table of checks; each returns a finding."""

DEFAULT_URL = "http://127.0.0.1:10478/metrics"  # of the running daemon
