"""What is known about the training in this process, and when it is sent. Loaded only after the program imported torch.

The rules: nothing here initialises CUDA or waits for it, no exception of ours leaves, and work is done at most once a
second, on the thread that steps or loads.
"""

from __future__ import annotations

import threading
import uuid
import weakref
from time import perf_counter_ns
from typing import Any

import torch

from gpugauge.hook import facts, phases, tensors
from gpugauge.hook.client import SECOND, Client
from gpugauge.hook.devices import devices
from gpugauge.hook.peers import LocalWork
from gpugauge.hook.phases import Phases
from gpugauge.hook.record import Page
from gpugauge.hook.recorder import Recorder
from gpugauge.hook.waits import ExposedWaits
from gpugauge.wire import messages as wire

MAX_ERRORS = 10
NOBODY = -1  # no thread's identity
RESCAN = 60 * SECOND
REFRESH = 10 * SECOND

# Batches to train on that arrived while parameters changed and no optimizer said so, until batches count as steps.
_UNREPORTED = 3


class Observer:
    """The state of this process: what listeners tell it, and what it sends. MAX_ERRORS `errors` switch it `off`.

    The listeners count what comes; from `step_look` and `batch_look` on a step and a batch has more to say, and from
    `due` on there is something to send (perf_counter_ns). `seen` are facts that they found out.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.recorder = Recorder()
        self.phases = Phases(Page())
        self.waits = ExposedWaits()
        self.local_work = LocalWork()
        self.optimizers: dict[int, weakref.ref[Any]] = {}
        self.stepping: set[int] = set()
        self.seen: dict[str, str | None] = {}
        self._evaluated: weakref.ref[Any] | None = None
        self.compilations: int | None = 0  # None: they cannot be known
        self.errors = 0
        self.off = False
        self.reset()

    def reset(self) -> None:
        """Begin a session: at the start, and in a forked child, whose parent keeps its own."""
        self.client.close()
        self.phases.page.close()
        self.recorder.clear()
        self.phases.clear()
        self.waits.clear()
        self.local_work.clear()
        self.session = uuid.uuid4().hex
        self.hurry()
        self._sequence = 0
        self._busy = threading.Lock()
        self._hello: wire.Hello | None = None
        self._facts: dict[str, str] = {}
        self._refresh = 0
        self._initialised = False
        self._parameters: tuple[wire.Parameters, ...] = ()
        self._optimizer_state: tuple[wire.Parameters, ...] = ()
        self._rescan = 0
        self._version: tuple[int, int] | None = None
        self._unreported = 0
        self._loader: weakref.ref[Any] | None = None
        if self.off:
            self._switch_off()

    def hurry(self) -> None:
        """Let the next step or batch publish."""
        self.step_look = self.batch_look = self.due = 0

    def failed(self) -> None:
        """Count an error of ours; too many switch the hook off and end the session."""
        self.errors += 1
        self.step_look = 0  # what was left half done is put right with the next step
        if self.errors >= MAX_ERRORS:
            self._switch_off()

    def _switch_off(self) -> None:
        self.off = True
        self.phases.thread = NOBODY
        self.step_look = 0
        self.client.close()

    def met(self, optimizer: Any) -> None:
        """Remember an optimizer, without keeping it alive, and look at its parameters with the next publication."""
        key = id(optimizer)
        self.optimizers[key] = weakref.ref(optimizer, lambda _: self._gone(key))
        self._rescan = 0

    def know(self, optimizer: Any) -> None:
        """Remember an optimizer that has stepped for the first time."""
        self.met(optimizer)
        self.stepping.add(id(optimizer))
        self.phases.adopt()
        if self._sequence < 2:
            self.hurry()  # the first step follows the first batch closely, and tells where the model lives

    def _gone(self, key: int) -> None:
        self.optimizers.pop(key, None)
        self.stepping.discard(key)

    def saw(self, **facts: str | None) -> None:
        """Take facts, and send what is new with the next publication."""
        if not facts.items() <= self.seen.items():
            self.seen.update(facts)
            self._refresh = 0

    def told_to_evaluate(self, module: Any) -> None:
        """Take that a module was told eval(): until the next step it may be what the program does."""
        self._evaluated = weakref.ref(module)
        self.step_look = self.batch_look = 0

    def trains_on(self, iterator: Any) -> bool:
        """Return whether it will train on a batch, as far as that can be told now, and take where it came from."""
        module = self._evaluated() if self._evaluated is not None else None
        # Frozen parts of a model that trains are told eval() before the step: only what still is so counts.
        training = torch.is_grad_enabled() and (module is None or module.training)
        if training and (self._loader is None or self._loader() is not iterator):
            self._loader = weakref.ref(iterator)
            self.saw(**facts.loader(iterator))
        if self._evaluated is None:
            self.batch_look = self.due
        return training

    def arrived(self, training: bool, now: int) -> None:
        """Take that a batch is counted which was for evaluating, or that it is time to send."""
        if not training:
            self.step_look = 0  # with a step it trains again
        if now >= self.due:
            self.publish(now)

    def arrived_elsewhere(self, start: int) -> None:
        """Take a batch that another thread got, or another loader, since `start`."""
        if self.off:
            return
        try:
            now = perf_counter_ns()
            self.recorder.batches.append((start, now, torch.is_grad_enabled()))
            if now >= self.due:
                self.publish(now)
        except Exception:
            self.failed()

    def stepped(self, optimizer: Any, now: int) -> None:
        """Take a step that has more to say than to be counted."""
        if self.off:
            return
        try:
            self.recorder.steps.append((id(optimizer), now))
            if id(optimizer) not in self.stepping:
                self.know(optimizer)
            self._trains(now)
        except Exception:
            self.failed()

    def _trains(self, now: int) -> None:
        """Take that there was a step: whatever the program did before, it trains."""
        self._evaluated = None
        if self.phases.here():
            self.phases.settle(phases.TRAINING, now)
            self.step_look = self.due
        if now >= self.due:
            self.publish(now)

    def tick(self) -> None:
        """Take a step that the program tells about itself."""
        if self.off:
            return
        try:
            now = perf_counter_ns()
            self.recorder.ticks.append(now)
            self._trains(now)
        except Exception:
            self.failed()

    def enter(self, phase: str) -> bool:
        """Go into a phase on the training thread; return whether there is one to leave."""
        return self.enter_phase(phases.named(phase))

    def enter_phase(self, phase: int) -> bool:
        """Go into a phase, by its index; return whether there is one to leave."""
        if self.off or not self.phases.here():
            return False
        try:
            self.phases.enter(phase, perf_counter_ns())
        except Exception:
            self.failed()
            return False
        return True

    def leave_phase(self) -> None:
        """Leave what enter() went into."""
        try:
            self.phases.leave(perf_counter_ns())
        except Exception:
            self.failed()

    def back(self, phase: int) -> None:
        """Go back to a phase after a wait that brought no batch."""
        try:
            self.phases.switch(phase, perf_counter_ns())
        except Exception:
            self.failed()

    def publish(self, now: int) -> None:
        """Send what has been counted, if a daemon is there. A thread that comes meanwhile leaves it to the first."""
        if not self._busy.acquire(blocking=False):
            return
        try:
            self.due = now + SECOND
            if self.step_look:
                self.step_look = self.due
            self.batch_look = 0  # with the next batch comes whether it is another loader's
            self._gather()
            for _ in range(2):  # when the daemon has gone, its successor may be there already
                if not self.client.connect(now, self._greeting) or self.client.send(now, self._snap(now)):
                    break
        finally:
            self._busy.release()

    def leave(self) -> None:
        """Send the last state and the reason for the end; registered with atexit."""
        try:
            if self.client.connected and not self.off:
                now = perf_counter_ns()
                self.publish(now)
                self.client.send(now, wire.encode(wire.Bye(self.session, self._next(), facts.end_reason())))
            self.client.close()
        except Exception:
            pass

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _greeting(self) -> tuple[bytes, int | None]:
        if self._hello is None:
            self._hello = facts.hello(self.session)
            self.phases.page.open()
            self.phases.write(*self.recorder.counts())
        return wire.encode(self._hello), self.phases.page.descriptor

    def _gather(self) -> None:
        """Take what has happened since the last publication."""
        self.recorder.drain()
        self._watch_for_unreported_steps()
        if self.phases.here():
            tally = self.recorder.step_tally
            self.local_work.update(tally.durations, tally.nanoseconds)
            self.waits.collect()
            self.phases.write(*self.recorder.counts())

    def _watch_for_unreported_steps(self) -> None:
        """A compiled optimizer calls no hooks; that it steps shows in its parameters."""
        recorder = self.recorder
        if recorder.source is not None:
            return
        version = tensors.version(self._living())
        if recorder.training_batches and self._version is not None and version != self._version:
            self._unreported += 1
        self._version = version
        if self._unreported and recorder.training_batches >= _UNREPORTED:
            recorder.fall_back()

    def _living(self) -> list[Any]:
        # A copy: a garbage collection may drop an optimizer meanwhile.
        found = [optimizer() for optimizer in tuple(self.optimizers.values())]
        return [optimizer for optimizer in found if optimizer is not None]

    def _snap(self, now: int) -> bytes:
        if now >= self._rescan:
            self._rescan = now + RESCAN
            living = self._living()
            self._parameters, self._optimizer_state = tensors.parameters(living), tensors.state(living)
            self.seen["sharding"] = tensors.sharding(living)
        initialised = torch.cuda.is_initialized()
        if now >= self._refresh or initialised != self._initialised:
            self._refresh, self._initialised = now + REFRESH, initialised
            self._facts = facts.later(self.seen)
        found = devices()
        self.waits.used = {device.index for device in found if device.allocated is not None}
        recorder, exposed, local = self.recorder, self.waits.nanoseconds, self.local_work.nanoseconds
        return wire.encode(
            wire.Snap(
                session=self.session,
                sequence=self._next(),
                monotonic_ns=now,
                steps=recorder.step_tally.progress(),
                batches=recorder.batch_tally.progress(),
                parameters=self._parameters,
                devices=found,
                errors=self.errors,
                facts=self._facts,
                step_source=recorder.source,
                optimizer_state=self._optimizer_state,
                exposed_wait_seconds=None if exposed is None else exposed / 1e9,
                local_work_seconds=None if local is None else local / 1e9,
                compilations=self.compilations,
            )
        )
