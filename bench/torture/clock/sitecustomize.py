"""Wall clock of a process under torture: what CLOCK_REALTIME says, and the seconds in the file TORTURE_CLOCK more."""

import os
import time
from pathlib import Path

_file = Path(os.environ["TORTURE_CLOCK"])
_true = time.time


def _time() -> float:
    try:
        return _true() + float(_file.read_text() or 0)
    except OSError:
        return _true()


time.time = _time
time.time_ns = lambda: round(_time() * 1e9)
