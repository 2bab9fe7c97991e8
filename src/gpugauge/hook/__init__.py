"""The hook: reports the training in this process to the gpugauge daemon of the machine.

`gpugauge run -- python train.py` loads it without a change to the program; `gpugauge.hook.watch()` loads it from the
program. It starts no thread, never initialises CUDA, never synchronises, and no error of the hook reaches the program.
`GPUGAUGE_HOOK=0` in the environment switches it off.
"""

from __future__ import annotations

import sys

from gpugauge.hook import arming

TYPE_CHECKING = False  # the module typing is not loaded for this
if TYPE_CHECKING:
    from gpugauge.hook.observer import Observer

__all__ = ["phase", "tick", "watch"]


def watch() -> None:
    """Watch this process and open its session at once, or as soon as the program imports torch.

    Without this call, under `gpugauge run`, the first optimizer step or batch opens the session. Idempotent.
    """
    arming.arm(announce=True)


def tick() -> None:
    """Count one training step, for loops whose optimizer reports none. From the first call on only ticks count.

    Does nothing in a process that is not watched.
    """
    if observer := _observer():
        observer.tick()


class phase:  # noqa: N801 - used as a statement: with phase("eval")
    """Report a phase of the program: train, eval, checkpoint, generate, load, compile; another name counts as other.

    Has effect on the training thread only. Does nothing in a process that is not watched.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._entered: Observer | None = None

    def __enter__(self) -> None:
        observer = _observer()
        if observer is not None and observer.enter_named_phase(self._name):
            self._entered = observer

    def __exit__(self, *_: object) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.leave_phase()


def _observer() -> Observer | None:
    module = sys.modules.get("gpugauge.hook.install")
    observer: Observer | None = getattr(module, "observer", None)
    return observer
