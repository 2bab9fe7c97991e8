"""The observer of the training in this process: it takes the events of the listeners and publishes snapshots. Loaded
only after the program has imported torch.

The rules: nothing here initialises CUDA or waits for it, no exception of the hook reaches the program, and work is done
at most once a second, on the thread that steps or loads.
"""

from __future__ import annotations

import threading
import uuid
import weakref
from time import perf_counter_ns
from typing import Any

import torch

from gpugauge.hook import facts, phases
from gpugauge.hook.client import NS_PER_SECOND, Client
from gpugauge.hook.state import TrainingState
from gpugauge.wire import messages as wire

MAX_ERRORS = 10
_NO_THREAD = -1  # not the identity of any thread


class Observer:
    """Events of the training, and the session with the daemon. MAX_ERRORS `errors` switch it `off`.

    The listeners count every step and batch themselves. They call on_step() and on_batch() only from `step_due` and
    `batch_due` on; the observer publishes from `publish_due` on. All three are perf_counter_ns.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.state = TrainingState()
        self.recorder = self.state.recorder
        self.phases = self.state.phases
        self.errors = 0
        self.off = False
        self._evaluated: weakref.ref[Any] | None = None
        self.reset()

    def reset(self) -> None:
        """Begin a session: at the start, and in a forked child, whose parent keeps its own session."""
        self.client.close()
        self.state.clear()
        self.session = uuid.uuid4().hex
        self.publish_soon()
        self._sequence = 0
        self._publishing = threading.Lock()
        self._hello: wire.Hello | None = None
        self._loader: weakref.ref[Any] | None = None
        if self.off:
            self._switch_off()

    def publish_soon(self) -> None:
        """Publish with the next step or batch."""
        self.step_due = self.batch_due = self.publish_due = 0

    def count_error(self) -> None:
        """Count an error of the hook. MAX_ERRORS of them switch the hook off and end the session."""
        self.errors += 1
        self.step_due = 0  # the next step corrects the phase, which the error may have left wrong
        if self.errors >= MAX_ERRORS:
            self._switch_off()

    def _switch_off(self) -> None:
        self.off = True
        self.phases.thread = _NO_THREAD
        self.step_due = 0
        self.client.close()

    def on_eval(self, module: Any) -> None:
        """Record a call of module.eval(): until the next step the program may be evaluating."""
        self._evaluated = weakref.ref(module)
        self.step_due = self.batch_due = 0

    def is_training_batch(self, iterator: Any) -> bool:
        """Return whether the program probably trains on a batch of this iterator, and record its loader."""
        module = self._evaluated() if self._evaluated is not None else None
        # Programs call eval() on frozen parts of a model before the step: only a module still in that mode counts.
        training = torch.is_grad_enabled() and (module is None or module.training)
        if training and (self._loader is None or self._loader() is not iterator):
            self._loader = weakref.ref(iterator)
            self.state.set_facts(**facts.loader(iterator))
        if self._evaluated is None:
            self.batch_due = self.publish_due
        return training

    def on_batch(self, training: bool, now: int) -> None:
        """Handle a counted batch that is not for training, or that came at `batch_due` or later."""
        if not training:
            self.step_due = 0  # the next step sets the phase back to training
        if now >= self.publish_due:
            self.publish(now)

    def on_foreign_batch(self, start: int) -> None:
        """Count a batch of another thread, or of a nested loader. The wait for it began at `start`."""
        if self.off:
            return
        try:
            now = perf_counter_ns()
            self.recorder.batches.append((start, now, torch.is_grad_enabled()))
            if now >= self.publish_due:
                self.publish(now)
        except Exception:
            self.count_error()

    def on_step(self, optimizer: Any, now: int) -> None:
        """Count a step of an optimizer that is new, or that came at `step_due` or later."""
        if self.off:
            return
        try:
            self.recorder.steps.append((id(optimizer), now))
            if id(optimizer) not in self.state.stepping:
                self.state.add_stepping_optimizer(optimizer)
                if self._sequence < 2:
                    self.publish_soon()  # the first step follows the first batch closely and has the parameters
            self._set_training(now)
        except Exception:
            self.count_error()

    def _set_training(self, now: int) -> None:
        """Set the phase after a step: whatever the program did before, it trains."""
        self._evaluated = None
        if self.phases.on_training_thread():
            self.phases.set_base(phases.TRAINING, now)
            self.step_due = self.publish_due
        if now >= self.publish_due:
            self.publish(now)

    def tick(self) -> None:
        """Count a step that the program reports itself."""
        if self.off:
            return
        try:
            now = perf_counter_ns()
            self.recorder.ticks.append(now)
            self._set_training(now)
        except Exception:
            self.count_error()

    def enter_named_phase(self, name: str) -> bool:
        """Enter a phase by the program's name for it; return whether the caller has a phase to leave."""
        return self.enter_phase(phases.phase_index(name))

    def enter_phase(self, phase: int) -> bool:
        """Enter a phase on the training thread; return whether the caller has a phase to leave."""
        if self.off or not self.phases.on_training_thread():
            return False
        try:
            self.phases.enter(phase, perf_counter_ns())
        except Exception:
            self.count_error()
            return False
        return True

    def leave_phase(self) -> None:
        """Leave the innermost phase."""
        try:
            self.phases.leave(perf_counter_ns())
        except Exception:
            self.count_error()

    def restore_phase(self, phase: int) -> None:
        """Return to a phase after a wait that brought no batch."""
        try:
            self.phases.switch(phase, perf_counter_ns())
        except Exception:
            self.count_error()

    def publish(self, now: int) -> None:
        """Send a snapshot if a daemon is connected. Returns at once while another thread publishes."""
        if not self._publishing.acquire(blocking=False):
            return
        try:
            self.publish_due = now + NS_PER_SECOND
            if self.step_due:
                self.step_due = self.publish_due
            self.batch_due = 0  # the next batch shows whether it is from another loader
            self.state.update()
            for _ in range(2):  # the second time to a new daemon in the place of one that has ended
                if not self.client.connect(now, self._greeting) or self.client.send(now, self._snapshot(now)):
                    break
        finally:
            self._publishing.release()

    def end_session(self) -> None:
        """Send the last snapshot and the reason for the end. Registered with atexit."""
        try:
            if self.client.connected and not self.off:
                now = perf_counter_ns()
                self.publish(now)
                self.client.send(now, wire.encode(wire.Bye(self.session, self._sequence + 1, facts.end_reason())))
            self.client.close()
        except Exception:
            pass

    def _greeting(self) -> tuple[bytes, int | None]:
        """Return the datagram of hello, and the descriptor of the shared record."""
        record = self.phases.record
        if self._hello is None:
            self._hello = facts.hello(self.session)
            record.open()
            self.phases.write(*self.recorder.counts())
        return wire.encode(self._hello), record.descriptor

    def _snapshot(self, now: int) -> bytes:
        snapshot = self.state.snapshot(self.session, self._sequence + 1, self.errors, now)
        self._sequence += 1
        return wire.encode(snapshot)
