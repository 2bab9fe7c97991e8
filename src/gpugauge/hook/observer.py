"""The observer of the training: it takes the events of the listeners and publishes snapshots. Loaded after torch.

The rules: nothing here initialises CUDA or waits for it, no exception of the hook reaches the program, and work is done
at most once a second, on the thread that steps or loads.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from gpugauge.hook import elsewhere
from gpugauge.hook.client import Client, Publisher
from gpugauge.hook.counts import phases
from gpugauge.hook.counts.clock import CLOCKS, NS_PER_SECOND
from gpugauge.hook.counts.handlers import raised_by_handler
from gpugauge.hook.counts.purposes import Run
from gpugauge.hook.counts.recorder import DEEPSPEED, TICK, inside_another_step
from gpugauge.hook.counts.sizes import Reader, reader, unknown_size
from gpugauge.hook.state import TrainingState
from gpugauge.hook.wrappers import Backward

if TYPE_CHECKING:
    from gpugauge.hook.counts.flopcount import StepCounter

MAX_ERRORS = 10
_NO_THREAD = -1  # not the identity of any thread


class Observer:
    """Events of the training, and the session with the daemon. MAX_ERRORS `errors` switch it `off`.

    The listeners count every step and batch themselves. They call on_step() and on_batch() only from `step_due` and
    `batch_due` of `live` on; the observer publishes from `publish_due` on. All three are perf_counter_ns.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self._clock = CLOCKS[0]
        self.state = TrainingState()
        self.recorder, self.phases, self.live = self.state.recorder, self.state.phases, self.state.live
        self.purposes, self.backward = self.state.purposes, Backward(self.on_backward)
        self.errors = 0
        self.off = False
        self.evaluated: weakref.ref[Any] | None = None  # the module of the last eval() that counts
        self._trains_in_eval_mode: Callable[[], Any] = lambda: None  # later a weak reference
        self.step_counter: StepCounter | None = None  # only if the environment asks for it
        self.reset()

    def reset(self) -> None:
        """Begin a session: at the start, and in a forked child, whose parent keeps its own session."""
        self.client.close()
        self.state.clear()
        self.publisher = Publisher(self.client, self.state)
        self.publish_soon()
        self._publishing = threading.Lock()
        self._loader: Callable[[], Any] = lambda: None  # later a weak reference to an iterator
        self.waiting_elsewhere: set[int] = set()  # threads that do not train and wait for a batch
        # Of the DataLoader that was read last inside another wait: a weak reference to the iterator, and its reader.
        self.inner: weakref.ref[Any] | None = None
        self.inner_reader: Reader | None = None
        self.backward.listen()
        self.declared = self.purposes.start()  # the waits that the program declares
        if self.off:
            self._switch_off()

    def publish_soon(self) -> None:
        """Publish with the next step or batch."""
        self.live.step_due = self.live.batch_due = self.publish_due = 0

    def count_error(self) -> None:
        """Count the error of the hook that is being handled. MAX_ERRORS of them switch the hook off."""
        if raised_by_handler(sys.exc_info()[1]):
            raise  # noqa: PLE0704 - the program's own error; this is called in an except clause
        self.errors += 1
        self.live.step_due = 0  # the next step corrects the phase, which the error may have left wrong
        if self.errors >= MAX_ERRORS:
            self._switch_off()

    def _switch_off(self) -> None:
        self.off = True
        self.live.thread = _NO_THREAD
        self.live.step_due = 0
        self.client.close()

    def on_eval(self, module: Any) -> None:
        """Record a call of module.eval(): until the next step the program may be evaluating."""
        trained = self.state.trains(module)
        if self._trains_in_eval_mode() is module or (self.state.stepping and not trained):
            return
        self._interrupt()
        self.evaluated = weakref.ref(module)
        self.live.step_due = self.live.batch_due = 0
        if trained and self.phases.on_training_thread() and self.live.base == phases.TRAINING:
            self.phases.set_base(phases.EVALUATING, self._clock())

    def on_train(self, module: Any) -> None:
        """End the evaluation of a module by module.train()."""
        if self.evaluated is not None and self.evaluated() is module and getattr(module, "training", False):
            self.evaluated = None
            if self.phases.on_training_thread() and self.live.base == phases.EVALUATING:
                self.phases.set_base(phases.TRAINING, self._clock())

    def take_elsewhere(self, take: Callable[[Any], Any], iterator: Any) -> Any:
        """Return the next batch of an iterator on a thread that does not train, or inside another wait."""
        return elsewhere.take(self, take, iterator)

    def begin(self) -> None:
        """Open the session before the first step or batch: the program has a model, an optimizer or a loader."""
        try:
            now = self._clock()
            if not (self.off or self.publisher.sequence or now < self.publish_due) and not _loads():
                self.publish(now)
        except Exception:
            self.count_error()

    def begin_wait(self) -> tuple[int, int] | None:
        """Begin a wait for a batch; return the phase before it and the time. None if it does not count."""
        before = self.live.phase
        inside = before == phases.LOADING and not self.phases.declared
        if self.off or inside or not self.phases.on_training_thread():
            return None
        try:
            now = self._clock()
            self.phases.switch(phases.LOADING, now)
        except Exception:
            self.count_error()
            return None
        self.begin()
        return before, now

    def end_wait(self, before: int, start: int, iterator: Any = None) -> None:
        """End a wait that brought no batch: for an iterator, or for the end of the given one."""
        try:
            now = self._clock()
            self.phases.switch(before, now)
            if iterator is not None:
                self._interrupt()
                self.state.count_unreported_step(now)
            if before != phases.LOADING:  # a wait that the program declares covers this one
                run = self._run_of(iterator) if iterator is not None else None
                if run is not None:
                    self.purposes.end(run, start, now)
                self._book(run, now - start)
            self.live.batch_due = 0  # the next batch shows the phase
        except Exception:
            self.count_error()

    def end_wait_with_batch(self, before: int, start: int, now: int | None, iterator: Any, batch: Any) -> None:
        """End a wait for a batch which does not take the short way of hot.py; `now` is the time if that is known."""
        try:
            now = self._clock() if now is None else now
            run = self._run_of(iterator)
            self._arrive(run, start, now)
            phase = self.phases.end_wait(self.purposes.phase(run), before, now)
            waited = 0 if before == phases.LOADING else now - start
            self.recorder.add_batch(waited, now)
            run.read = self._reader(run, iterator, batch)
            self._book(run, waited, batch, run.read)
            if phase == phases.TRAINING:
                self.state.take_batch(batch)
            else:
                self._interrupt()
            if run.purpose == phases.TRAINING:
                self._train_on(run, iterator)
            if phase != phases.TRAINING or self.purposes.pending:
                # The next step sets the phase back to training, and decides.
                self.live.step_due = self.live.batch_due = 0
            elif self.evaluated is None and not self.state.may_step_unreported:
                self.live.batch_due = self.publish_due
            if now >= self.publish_due:
                self.publish(now)
        except Exception:
            self.count_error()

    def _run_of(self, iterator: Any) -> Run:
        run: Run | None = iterator.gpugauge_run
        if run is None:
            run = self.purposes.start()
            object.__setattr__(iterator, "gpugauge_run", run)
            self.backward.listen()
        return run

    def _arrive(self, run: Run, start: int, now: int) -> None:
        """Note a batch of a run, or a wait that the program declares."""
        without_grad, module = not torch.is_grad_enabled(), self._in_eval_mode()
        expected = run.purpose == phases.TRAINING or not (without_grad or module)
        if self.state.may_step_unreported:
            self.state.count_unreported_step(now, training=expected)
        self.purposes.take(run, start, now, module, without_grad)

    def _in_eval_mode(self) -> bool:
        """Return whether the model that is trained is in evaluation mode. Frozen parts of it can be so all the time."""
        module = self.evaluated() if self.evaluated is not None else None
        return module is not None and not module.training and self.state.trains(module)

    def _reader(self, run: Run, iterator: Any, batch: Any) -> Reader:
        """Return the reader of the sizes of batches. Those of an iterator around a DataLoader are made of its own."""
        if not hasattr(type(iterator), "gpugauge_size"):
            if self.inner is not None:
                run.inner = self.inner
            return self.inner_reader or run.read or unknown_size
        return run.read or reader(iterator, batch, run.work if run.purpose is None else self.recorder.work)

    def _train_on(self, run: Run, iterator: Any) -> None:
        """Record the loader of an iterator whose batches are for the training, which take the short way from now on."""
        if hasattr(type(iterator), "gpugauge_size"):
            iterator.gpugauge_size = run.read
        else:
            iterator = run.inner()
        if iterator is not None and self._loader() is not iterator:
            self._loader = weakref.ref(iterator)
            self.state.use_loader(iterator)

    def _book(self, run: Run | None, waited: int, batch: Any = None, read: Reader | None = None) -> None:
        """Book a wait on a run, or on a phase that the program has entered. Without a run the next wait shows it."""
        named = self.phases.named
        if named is not None:
            self.recorder.add_wait(waited, named)
        elif run is not None:
            self.purposes.book(run, waited, batch, read)
        else:
            self.recorder.add_wait(waited, None)

    def _effect(self) -> None:
        """Decide what the batches were for that are followed by a step of the calling thread."""
        if self.phases.on_training_thread():
            self.purposes.effect()

    def on_backward(self) -> None:
        """Handle the end of a backward pass."""
        if self.off:
            return
        try:
            now, trains = self._clock(), self.phases.on_training_thread()
            self.state.backward_passes += 1
            if not trains and self.recorder.source is None:
                trains = self.state.follow_caller()
            # Some evaluations make backward passes: attacks, forces. A step would show that they train.
            if trains and not self._in_eval_mode():
                self.purposes.effect()
                if self.live.base != phases.TRAINING:
                    self.phases.set_base(phases.TRAINING, now)
            if now >= self.publish_due:
                self.publish(now)
        except Exception:
            self.count_error()

    def on_step(self, optimizer: Any, now: int) -> None:
        """Count a step of an optimizer that is not the sole one, or that came at `step_due` or later."""
        if self.off:
            return
        try:
            if inside_another_step():
                return
            if id(optimizer) not in self.state.stepping:
                self.state.add_stepping_optimizer(optimizer)
                if self.recorder.source is None or self.publisher.sequence < 2:
                    self.publish_soon()  # the first step follows the first batch closely and has the parameters
            self._effect()
            self.recorder.optimizer_step(id(optimizer), now)
            self.state.find_sole_optimizer(optimizer)
            self._set_training(now, id(optimizer))
        except Exception:
            self.count_error()

    def _set_training(self, now: int, point: int | str) -> None:
        """Set the phase after a step: whatever the program did before, it trains. `point` is what has stepped."""
        if self.evaluated is not None:
            module, self.evaluated = self.evaluated(), None
            if module is not None and not module.training and self.state.trains(module):
                self._trains_in_eval_mode = weakref.ref(module)
        if self.phases.on_training_thread():
            self.phases.set_base(phases.TRAINING, now)
            self.live.step_due = self.publish_due
            self.state.sample_memory(point, now)
        if now >= self.publish_due:
            self.publish(now)
        if self.step_counter is not None:
            self.step_counter.after_step()

    def _interrupt(self) -> None:
        """End the count of the FLOPs of a step: something else than a training step follows."""
        if self.step_counter is not None:
            self.step_counter.interrupt()

    def tick(self, samples: Any = None, tokens: Any = None) -> None:
        """Count a step that the program reports itself, and what it reports with it."""
        if self.off:
            return
        try:
            now = self._clock()
            self.state.add_work(samples, tokens)
            self.live.sole = None
            if self.recorder.source != TICK:
                self.state.follow_caller()
            self._effect()
            self.recorder.tick(now)
            self._set_training(now, TICK)
        except Exception:
            self.count_error()

    def engine_step(self) -> None:
        """Count a step of an engine that steps its optimizers itself."""
        try:
            now = self._clock()
            self._effect()
            self.recorder.add_steps(1, now)
            self._set_training(now, DEEPSPEED)
        except Exception:
            self.count_error()

    def enter_named_phase(self, name: str) -> int | None:
        """Enter a phase by the program's name for it; return the phase that the caller has to leave, None for none."""
        phase = phases.phase_index(name)
        return phase if self.enter_phase(phase) else None

    def enter_phase(self, phase: int) -> bool:
        """Enter a phase on the training thread; return whether the caller has a phase to leave."""
        if self.off or not self.phases.on_training_thread():
            return False
        try:
            self._interrupt()
            self.phases.enter(phase, self._clock())
        except Exception:
            self.count_error()
            return False
        return True

    def leave_phase(self, phase: int) -> None:
        """Leave a phase that was entered."""
        try:
            now = self._clock()
            start, declared = self.live.since, self.live.phase == phase == phases.LOADING
            self.phases.leave(phase, now)
            if declared:
                self._arrive(self.declared, start, now)
                self._book(self.declared, now - start)
                self.live.step_due = 0
        except Exception:
            self.count_error()

    def publish(self, now: int) -> None:
        """Send a snapshot if a daemon is connected. Returns at once while another thread publishes."""
        if not self._publishing.acquire(blocking=False):
            return
        try:
            self.publish_due = now + NS_PER_SECOND
            if self.live.step_due:
                self.live.step_due = 0 if self.state.memory_is_due(now) else self.publish_due
            self.live.batch_due = 0  # the next batch shows whether it is from another loader
            if self.recorder.source is not None and not self.purposes.pending:
                self.backward.ignore()
            self.state.update(now)
            self.publisher.publish(now, self.errors)
        finally:
            self._publishing.release()

    def end_session(self, reason: str) -> None:
        """Send the last snapshot and the reason for the end of the process."""
        try:
            if self.client.connected and not self.off:
                now = self._clock()
                self.purposes.close()
                self.publish(now)
                self.publisher.send_end(now, reason)
        except Exception:
            pass

    def leave(self) -> None:
        """Report nothing more. The connection stays open until the process has ended, and its exit status is known."""
        self.client.leave()
        self._switch_off()


def _loads() -> bool:
    """Return whether this is the process of a loader."""
    find = getattr(sys.modules.get("torch.utils.data"), "get_worker_info", None)
    return find is not None and find() is not None
