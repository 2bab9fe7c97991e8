"""The state of the training in this process: counts, phases, optimizers, facts, and the snapshot made of them."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from gpugauge.hook.client import NS_PER_SECOND
from gpugauge.hook.counts.modes import Modes
from gpugauge.hook.counts.peers import LocalWork
from gpugauge.hook.counts.phases import Phases
from gpugauge.hook.counts.record import RecordMemory
from gpugauge.hook.counts.recorder import BATCHES, OPTIMIZER, Recorder
from gpugauge.hook.counts.waits import ExposedWaits
from gpugauge.hook.facts import process as facts
from gpugauge.hook.facts import running, tensors
from gpugauge.hook.facts.devices import devices
from gpugauge.wire import messages as wire
from gpugauge.wire.record import PHASES, SAMPLES, TOKENS, WAITED

_MAX_COUNT = 1 << 53  # of samples or tokens in a step
_PARAMETER_SCAN_NS = 60 * NS_PER_SECOND
_FACTS_REFRESH_NS = 10 * NS_PER_SECOND

# Batches before which the parameters had changed and no optimizer reported a step, until such batches count as steps.
_UNREPORTED_STEPS = 3


class TrainingState:
    """The listeners write it, and snapshot() reads it. Nothing here initialises CUDA or waits for it."""

    def __init__(self) -> None:
        self.record = RecordMemory()
        self.recorder = Recorder(self.record)
        self.phases = Phases(self.record)
        self.waits = ExposedWaits()
        self.local_work = LocalWork()
        self.modes = Modes(running.IS_ON)
        self.stepping: set[int] = set()  # identities of the optimizers that have stepped
        self.sole: int | None = None  # identity of the optimizer whose every step is a training step
        self.compilations: int | None = 0  # None: this version of dynamo does not report them
        self._optimizers: dict[int, weakref.ref[Any]] = {}
        self._seen_facts: dict[str, str | None] = {}
        self.clear()

    def clear(self) -> None:
        """Start from zero, with the optimizers and facts kept: at the start, and in a forked child."""
        self.record.close()
        self.recorder.clear()
        self.phases.clear()
        self.waits.clear()
        self.local_work.clear()
        self.modes.clear()
        self._facts: dict[str, str] = {}
        self._facts_due = 0
        self._initialised = False
        self._parameters: tuple[wire.Parameters, ...] = ()
        self._optimizer_state: tuple[wire.Parameters, ...] = ()
        self._scan_due = 0
        self._version: tuple[int, int] | None = None
        self._unreported = 0
        self.sole = None
        self._reported: set[int] = set()  # of the words samples and tokens

    def register_optimizer(self, optimizer: Any) -> None:
        """Register an optimizer that has just been created, without keeping it alive."""
        self.recorder.create_optimizer(id(optimizer))
        self._add_optimizer(optimizer)

    def add_stepping_optimizer(self, optimizer: Any) -> None:
        """Add an optimizer that has stepped for the first time. The calling thread trains."""
        key = id(optimizer)
        if key not in self._optimizers:
            self._add_optimizer(optimizer)
        self.stepping.add(key)
        self._scan_due = 0
        self.follow_caller()

    def follow_caller(self) -> None:
        """Take the calling thread as the one that trains, with the waits that it had before."""
        if self.phases.follow_caller():
            self.recorder.count_waits_of(self.phases.thread)

    def find_sole_optimizer(self, optimizer: Any) -> None:
        """Set `sole` if this optimizer is the only one, and none of its steps can contain another one."""
        hooked = (getattr(vars(owner).get("step"), "hooked", False) for owner in type(optimizer).__mro__)
        alone = len(self._optimizers) == 1 and self.recorder.source == OPTIMIZER and sum(hooked) < 2
        self.sole = id(optimizer) if alone else None

    def _add_optimizer(self, optimizer: Any) -> None:
        key = id(optimizer)
        self._optimizers[key] = weakref.ref(optimizer, lambda _: self._drop_optimizer(key))
        self.stepping.discard(key)
        self.sole = None
        self._scan_due = 0

    def _drop_optimizer(self, key: int) -> None:
        self._optimizers.pop(key, None)
        self.stepping.discard(key)
        self.recorder.drop_optimizer(key)
        if self.sole == key:
            self.sole = None

    def set_facts(self, **values: str | None) -> None:
        """Set facts. New values are in the next snapshot."""
        if not values.items() <= self._seen_facts.items():
            self._seen_facts.update(values)
            self._facts_due = 0

    @property
    def rank(self) -> str | None:
        """The last reported rank of this process, None without one."""
        return self._facts.get("rank")

    def update(self, now: int) -> None:
        """Count the events since the last call."""
        if self.phases.on_training_thread():
            self.count_unreported_step(now)
        self.recorder.drain()
        if self.phases.on_training_thread():
            tally = self.recorder.step_tally
            self.local_work.update(tally.durations, tally.nanoseconds)
            self.waits.collect()

    @property
    def may_step_unreported(self) -> bool:
        """Whether steps can go unreported: a compiled optimizer calls no hooks."""
        return bool(self._optimizers) and self.recorder.source in (None, BATCHES)

    def count_unreported_step(self, now: int, training: bool = False) -> None:
        """Count a step if the parameters have changed since the last call, and no optimizer reports its steps. For the
        training thread. Batches for `training` show that steps go unreported; then other moments count as well.
        """
        if not self.may_step_unreported or not (training or self.recorder.source == BATCHES):
            return
        parameter = tensors.first_trained(self._optimizers_of_loop())
        before, self._version = self._version, None if parameter is None else tensors.version(parameter)
        if before is None or self._version is None or self._version == before or self._version[0] != before[0]:
            return
        if self.recorder.source == BATCHES:
            self.recorder.add_steps(1, now)
            return
        self._unreported += 1
        if self._unreported >= _UNREPORTED_STEPS:
            self.recorder.source = BATCHES
            self.recorder.add_steps(self._unreported, now)

    def add_work(self, samples: Any, tokens: Any) -> None:
        """Add the samples and tokens of a step. Values that are not counts are ignored."""
        for word, value in ((SAMPLES, samples), (TOKENS, tokens)):
            if (count := _count(value)) is not None:
                self.record.words[word] += count
                self._reported.add(word)

    def trains(self, module: Any) -> bool:
        """Return whether a module contains the first parameter that is trained; false while none is known."""
        parameter = tensors.first_trained(self._optimizers_of_loop())
        return parameter is not None and any(parameter is part for part in module.parameters())

    def _optimizers_of_loop(self) -> list[Any]:
        """Return the optimizers of the present training loop; before the first step all of them."""
        # A copy: a garbage collection can drop an optimizer during the iteration.
        loop = set(self.recorder.rounds.loop)
        found = [optimizer() for key, optimizer in tuple(self._optimizers.items()) if not loop or key in loop]
        return [optimizer for optimizer in found if optimizer is not None]

    def snapshot(self, session: str, sequence: int, errors: int, now: int) -> wire.Snap:
        """Return the snapshot message at `now` (perf_counter_ns). `errors` are those of the hook itself."""
        if now >= self._scan_due:
            self._scan_due = now + _PARAMETER_SCAN_NS
            optimizers = self._optimizers_of_loop()
            self._parameters, self._optimizer_state = tensors.parameters(optimizers), tensors.state(optimizers)
            self._seen_facts["sharding"] = tensors.sharding(optimizers)
        self.modes.sample()
        initialised = torch.cuda.is_initialized()
        if now >= self._facts_due or initialised != self._initialised:
            self._facts_due, self._initialised = now + _FACTS_REFRESH_NS, initialised
            known = {**self._seen_facts, **self.modes.facts(self.recorder.step_tally.count)}
            self._facts = facts.later_facts(known, stepped=self.recorder.step_tally.count > 0)
        visible = devices()
        self.waits.used = {device.index for device in visible if device.allocated is not None}
        recorder, words = self.recorder, self.record.words
        exposed, local = self.waits.nanoseconds, self.local_work.nanoseconds
        return wire.Snap(
            session=session,
            sequence=sequence,
            monotonic_ns=now,
            steps=recorder.step_tally.progress() if recorder.step_tally.count else None,
            batches=recorder.batch_tally.progress() if recorder.batch_tally.count else None,
            parameters=self._parameters,
            devices=visible,
            errors=errors,
            facts=self._facts,
            step_source=recorder.source,
            optimizer_state=self._optimizer_state,
            exposed_wait_seconds=None if exposed is None else exposed / 1e9,
            local_work_seconds=None if local is None else local / 1e9,
            compilations=self.compilations,
            waits={phase: words[WAITED + place] / 1e9 for place, phase in enumerate(PHASES) if words[WAITED + place]}
            or None,
            samples=words[SAMPLES] if SAMPLES in self._reported else None,
            tokens=words[TOKENS] if TOKENS in self._reported else None,
        )


def _count(value: Any) -> int | None:
    """Return a count from 0 to 2^53 of a program; None for other values. Never waits for a device."""
    if isinstance(value, torch.Tensor) and (value.device.type != "cpu" or value.numel() != 1):
        return None
    try:
        return int(value) if 0 <= value <= _MAX_COUNT else None
    except Exception:
        return None  # not a number
