"""Modes of torch that cost time in each step while they are on, and calls that cost time when each step makes them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from gpugauge.hook.wrappers import is_compiling, replace

if TYPE_CHECKING:
    from gpugauge.hook.state import TrainingState

ANOMALY_DETECTION = "anomaly_detection"
AUTOCAST = "autocast"
EMPTY_CACHE = "empty_cache"
PROFILER = "profiler"

# By mode, the function that returns whether it is on; those that this version of torch has.
_IS_ON = {
    mode: function
    for mode, function in (
        (ANOMALY_DETECTION, getattr(torch, "is_anomaly_enabled", None)),
        (AUTOCAST, getattr(torch._C, "_is_any_autocast_enabled", None)),  # noqa: SLF001 - for all kinds of devices
        (PROFILER, getattr(getattr(torch, "autograd", None), "_profiler_enabled", None)),
    )
    if function is not None
}
_COMPILERS = ("torch._functorch", "torch._dynamo", "torch._inductor")
_MIN_STEPS = 3  # in which a habit shows
_MIN_SAMPLES = 3


class Modes:
    """Whether each mode was on in at least half of the steps. A mode that is entered in each step can be off between
    the steps, so two things show it: samples at snapshots, and calls that switch it on.
    """

    def __init__(self) -> None:
        self.calls: dict[str, int] = {ANOMALY_DETECTION: 0, AUTOCAST: 0, EMPTY_CACHE: 0}
        self._samples = 0
        self._on = dict.fromkeys(_IS_ON, 0)
        self._since: tuple[int, dict[str, int]] | None = None  # steps and calls at the start of the interval
        self._found: dict[str, str | None] = {}

    def sample(self) -> None:
        """Note which modes are on at this moment."""
        self._samples += 1
        for mode, is_on in _IS_ON.items():
            self._on[mode] += bool(is_on())

    def facts(self, steps: int) -> dict[str, str | None]:
        """Return yes, no or None by mode, over the steps since the last new values. `steps` are those so far."""
        if self._since is None:
            self._since = steps, dict(self.calls)
        before, called = self._since
        if steps - before >= _MIN_STEPS and self._samples >= _MIN_SAMPLES:
            habits = {name: 2 * (count - called[name]) >= steps - before for name, count in self.calls.items()}
            sampled = {mode: 2 * count >= self._samples for mode, count in self._on.items()}
            names, both = habits.keys() | sampled.keys(), habits.keys() & sampled.keys()
            # Samples alone miss what is on within a step only; calls alone miss a function bound before the hook began.
            found = {name: bool(habits.get(name) or sampled.get(name)) for name in names}
            self._found = {n: "yes" if on else "no" if n in both else None for n, on in found.items()}
            self._since, self._samples, self._on = (steps, dict(self.calls)), 0, dict.fromkeys(self._on, 0)
        return self._found


def _compiles() -> bool:
    """Return whether torch.compile has called: it detects anomalies once in each graph that it traces."""
    frame = sys._getframe(3)  # noqa: SLF001 - the caller of torch.set_anomaly_enabled()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("torch.autograd"):
        frame = frame.f_back  # type: ignore[assignment]  # None at the end
    return frame is not None and str(frame.f_globals.get("__name__")).startswith(_COMPILERS)


def count_calls(state: TrainingState) -> None:
    """Count the calls by mode. All ways into anomaly detection call torch.set_anomaly_enabled()."""

    def counted(name: str, function: Callable[..., Any], on: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not is_compiling() and on(args, kwargs):
                state.modes.calls[name] += 1
            return function(*args, **kwargs)

        return wrapper

    def enables(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return (args[0] if args else kwargs.get("enabled")) and not _compiles()

    def trains(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ARG001 - __enter__ has no others
        # A context for evaluation does not count.
        return getattr(args[0], "_enabled", True) and torch.is_grad_enabled()

    replace(getattr(torch, "autocast", None), "__enter__", lambda f: counted(AUTOCAST, f, trains))
    cuda = getattr(torch, "cuda", None)
    replace(torch, "set_anomaly_enabled", lambda f: counted(ANOMALY_DETECTION, f, enables))
    replace(cuda, "empty_cache", lambda f: counted(EMPTY_CACHE, f, lambda *_: True))
    memory = getattr(cuda, "memory", None)
    replace(memory, "empty_cache", lambda _: cuda.empty_cache)  # type: ignore[union-attr]  # a memory has its cuda
