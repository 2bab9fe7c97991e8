"""The wall clock of a process under test: CLOCK_REALTIME plus the seconds in the file TORTURE_CLOCK."""

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
