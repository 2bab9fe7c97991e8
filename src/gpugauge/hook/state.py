"""The state of the training in this process: counts, phases, optimizers, facts, and the snapshot made of them."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from gpugauge.hook import facts, tensors
from gpugauge.hook.client import NS_PER_SECOND
from gpugauge.hook.devices import devices
from gpugauge.hook.peers import LocalWork
from gpugauge.hook.phases import Phases
from gpugauge.hook.record import RecordMemory
from gpugauge.hook.recorder import Recorder
from gpugauge.hook.waits import ExposedWaits
from gpugauge.wire import messages as wire

_PARAMETER_SCAN_NS = 60 * NS_PER_SECOND
_FACTS_REFRESH_NS = 10 * NS_PER_SECOND

# Training batches that arrive while parameters change and no optimizer reports a step, before batches count as steps.
_UNREPORTED_BATCHES = 3


class TrainingState:
    """The listeners write it, and snapshot() reads it. Nothing here initialises CUDA or waits for it."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.phases = Phases(RecordMemory())
        self.waits = ExposedWaits()
        self.local_work = LocalWork()
        self.stepping: set[int] = set()  # identities of the optimizers that have stepped
        self.compilations: int | None = 0  # None: this version of dynamo does not report them
        self._optimizers: dict[int, weakref.ref[Any]] = {}
        self._seen_facts: dict[str, str | None] = {}
        self.clear()

    def clear(self) -> None:
        """Start from zero, with the optimizers and facts kept: at the start, and in a forked child."""
        self.phases.record.close()
        self.recorder.clear()
        self.phases.clear()
        self.waits.clear()
        self.local_work.clear()
        self._facts: dict[str, str] = {}
        self._facts_due = 0
        self._initialised = False
        self._parameters: tuple[wire.Parameters, ...] = ()
        self._optimizer_state: tuple[wire.Parameters, ...] = ()
        self._scan_due = 0
        self._version: tuple[int, int] | None = None
        self._unreported = 0

    def register_optimizer(self, optimizer: Any) -> None:
        """Register an optimizer, without keeping it alive. The next snapshot scans its parameters."""
        key = id(optimizer)
        self._optimizers[key] = weakref.ref(optimizer, lambda _: self._drop_optimizer(key))
        self._scan_due = 0

    def add_stepping_optimizer(self, optimizer: Any) -> None:
        """Register an optimizer that has stepped for the first time. The calling thread trains."""
        self.register_optimizer(optimizer)
        self.stepping.add(id(optimizer))
        self.phases.follow_caller()

    def _drop_optimizer(self, key: int) -> None:
        self._optimizers.pop(key, None)
        self.stepping.discard(key)

    def set_facts(self, **values: str | None) -> None:
        """Set facts. New values are in the next snapshot."""
        if not values.items() <= self._seen_facts.items():
            self._seen_facts.update(values)
            self._facts_due = 0

    def update(self) -> None:
        """Count the events since the last call, and write the shared record."""
        self.recorder.drain()
        self._detect_unreported_steps()
        if self.phases.on_training_thread():
            tally = self.recorder.step_tally
            self.local_work.update(tally.durations, tally.nanoseconds)
            self.waits.collect()
            self.phases.write(*self.recorder.counts())

    def _detect_unreported_steps(self) -> None:
        """Detect the steps of a compiled optimizer, which calls no hooks, by the version of its parameters."""
        recorder = self.recorder
        if recorder.source is not None:
            return
        version = tensors.version(self._live_optimizers())
        if recorder.training_batches and self._version is not None and version != self._version:
            self._unreported += 1
        self._version = version
        if self._unreported and recorder.training_batches >= _UNREPORTED_BATCHES:
            recorder.count_batches_as_steps()

    def _live_optimizers(self) -> list[Any]:
        # A copy: a garbage collection can drop an optimizer during the iteration.
        found = [optimizer() for optimizer in tuple(self._optimizers.values())]
        return [optimizer for optimizer in found if optimizer is not None]

    def snapshot(self, session: str, sequence: int, errors: int, now: int) -> wire.Snap:
        """Return the snapshot message at `now` (perf_counter_ns). `errors` are those of the hook itself."""
        if now >= self._scan_due:
            self._scan_due = now + _PARAMETER_SCAN_NS
            optimizers = self._live_optimizers()
            self._parameters, self._optimizer_state = tensors.parameters(optimizers), tensors.state(optimizers)
            self._seen_facts["sharding"] = tensors.sharding(optimizers)
        initialised = torch.cuda.is_initialized()
        if now >= self._facts_due or initialised != self._initialised:
            self._facts_due, self._initialised = now + _FACTS_REFRESH_NS, initialised
            self._facts = facts.later_facts(self._seen_facts)
        visible = devices()
        self.waits.used = {device.index for device in visible if device.allocated is not None}
        recorder, exposed, local = self.recorder, self.waits.nanoseconds, self.local_work.nanoseconds
        return wire.Snap(
            session=session,
            sequence=sequence,
            monotonic_ns=now,
            steps=recorder.step_tally.progress(),
            batches=recorder.batch_tally.progress(),
            parameters=self._parameters,
            devices=visible,
            errors=errors,
            facts=self._facts,
            step_source=recorder.source,
            optimizer_state=self._optimizer_state,
            exposed_wait_seconds=None if exposed is None else exposed / 1e9,
            local_work_seconds=None if local is None else local / 1e9,
            compilations=self.compilations,
        )
