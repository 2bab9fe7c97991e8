"""Time of the steps without the waits for other ranks."""

from __future__ import annotations

import functools
import random
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from gpugauge.hook.clock import CLOCKS
from gpugauge.hook.wrappers import Wrap, attempt, is_compiling

if TYPE_CHECKING:
    from gpugauge.hook.observer import Observer

_graph_task = getattr(torch._C, "_current_graph_task_id", None)  # noqa: SLF001 - -1 outside of a backward pass

# Iterations of DDP of which one is measured. On other devices DDP waits for the device where it measures.
_STRATUM = {"cpu": 1}
_OTHER_STRATUM = 100  # as often as DDP measures by itself

# Backends whose waits block the calling thread.
_BLOCKING = {"gloo", "mpi"}


class LocalWork:
    """Durations of the steps less the waits for other ranks: `nanoseconds`, None while the waits are not known.
    `waited` is the wait so far, in nanoseconds. The wrappers of collectives add to it while they are `blocking`.
    """

    def __init__(self) -> None:
        self._timings: dict[int, _Timing] = {}  # by the identity of DDP's logger
        self._uses_ddp = False
        self.clear()

    def clear(self) -> None:
        """Start from zero, in a forked child."""
        self.nanoseconds: int | None = None
        self.waited = 0
        self.blocking = False
        self._measured = False
        self._start: tuple[int, int] | None = None  # `nanoseconds` and `waited` when the waits became known
        self._open = (
            0,
            0,
            0,
        )  # a wait that the daemon asks about: the steps before, its begin, the last answer

    def note(self, steps: int, *, waits: bool) -> None:
        """Note whether the training thread waits for other ranks: the daemon asks while there is no progress."""
        now, (before, begin, _) = CLOCKS[0](), self._open
        self._open = (steps, begin if begin and before == steps else now, now) if waits else (0, 0, 0)

    def waits(self, steps: int, nanoseconds: int) -> int | None:
        """Return the waits for other ranks in so many steps, and in the next one; None while they are not known."""
        before, begin, last = self._open
        hung = last - begin if before == steps else 0
        if self.nanoseconds is None:
            return hung or None
        measured = self.waited - self._start[1] if self._start else 0
        return max(0, nanoseconds - self.nanoseconds + hung, measured)

    def add_model(self, model: Any) -> None:
        """Add a model wrapped by DDP that has not run, without keeping it alive."""
        if model.process_group.size() < 2:
            return
        self._uses_ddp = True
        key = id(model.logger)
        reference = weakref.ref(model, lambda _: self._timings.pop(key, None))
        self._timings[key] = _Timing(reference, _STRATUM.get(model.device_type, _OTHER_STRATUM))

    def end_iteration(self, logger: Any) -> None:
        """Add the wait of the iteration that this logger of DDP has measured, if it is one to measure."""
        timing = self._timings.get(id(logger))
        if timing is not None and timing.end_iteration():
            self._add(timing, logger)

    def update(self, steps: int, nanoseconds: int) -> None:
        """Update the time by the totals of all steps so far: number of durations, and their sum."""
        attempt(None, self._find_backend)
        # A step inside a backward pass may hold the lock of DDP's timings.
        if _graph_task is not None and _graph_task() == -1:
            for timing in tuple(self._timings.values()):
                self._add_last_iteration(timing)
        if not (self._measured if self._uses_ddp else self.blocking):
            return
        if self._start is None or not steps:
            self._start = (nanoseconds, self.waited)
        local = nanoseconds - self._start[0] - (self.waited - self._start[1])
        # A sample that stands for many iterations can take more than they have lasted so far: the later ones pay.
        self.nanoseconds = max(self.nanoseconds or 0, local)

    def _find_backend(self) -> None:
        """Find whether waits block the calling thread. It stays known after the process group is destroyed."""
        distributed = torch.distributed
        if not distributed.is_available() or not distributed.is_initialized():
            return
        backends = getattr(distributed, "get_backend_config", distributed.get_backend)().split(",")
        names = {backend.rpartition(":")[2] for backend in backends}
        self.blocking = distributed.get_world_size() > 1 and names <= _BLOCKING

    def _add_last_iteration(self, timing: _Timing) -> None:
        """Add the wait of the iteration before the step: DDP would measure it at the next forward pass."""
        model = timing.model()
        if model is not None and timing.stratum == 1 and timing.iteration >= 0:
            read = type(model.logger).set_runtime_stats_and_log
            getattr(read, "__wrapped__", read)(model.logger)  # without the wrapper, which counts iterations
            self._add(timing, model.logger)

    def _add(self, timing: _Timing, logger: Any) -> None:
        times = logger._get_ddp_logging_data().ints_map  # noqa: SLF001 - documented in its docstring
        end = times.get("backward_comm_time_end", 0)
        if end == timing.end:
            return  # this forward pass had no backward pass of its own: the times are of an earlier one
        timing.end = end
        self._measured = True
        wait = times.get("backward_comm_time", 0) - times.get("backward_compute_comm_overlap_time", 0)
        now = CLOCKS[0]()
        wait, timing.read = min(wait, now - timing.read), now  # DDP's clock can be set
        self.waited += max(0, wait) * timing.stratum


def waiting(observer: Observer) -> Wrap:
    """Return a decorator of functions whose time on the training thread is a wait for other ranks."""
    local, record = observer.state.local_work, observer.record

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not local.blocking or not record.on_training_thread():
                return function(self, *args, **kwargs)
            start = CLOCKS[0]()
            try:
                return function(self, *args, **kwargs)
            finally:
                local.waited += CLOCKS[0]() - start

        # pybind11 recognises by this name and by `self` that an override calls the method that it overrides.
        wrapper.__code__ = wrapper.__code__.replace(co_name=getattr(function, "__name__", "wrapper"))
        return functools.wraps(function)(wrapper)

    return wrap


class _Timing:
    """Which iterations of a DDP model are measured: in each stratum of so many iterations a random one. The measured
    iteration stands for its stratum, so the expected sum is the true one for any pattern of waits.
    """

    def __init__(self, model: weakref.ref[Any], stratum: int) -> None:
        self.model = model
        self.stratum = stratum
        self.iteration = -1  # the number of forward passes before the current one
        self.end = 0
        self.read = CLOCKS[0]()
        self._random = random.Random(stratum)  # noqa: S311 - fixed: all ranks measure the same iterations
        self._choose(1)

    def end_iteration(self) -> bool:
        """Return whether the iteration that ends is a measured one; if so, choose the next."""
        self.iteration += 1
        if self.iteration != self._target:
            return False
        self._choose(self.iteration + self.stratum - (self.iteration - 1) % self.stratum)
        return True

    def _choose(self, first: int) -> None:
        """Choose an iteration of the stratum that begins with the `first`: DDP measures the multiples of its rate."""
        self._target = first + self._random.randrange(self.stratum)
        model = self.model()
        if model is not None:
            model._set_ddp_runtime_logging_sample_rate(self._target)  # noqa: SLF001 - documented in its docstring
