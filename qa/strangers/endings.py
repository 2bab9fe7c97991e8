"""Ways to end. `text` is the last part of a program; the reasons are those of gpugauge_trainings_ended_total."""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True)
class Ending:
    """A part of a program, and what its end should be: the exit code, and one of the reasons."""

    name: str
    text: str
    code: int = 0
    reasons: tuple[str, ...] = ("finished",)
    weight: float = 1.0

    def source(self) -> str:
        """Return the text, after the record of the planned end."""
        return f"truth.end({', '.join(map(repr, self.reasons))})\n{self.text.strip()}"


ERROR = ("error",)
KILLED = ("killed",)
TERMINATED = "os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(1)"
# A timer outlives exec, its handler does not.
ANOTHER = (
    "signal.setitimer(signal.ITIMER_REAL, 0)\nsys.stdout.flush()\n"
    "os.execv(sys.executable, [sys.executable, 'second.py'])"
)

ENDINGS = (
    Ending("normal", "print('done', n)", weight=6),
    Ending("exit 0", "sys.exit(0)"),
    Ending("exit none", "sys.exit()", weight=0.5),
    Ending("exit 3", "sys.exit(3)", 3, ERROR),
    Ending("exit text", "sys.exit('no such run')", 1, ERROR),
    Ending("SystemExit", "raise SystemExit(7)", 7, ERROR),
    Ending("exception", "raise ValueError('loss is NaN')", 1, ERROR),
    Ending("assertion", "assert n < 0, 'diverged'", 1, ERROR, 0.5),
    Ending("os._exit 0", "sys.stdout.flush()\nos._exit(0)", 0),
    Ending("os._exit 3", "sys.stdout.flush()\nos._exit(3)", 3, ERROR),
    Ending("killed", "os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, KILLED),
    Ending("rest, killed", "time.sleep(6.5)\nos.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, KILLED),
    Ending("rest", "time.sleep(6.5)\nprint('rested')"),
    Ending("terminated", TERMINATED, -signal.SIGTERM, KILLED),
    Ending("interrupted", "raise KeyboardInterrupt", -signal.SIGINT, ("interrupted",)),
    Ending("SIGINT", "os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(1)", -signal.SIGINT, ("interrupted",)),
    Ending("abort", "os.abort()", -signal.SIGABRT, KILLED, 0.3),
    Ending("segmentation fault", "import ctypes\nctypes.string_at(0)", -signal.SIGSEGV, KILLED, 0.3),
    Ending("out of memory", "torch.empty(1 << 50)", 1, ("out_of_memory",)),
    Ending("MemoryError", "bytearray(1 << 60)", 1, ("out_of_memory",), 0.5),
    Ending("stopped at exit", "import atexit\natexit.register(time.sleep, 1.5)\nprint('bye')"),
    Ending("exec", ANOTHER, 0, ("finished",)),
)  # fmt: skip
