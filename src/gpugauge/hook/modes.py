"""Modes of torch that cost time in each step while they are on, and calls that cost time when each step makes them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from gpugauge.hook.wrappers import Wrap, around

if TYPE_CHECKING:
    from gpugauge.hook.observer import Observer

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
    frame: Any = sys._getframe()  # noqa: SLF001 - no public function returns it
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(("gpugauge.hook", "torch.autograd")):
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).startswith(_COMPILERS)


def counters(observer: Observer) -> dict[str, Wrap]:
    """Return the wrappers that count calls, by the path of the function from torch."""
    state = observer.state

    def count(mode: str) -> None:
        state.modes.calls[mode] += 1

    def anomalies(enabled: bool, *_: Any, **__: Any) -> None:
        if enabled and not _compiles():
            count(ANOMALY_DETECTION)

    def casts(context: Any) -> None:
        if getattr(context, "_enabled", False) and torch.is_grad_enabled():  # not for an evaluation
            count(AUTOCAST)
            state.set_autocast(context.fast_dtype)

    return {
        "set_anomaly_enabled": around(observer, anomalies),  # all ways into the mode call it
        "autocast.__enter__": around(observer, casts),
        "cuda.empty_cache": around(observer, lambda: count(EMPTY_CACHE)),
        "cuda.memory.empty_cache": lambda _: torch.cuda.empty_cache,
    }
