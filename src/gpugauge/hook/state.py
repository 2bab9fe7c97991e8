"""The state of the training in this process: counts, phases, optimizers, facts, and the snapshot made of them."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from gpugauge.hook import models
from gpugauge.hook import process as facts
from gpugauge.hook.answers import groups
from gpugauge.hook.clock import NS_PER_SECOND
from gpugauge.hook.devices import Point, StepMemory, allocated, devices
from gpugauge.hook.modes import AUTOCAST, Modes
from gpugauge.hook.peers import LocalWork
from gpugauge.hook.purposes import Purposes
from gpugauge.hook.record import AT_ONCE, Record
from gpugauge.hook.recorder import BATCHES, OPTIMIZER, Recorder
from gpugauge.hook.waits import ExposedWaits
from gpugauge.hook.work import PARAMETERS, STATED, ModelFlops, first_tensor
from gpugauge.hook.workers import Loads, thread_seconds
from gpugauge.hook.wrappers import attempt
from gpugauge.wire import messages as wire
from gpugauge.wire.record import PHASES, SAMPLES, STEPS, TOKENS, WAITED

_MAX_COUNT = 1 << 53  # of samples or tokens in a step
_MAX_FLOPS = 1e24  # of a step
_PARAMETER_SCAN_NS = 60 * NS_PER_SECOND
_FACTS_REFRESH_NS = 10 * NS_PER_SECOND

# Batches before which the parameters had changed and no optimizer reported a step, until such batches count as steps.
_UNREPORTED_STEPS = 3


class TrainingState:
    """The listeners write it, and snapshot() reads it. Nothing here initialises CUDA or waits for it."""

    def __init__(self) -> None:
        self.record = Record()
        self.recorder = Recorder(self.record)
        self.purposes = Purposes(self.recorder, lambda: bool(self._optimizers))
        self.loads = Loads()
        self.local_work = LocalWork()
        self.flops = ModelFlops()
        self.models = models.Models()
        self.stepping: set[int] = set()  # identities of the optimizers that have stepped
        self.backward_passes = 0  # while no step has been seen
        self.compilations: int | None = 0  # None: this version of dynamo does not report them
        self._optimizers: dict[int, weakref.ref[Any]] = {}
        self._seen_facts: dict[str, str | None] = {}
        self._autocast: Any = None
        self.clear()

    def clear(self) -> None:
        """Start from zero, with the optimizers and facts kept: at the start, and in a forked child."""
        for part in (self.record, self.recorder, self.purposes, self.loads, self.local_work, self.flops):
            part.clear()
        self.modes, self.memory = Modes(), StepMemory(allocated)
        self.waits = ExposedWaits()  # a forked child cannot use the events of its parent
        self.facts: dict[str, str] = {}
        self._facts_due = self._scan_due = AT_ONCE
        self._unreported = 0
        self._initialised = False
        self._parameters: tuple[wire.Parameters, ...] = ()
        self._optimizer_state: tuple[wire.Parameters, ...] = ()
        self._version: tuple[int, int] | None = None

    def register_optimizer(self, optimizer: Any) -> None:
        """Register an optimizer that has just been created, without keeping it alive."""
        self.recorder.create_optimizer(id(optimizer))
        self._add_optimizer(optimizer)

    def add_stepping_optimizer(self, optimizer: Any) -> None:
        """Add an optimizer that has stepped for the first time. The calling thread trains."""
        self._add_optimizer(optimizer)  # one that was created before the hook is not known yet
        self.stepping.add(id(optimizer))
        if self.follow_caller() or not self.loads.begun:
            self.loads.begun = thread_seconds()

    def follow_caller(self) -> bool:
        """Take the calling thread as the one that trains, with its waits before; return whether it is a new one."""
        if followed := self.record.follow_caller():
            self.purposes.adopt(self.record.thread)
            if self.record.words[STEPS]:  # several threads train: the batches of each are not known
                self.recorder.work.unknown |= {SAMPLES, TOKENS}
        return followed

    def find_sole_optimizer(self, optimizer: Any) -> None:
        """Set `sole` of the record if this optimizer is the only one, and none of its steps can contain another one."""
        hooked = (getattr(vars(owner).get("step"), "hooked", False) for owner in type(optimizer).__mro__)
        alone = len(self._optimizers) == 1 and self.recorder.source == OPTIMIZER and sum(hooked) < 2
        self.record.sole = id(optimizer) if alone else None

    def _add_optimizer(self, optimizer: Any) -> None:
        key = id(optimizer)
        self._optimizers[key] = weakref.ref(optimizer, lambda _: self._drop_optimizer(key))
        self.stepping.discard(key)
        self.record.sole = None
        self._scan_due = AT_ONCE

    def _drop_optimizer(self, key: int) -> None:
        self._optimizers.pop(key, None)
        self.stepping.discard(key)
        self.recorder.gone.append(key)
        if self.record.sole == key:
            self.record.sole = None

    def set_facts(self, **values: str | None) -> None:
        """Set facts. New values are in the next snapshot."""
        if not values.items() <= self._seen_facts.items():
            self._seen_facts.update(values)
            self._facts_due = AT_ONCE

    def set_autocast(self, dtype: Any) -> None:
        """Record the dtype of autocast. This runs at every forward pass."""
        if dtype is not self._autocast:
            self._autocast = dtype
            self.set_facts(autocast_dtype=str(dtype).replace("torch.", ""))
            self._scan_due = AT_ONCE

    def update(self, now: int) -> None:
        """Count the events since the last call."""
        if self.record.on_training_thread():
            self.count_unreported_step(now)
        self.recorder.drain()
        if self.record.on_training_thread():
            tally = self.recorder.step_tally
            self.local_work.update(tally.durations, tally.nanoseconds)
            self.waits.collect()

    @property
    def may_step_unreported(self) -> bool:
        """Whether steps can go unreported: a compiled optimizer calls no hooks."""
        return bool(self._optimizers) and self.recorder.source in (None, BATCHES)

    def count_unreported_step(self, now: int, training: bool = False) -> None:
        """Count a step if the parameters have changed since the last call, and no optimizer reports its steps. Batches
        for `training` show that steps go unreported; then other moments count as well.
        """
        if not self.may_step_unreported or not (training or self.recorder.source == BATCHES):
            return
        parameter = next(models.trained(self._optimizers_of_loop()), None)
        before, self._version = self._version, None if parameter is None else models.version(parameter)
        if before is None or self._version is None or self._version == before or self._version[0] != before[0]:
            return
        if self.record.on_training_thread():
            self.purposes.effect()
        if self.recorder.source == BATCHES:
            self.recorder.add_steps(1, now)
            if training and self.record.on_training_thread():
                self.sample_memory(BATCHES, now)
            return
        self._unreported += 1
        if self._unreported >= _UNREPORTED_STEPS:
            self.recorder.source = BATCHES
            self.recorder.add_steps(self._unreported, now)

    def add_work(self, samples: Any, tokens: Any) -> None:
        """Add the samples and tokens of a step. Values that are not counts are ignored."""
        for word, value in ((SAMPLES, samples), (TOKENS, tokens)):
            if (count := _count(value)) is not None:
                self.recorder.work.report(word, count)

    def state_flops(self, per_step: Any) -> None:
        """Take the model FLOPs of each step from now on. A value that is not a positive number is ignored."""
        if isinstance(per_step, (int, float)) and 0 < per_step <= _MAX_FLOPS:
            self.know_flops(STATED, float(per_step))

    def know_flops(self, source: str, per: float | None) -> None:
        """Take the model FLOPs of a step, or of a token, from a source."""
        self.flops.know(source, per, self.record.words[STEPS], self.purposes.counted(TOKENS))

    def memory_is_due(self, now: int) -> bool:
        """Return whether the memory is to be read after the next step, also where it is always a batch that is due."""
        return bool(self.waits.used) and now >= self.memory.due

    def sample_memory(self, point: Point, now: int) -> None:
        """Read the memory after a step of the training thread, if it is due."""
        if self.memory_is_due(now):
            self.memory.sample(point, now, self.waits.used)
            device = attempt(None, torch.cuda.current_device)
            self.set_facts(current_device=None if device is None else str(device))

    def take_batch(self, batch: Any) -> None:
        """Record the device of a batch for the training."""
        if (found := first_tensor(batch)) is not None:
            self.set_facts(batch_device=str(found[1].device))

    def trains(self, module: Any) -> bool:
        """Return whether a module contains the first parameter that is trained; without visible effects, any one."""
        parameter, blind = next(models.trained(self._optimizers_of_loop()), None), self.purposes.blind
        return any(part is parameter or (blind and part.requires_grad) for part in module.parameters())

    def _optimizers_of_loop(self) -> list[Any]:
        """Return the optimizers of the present training loop; before the first step all of them."""
        # A copy: a garbage collection can drop an optimizer during the iteration.
        loop = set(self.recorder.rounds.loop)
        found = [optimizer() for key, optimizer in tuple(self._optimizers.items()) if not loop or key in loop]
        return [optimizer for optimizer in found if optimizer is not None]

    def snapshot(self, session: str, sequence: int, errors: int, now: int, *, answers: bool = False) -> wire.Snap:
        """Return the snapshot message at `now`; `answers` is whether this rank of several answers questions."""
        if now >= self._scan_due:
            self._scan_due = now + _PARAMETER_SCAN_NS
            optimizers = self._optimizers_of_loop()
            self._parameters = attempt((), lambda: models.totals(models.parameters(optimizers)))
            self._optimizer_state = attempt((), lambda: models.totals(models.states(optimizers)))
            self._seen_facts["sharding"] = attempt(None, models.sharding, optimizers)
            self._scan_model(optimizers)
            places = {kind.device for kind in self._parameters}
            self._seen_facts["parameter_device"] = places.pop() if len(places) == 1 else None
            on_gpu = all(kind.device.startswith("cuda") for kind in self._parameters)
            self._seen_facts["parameters_on"] = ("cuda" if on_gpu else "other") if self._parameters else None
        self.modes.sample()
        initialised = torch.cuda.is_initialized()
        if now >= self._facts_due or initialised != self._initialised:
            self._facts_due, self._initialised = now + _FACTS_REFRESH_NS, initialised
            known = {**self._seen_facts, **self.modes.facts(self.recorder.step_tally.count)}
            if self.compilations != 0 and known.get(AUTOCAST) == "no":
                known[AUTOCAST] = None  # a compiled function enters it without a call
            self.facts = facts.later_facts(known, stepped=self.recorder.step_tally.count > 0)
        visible = devices(self.memory.allocated)
        self.waits.used = {device.index for device in visible if device.allocated is not None}
        self.record.exposed = bool(self.waits.used)
        recorder, words = self.recorder, self.record.words
        self.flops.advance(recorder.step_tally.count, self.purposes.counted(TOKENS))
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
            facts=self.facts,
            step_source=recorder.source,
            optimizer_state=self._optimizer_state,
            exposed_wait_seconds=None if exposed is None else exposed / 1e9,
            local_work_seconds=None if local is None else local / 1e9,
            compilations=self.compilations,
            waits={phase: words[WAITED + place] / 1e9 for place, phase in enumerate(PHASES) if words[WAITED + place]}
            or ({} if recorder.batch_tally.count else None),  # {}: what they are for is not decided yet
            samples=self.purposes.counted(SAMPLES),
            tokens=self.purposes.counted(TOKENS),
            flops=dict(self.flops.sums) or None,
            loader=self.loads.message("loader_workers" not in self._seen_facts, self.record.on_training_thread()),
            groups=groups() if answers else (),
            answers=1 if answers else None,
        )

    def _scan_model(self, optimizers: list[Any]) -> None:
        """Find the model that these optimizers train, its FLOPs and the dtype of its matrix products."""
        per, dtype, seen = None, None, self._seen_facts
        try:
            trained = list(models.trained(optimizers))
            sharded = seen.get("sharding") is not None  # then each process has a part of each parameter
            model = None if sharded else self.models.of(trained)
            per = None if model is None else models.flops_of_token(model)
            certain = not any((sharded, seen.get("compiled"), seen.get("grad_scaler")))
            rounded = facts.precision().get("tf32_matmul") if certain else None
            dtype = models.matmul_dtype(trained, model, seen.get("autocast_dtype"), rounded)
        except Exception:
            pass  # a model with parameters or modules of its own kind
        self.know_flops(PARAMETERS, per)
        seen["matmul_dtype"] = dtype


def _count(value: Any) -> int | None:
    """Return a count from 0 to 2^53 of a program; None for other values. Never waits for a device."""
    if isinstance(value, torch.Tensor) and (value.device.type != "cpu" or value.numel() != 1):
        return None
    try:
        return int(value) if 0 <= value <= _MAX_COUNT else None
    except Exception:
        return None  # not a number
