"""Tells the gpugauge daemon of this machine how the training in this process goes.

`gpugauge run -- python train.py` loads it without a change to the program; `gpugauge.hook.watch()` is the one line for
those who prefer it. It starts no thread, never initialises CUDA, never synchronises, and no error of its own reaches
the program. `GPUGAUGE_HOOK=0` in the environment switches it off.
"""

from __future__ import annotations

import sys

from gpugauge.hook import arming

TYPE_CHECKING = False  # the module typing is not loaded for this
if TYPE_CHECKING:
    from gpugauge.hook.observer import Observer

__all__ = ["phase", "tick", "watch"]


def watch() -> None:
    """Watch this process and say so to the daemon at once, or as soon as the program imports torch.

    Without the call, under `gpugauge run`, the first optimizer step or batch does it. Calling it again is harmless.
    """
    arming.arm(announce=True)


def tick() -> None:
    """Count one training step, for loops whose optimizer reports none; from the first call on nothing else counts.

    Does nothing in a process that is not watched.
    """
    if observer := _observer():
        observer.tick()


class phase:  # noqa: N801 - used as a statement: with phase("eval")
    """Say what the program does meanwhile: train, eval, checkpoint, generate, load, compile, or anything else.

    Counts on the thread that trains; does nothing in a process that is not watched.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._entered: Observer | None = None

    def __enter__(self) -> None:
        observer = _observer()
        if observer is not None and observer.enter(self._name):
            self._entered = observer

    def __exit__(self, *_: object) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.leave_phase()


def _observer() -> Observer | None:
    module = sys.modules.get("gpugauge.hook.install")
    observer: Observer | None = getattr(module, "observer", None)
    return observer
