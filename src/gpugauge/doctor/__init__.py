"""`gpugauge doctor`: checks of the machine and of one process, printed in a terminal. Each check returns a finding."""

DEFAULT_URL = "http://127.0.0.1:10478"  # of the running daemon
