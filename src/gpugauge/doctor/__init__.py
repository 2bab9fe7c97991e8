"""`gpugauge doctor`: checks of the machine and of one process, printed in a terminal. Each check returns a finding."""

DEFAULT_URL = "http://127.0.0.1:10478/metrics"  # of the running daemon
