"""The clock of the hook, taken at the start of the interpreter: programs replace the functions of `time` in tests."""

from __future__ import annotations

import time

NS_PER_SECOND = 1_000_000_000
CLOCKS = (time.perf_counter_ns, time.time)  # monotonic nanoseconds, and Unix time
