"""The hook: reports the training in this process to the gpugauge daemon of the machine; see docs/hook.md. `gpugauge run
-- python train.py` loads it without a change to the program, `gpugauge.hook.watch()` from the program.
"""

from __future__ import annotations

from gpugauge.hook import arming
from gpugauge.hook.arming import current_observer

TYPE_CHECKING = False  # the module typing is not loaded for this
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from gpugauge.hook.watching import Watch

    Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = ["batches", "flops", "phase", "step", "tick", "waiting", "watch"]


def watch(verbose: bool = False) -> Watch:
    """Watch this process, and open its session at once, or as soon as the program imports torch. Idempotent. Return an
    object that is true if a daemon was found. `verbose` prints one line about that on stderr.
    """
    from gpugauge.hook.watching import Watch  # noqa: PLC0415 - not loaded under `gpugauge run`

    arming.arm(announce=True)
    found = Watch()
    if verbose:
        found.print()
    return found


def tick(samples: int | None = None, tokens: int | None = None) -> None:
    """Count one training step, with its samples and tokens if given. From the first call on only these calls count."""
    observer = current_observer()
    if observer is not None:
        observer.tick(samples, tokens)


step = tick


def flops(per_step: float) -> None:
    """State the model FLOPs of a training step, forward and backward, from the next step on; not positive: ignored."""
    observer = current_observer()
    if observer is not None:
        observer.state.state_flops(per_step)


def batches(iterable: Any) -> Any:
    """Return the iterable with its batches counted, and the waits for them: for loaders that are not torch's. It can be
    iterated as often as the iterable, has its length and attributes, and raises what it raises.
    """
    observer = current_observer()
    return iterable if observer is None else observer.declare(iterable)


def waiting() -> phase:
    """Return a context manager for a wait for data, such as `queue.get()`. The same as phase("load")."""
    return phase("load")


class phase:  # noqa: N801 - used as a statement: with phase("eval")
    """Report a phase of the program: train, eval, checkpoint, generate, load, compile; another name counts as other. A
    context manager, or a decorator of functions. Has effect on the training thread only.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._entered: list[int | None] = []

    def __enter__(self) -> None:
        observer = current_observer()
        self._entered.append(None if observer is None else observer.enter_phase(str(self._name)))

    def __exit__(self, *_: object) -> None:
        observer, entered = current_observer(), self._entered.pop() if self._entered else None
        if observer is not None and entered is not None:
            observer.leave_phase(entered)

    def __call__(self, function: Function) -> Function:
        """Return a wrapper of the function whose time counts as the phase; also of coroutines and generators."""
        from gpugauge.hook.watching import within_phase  # noqa: PLC0415 - not loaded under `gpugauge run`

        wrapper: Function = within_phase(function, lambda: phase(self._name))
        return wrapper
