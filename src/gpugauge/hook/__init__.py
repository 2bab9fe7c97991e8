"""Tells the gpugauge daemon of this machine how the training in this process goes.

`gpugauge run -- python train.py` loads it without a change to the program; `gpugauge.hook.watch()` is the one line for
those who prefer it. It starts no thread, never initialises CUDA, never synchronises, and no error of its own reaches
the program. `GPUGAUGE_HOOK=0` in the environment switches it off.
"""

from __future__ import annotations

from gpugauge.hook import arming

__all__ = ["watch"]


def watch() -> None:
    """Watch this process and say so to the daemon at once, or as soon as the program imports torch.

    Without the call, under `gpugauge run`, the first optimizer step or batch does it. Calling it again is harmless.
    """
    arming.arm(announce=True)
