"""The observer of the training: it takes the events of the listeners and publishes snapshots. Nothing here initialises
CUDA or waits for it, and work is done at most once a second, on the thread that steps or loads.
"""

from __future__ import annotations

import functools
import sys
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from gpugauge.hook.answers import answer, is_distributed
from gpugauge.hook.client import Client
from gpugauge.hook.clock import CLOCKS, NS_PER_SECOND
from gpugauge.hook.loaders import CountedIterable, CountedIterator, CountedSizedIterator
from gpugauge.hook.process import hello, loader
from gpugauge.hook.purposes import Run
from gpugauge.hook.record import AT_ONCE, EVALUATING, LOADING, STARTING, TRAINING, phase_index
from gpugauge.hook.recorder import DEEPSPEED, TICK, inside_another_step
from gpugauge.hook.state import TrainingState
from gpugauge.hook.work import Reader, reader, unknown_size
from gpugauge.hook.wrappers import Listener, after, around, attempt, raised_by_handler
from gpugauge.wire import messages as wire
from gpugauge.wire.record import STEPS

if TYPE_CHECKING:
    from gpugauge.hook.flopcount import StepCounter

MAX_ERRORS = 10
_NO_THREAD = -1  # not the identity of any thread


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method with its errors counted, which returns None after one, and when the hook is off."""

    @functools.wraps(method)
    def guarded(self: Observer, *args: Any) -> Any:
        try:
            return None if self.off else method(self, *args)
        except Exception:
            self.count_error()
        return None

    return guarded


class Observer:
    """Events of the training, and the session with the daemon. MAX_ERRORS `errors` switch it `off`. The listeners count
    every step and batch themselves. They call on_step() and on_batch() only from `step_due` and `batch_due` of the
    record on; the observer publishes from `publish_due` on. All three are perf_counter_ns.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self._clock = CLOCKS[0]
        self.state = TrainingState()
        self.record, self.recorder, self.purposes = self.state.record, self.state.recorder, self.state.purposes
        autograd = getattr(torch, "autograd", None)
        self._effects = (
            Listener(autograd, "backward", after(self, lambda _: self.on_backward())),
            Listener(autograd, "grad", around(self, self._on_grad)),
        )
        kind = getattr(getattr(torch, "nn", None), "Module", None)
        # Only from an evaluation on: train() runs for each part of a model, in some programs before each step.
        self._training = Listener(kind, "train", after(self, self.on_train))
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
        self._session, self.sequence = uuid.uuid4().hex, 0  # of snapshots
        self._hello: wire.Hello | None = None
        self.publish_soon()
        self._publishing = threading.Lock()
        self._loader: Callable[[], Any] = lambda: None  # later a weak reference to an iterator
        # By thread, what reads the batch that it takes elsewhere, known by one taken inside; see take_elsewhere().
        self._elsewhere: dict[int, Reader] = {}
        # To the iterator of a DataLoader that was read last inside another wait.
        self.inner: Callable[[], Any] = lambda: None
        self._listen_to_effects()
        self.declared = self.purposes.start()  # the waits that the program declares
        if self.off:
            self._switch_off()

    def publish_soon(self) -> None:
        """Publish with the next step or batch."""
        self.record.step_due = self.record.batch_due = self.publish_due = AT_ONCE

    def count_error(self) -> None:
        """Count the error of the hook that is being handled. MAX_ERRORS of them switch the hook off."""
        if raised_by_handler(sys.exc_info()[1]):
            raise  # noqa: PLE0704 - the program's own error; this is called in an except clause
        self.errors += 1
        self.record.step_due = AT_ONCE  # the next step corrects the phase, which the error may have left wrong
        if self.errors >= MAX_ERRORS:
            self._switch_off()

    def _switch_off(self) -> None:
        self.off = True
        self.record.thread = _NO_THREAD
        self.record.step_due = AT_ONCE
        self.client.close()

    def on_model(self, model: Any) -> None:
        """Record a model of the program."""
        self.state.models.add(model)
        self.begin()

    def on_eval(self, module: Any) -> None:
        """Record a call of module.eval(): until the next step the program may be evaluating."""
        trained = self.state.trains(module)
        if self._trains_in_eval_mode() is module or (self.state.stepping and not trained):
            return
        self._interrupt()
        self.evaluated, self.purposes.left_in_eval_mode = weakref.ref(module), False
        self._training.listen()
        self.record.step_due = self.record.batch_due = AT_ONCE
        if trained:
            self._change_base(TRAINING, EVALUATING)

    def on_train(self, module: Any) -> None:
        """End the evaluation of a module by module.train()."""
        if self.evaluated is None:
            self._training.ignore()
        elif self.evaluated() is module and getattr(module, "training", False):
            self.evaluated = None
            if self.record.on_training_thread():
                self.purposes.resume(self._clock())
            self._change_base(EVALUATING, TRAINING)

    def _change_base(self, before: int, after: int) -> None:
        if self.record.base == before and self.record.on_training_thread():
            self.record.set_base(after, self._clock())

    @_guarded
    def begin(self) -> None:
        """Open the session before the first step or batch: the program has a model, an optimizer or a loader."""
        now = self._clock()
        if not (self.sequence or now < self.publish_due) and not _loads():
            self.publish(now)

    def take_iterator(self, iterate: Callable[[Any], Any], loader: Any) -> Any:
        """Return an iterator of a loader, which may start processes. The program waits for it."""
        begun = self.begin_wait()
        if begun is None:
            return self.take_elsewhere(iterate, loader, brings=False)
        try:
            return iterate(loader)
        finally:
            self.end_wait(*begun)

    def declare(self, iterable: Any) -> Any:
        """Return an iterable that the program declares as a loader, with its batches counted."""
        return self.iterate(iter, iterable) if hasattr(iterable, "__next__") else CountedIterable(self, iterable)

    def iterate(self, iterate: Callable[[Any], Any], loader: Any) -> Any:
        """Return an iterator of a loader that is not torch's, whose batches are counted."""
        iterator = self.take_iterator(iterate, loader)
        if hasattr(iterator, "_num_workers"):
            return iterator  # the iterators of DataLoader are counted themselves
        return (CountedSizedIterator if hasattr(iterator, "__len__") else CountedIterator)(self, iterator)

    @_guarded
    def begin_wait(self) -> tuple[int, int] | None:
        """Begin a wait for a batch; return the phase before it and the time. None if it does not count."""
        before = self.record.phase
        inside = before == LOADING and not self.record.declared
        if inside or not self.record.on_training_thread():
            return None
        now = self._clock()
        self.record.switch(LOADING, now)
        self.begin()
        return before, now

    @_guarded
    def end_wait(self, before: int, start: int, iterator: Any = None) -> None:
        """End a wait that brought no batch: for an iterator, or for the end of the given one."""
        now = self._clock()
        self.record.switch(before, now)
        if iterator is not None:
            self._interrupt()
            self.state.count_unreported_step(now)
        if before != LOADING:  # a wait that the program declares covers this one
            run = self._run_of(iterator) if iterator is not None else None
            if run is not None:
                self.purposes.end(run, start, now)
            self.purposes.book(run, now - start, self.record.named)
        self.record.batch_due = AT_ONCE  # the next batch shows the phase

    def end_wait_with_batch(self, before: int, start: int, now: int | None, iterator: Any, batch: Any) -> None:
        """End a wait for a batch which does not take the short way of hot.py; `now` is the time if that is known."""
        try:
            now = self._clock() if now is None else now
            run, record = self._run_of(iterator), self.record
            self._arrive(run, start, now)
            phase = record.end_wait(self.purposes.phase(run), before, now)
            waited = 0 if before == LOADING else now - start
            self.recorder.add_batch(waited, now)
            self.purposes.book(run, waited, record.named, batch, self._reader(run, iterator, batch))
            if phase == TRAINING:
                self.state.take_batch(batch)
            else:
                self._interrupt()
            if run.purpose == TRAINING:
                self._train_on(run, iterator)
            if phase != TRAINING or self.purposes.pending:
                # The next step sets the phase back to training, and decides.
                record.step_due = record.batch_due = AT_ONCE
            elif self.evaluated is None and not self.state.may_step_unreported:
                record.batch_due = self.publish_due
            if now >= self.publish_due:
                self.publish(now)
        except Exception:
            self.count_error()

    def _run_of(self, iterator: Any) -> Run:
        run: Run | None = iterator.gpugauge_run
        if run is None:
            run = self.purposes.start(iterator)
            object.__setattr__(iterator, "gpugauge_run", run)
            self._listen_to_effects()
        return run

    def _arrive(self, run: Run, start: int, now: int) -> None:
        """Note a batch of a run, or a wait that the program declares."""
        without_grad, module = not torch.is_grad_enabled(), self._in_eval_mode()
        expected = run.purpose == TRAINING or not (without_grad or module)
        if self.state.may_step_unreported:
            self.state.count_unreported_step(now, training=expected)
        self.purposes.take(run, start, now, module, without_grad)

    def _in_eval_mode(self) -> bool:
        """Return whether the model that is trained is in evaluation mode. Frozen parts of it can be so all the time."""
        module = self.evaluated() if self.evaluated is not None else None
        return module is not None and not module.training and self.state.trains(module)

    def _reader(self, run: Run, iterator: Any, batch: Any) -> Reader:
        """Return the reader of the sizes of batches; for an iterator around a DataLoader that of its own."""
        inner = None if _is_torchs(iterator) else self.inner()
        if inner is not None:
            of = self._run_of(inner)
            run.inner, run.read, run.loader = self.inner, of.read, of.loader
        if run.read is None:
            work = run.work if run.purpose is None else self.recorder.work
            run.read = reader(iterator, batch, work) if _is_torchs(iterator) else unknown_size
        return run.read

    def _train_on(self, run: Run, iterator: Any) -> None:
        """Record the loader of an iterator whose batches are for the training, which take the short way from now on."""
        if _is_torchs(iterator):
            iterator.gpugauge_size = run.read
        else:
            iterator = run.inner()
        if iterator is not None and self._loader() is not iterator:
            self._loader = weakref.ref(iterator)
            self.state.set_facts(**loader(iterator))
            self.state.loads.train(iterator)

    def take_elsewhere(self, take: Callable[[Any], Any], source: Any, brings: bool = True) -> Any:
        """Return the next batch, or an iterator, on a thread that does not train or inside another wait."""
        thread, waiting = threading.get_ident(), self._elsewhere
        inside = thread in waiting
        waiting.setdefault(thread, unknown_size)
        start, found, brought = self._clock(), None, False
        try:
            found, brought = take(source), brings
        finally:
            self._took(start, source, found, brought, inside)
            if not inside:
                waiting.pop(thread, None)
        return found

    @_guarded
    def _took(self, start: int, source: Any, batch: Any, brought: bool, inside: bool) -> None:
        now = self._clock()
        if not brought:
            self.state.count_unreported_step(now)  # a step may have come before
        if self.record.on_training_thread():
            if brought and _is_torchs(source):  # for the iterator around it
                self.inner = weakref.ref(source)
                self._reader(self._run_of(source), source, batch)
            return
        if brought and _is_torchs(source):
            self._elsewhere[threading.get_ident()] = self._reader(self._run_of(source), source, batch)
        if inside:
            return
        phase = EVALUATING if self._in_eval_mode() or not torch.is_grad_enabled() else TRAINING
        taken = self.purposes.elsewhere(threading.get_ident(), phase)
        taken.take_elsewhere(start, now, brought)
        if not brought:
            return
        self.state.count_unreported_step(now, training=phase == TRAINING)
        self._elsewhere[threading.get_ident()](batch, taken.work)
        if self.record.base == STARTING and (phase == TRAINING or self.purposes.blind):
            self.record.set_base(phase, now)
        if now >= self.publish_due:
            self.publish(now)

    def _listen_to_effects(self) -> None:
        for listener in self._effects:
            listener.listen()

    def _on_grad(self, _: Any = None, inputs: Any = (), *__: Any, **___: Any) -> Callable[[], Any] | None:
        """Take gradients of parameters as a backward pass: those of data are of forces, attacks and penalties. An
        iterator is that of model.parameters(), and must not be read here.
        """
        each = inputs if isinstance(inputs, (list, tuple)) else (inputs,)
        kinds = torch.nn.Parameter, Iterator
        return self.on_backward if any(isinstance(part, kinds) for part in each) else None

    @_guarded
    def on_backward(self) -> None:
        """Handle the end of a backward pass."""
        now, trains = self._clock(), self.record.on_training_thread()
        self.state.backward_passes += 1
        if trains and self.purposes.fetches_ahead:
            self.state.count_unreported_step(now, training=True)
        if not trains and self.recorder.source is None:
            trains = self.state.follow_caller()
        # Some evaluations make backward passes: attacks, forces. A step would show that they train.
        if trains and (self.purposes.blind or not self._in_eval_mode()):
            self.purposes.effect()
            if self.record.base != TRAINING:
                self.record.set_base(TRAINING, now)
        if now >= self.publish_due:
            self.publish(now)

    def on_step(self, optimizer: Any, now: int) -> None:
        """Count a step of an optimizer that is not the sole one, or that came at `step_due` or later."""
        if self.off:
            return
        try:
            if inside_another_step():
                return
            if id(optimizer) not in self.state.stepping:
                self.state.add_stepping_optimizer(optimizer)
                if self.recorder.source is None or self.sequence < 2:
                    self.publish_soon()  # the first step follows the first batch closely and has the parameters
            self._step(now, id(optimizer), functools.partial(self.recorder.optimizer_step, id(optimizer)))
            self.state.find_sole_optimizer(optimizer)
        except Exception:
            self.count_error()

    @_guarded
    def tick(self, samples: Any = None, tokens: Any = None) -> None:
        """Count a step that the program reports itself, and what it reports with it."""
        now = self._clock()
        self.state.add_work(samples, tokens)
        self.record.sole = None
        if self.recorder.source != TICK:
            self.state.follow_caller()
        self._step(now, TICK, self.recorder.tick)

    @_guarded
    def engine_step(self) -> None:
        """Count a step of an engine that steps its optimizers itself."""
        self._step(self._clock(), DEEPSPEED, functools.partial(self.recorder.add_steps, 1))

    def _step(self, now: int, point: int | str, count: Callable[[int], object]) -> None:
        """Count a step of `point`, and set the phase: whatever the program did before, it trains."""
        if self.record.on_training_thread():
            self.purposes.effect()
        source = self.recorder.source
        count(now)
        if self.recorder.source != source:
            self.publish_soon()  # the program may do something else for long
        if self.evaluated is not None:
            module, self.evaluated = self.evaluated(), None
            if module is not None and not module.training and self.state.trains(module):
                self._trains_in_eval_mode = weakref.ref(module)
        if self.record.on_training_thread():
            self.record.set_base(TRAINING, now)
            self.record.step_due = self.publish_due
            self.state.sample_memory(point, now)
        if now >= self.publish_due:
            self.publish(now)
        if self.step_counter is not None:
            self.step_counter.after_step()

    def _interrupt(self) -> None:
        """End the count of the FLOPs of a step: something else than a training step follows."""
        if self.step_counter is not None:
            self.step_counter.interrupt()

    @_guarded
    def enter_phase(self, phase: int | str) -> int | None:
        """Enter a phase by its index or its name; return the index, None if the caller has no phase to leave."""
        if not self.record.on_training_thread():
            return None
        found = phase_index(phase) if isinstance(phase, str) else phase
        self._interrupt()
        self.record.enter(found, self._clock())
        return found

    @_guarded
    def leave_phase(self, phase: int) -> None:
        """Leave a phase that was entered."""
        now, record = self._clock(), self.record
        start, declared = record.since, record.phase == phase == LOADING
        record.leave(phase, now)
        if declared:
            self._arrive(self.declared, start, now)
            self.purposes.book(self.declared, now - start, record.named)
            record.step_due = AT_ONCE

    def publish(self, now: int) -> None:
        """Send a snapshot if a daemon is connected. Returns at once while another thread publishes."""
        if not self._publishing.acquire(blocking=False):
            return
        try:
            self.publish_due = now + NS_PER_SECOND
            if self.record.step_due:
                self.record.step_due = AT_ONCE if self.state.memory_is_due(now) else self.publish_due
            self.record.batch_due = AT_ONCE  # the next batch shows whether it is from another loader
            stepping = self.recorder.source is not None and not self.state.may_step_unreported
            if stepping and not self.purposes.pending:
                for listener in self._effects:
                    listener.ignore()
            self.state.update(now)
            for _ in range(2):  # the second time to a new daemon in the place of one that has ended
                if not self.client.connect(now, self._greeting) or self.client.send(now, self._snapshot(now)):
                    break
        finally:
            self._publishing.release()

    def _greeting(self) -> tuple[bytes, int | None]:
        """Return the datagram of hello, and the descriptor of the shared record."""
        if self._hello is None:
            self._hello = hello(self._session)
            self.record.open()
        return wire.encode(self._hello), self.record.descriptor

    def _snapshot(self, now: int) -> bytes:
        answers = attempt(False, is_distributed) and self.client.listen(self._answer)
        snapshot = self.state.snapshot(self._session, self.sequence + 1, self.errors, now, answers=answers)
        self.sequence += 1
        return wire.encode(snapshot)

    def _answer(self) -> bytes:
        """Return the datagram with the answer to a question. Runs on a thread of its own."""
        found = answer(self._session, self.sequence, self.record.thread)
        self.state.local_work.note(self.record.words[STEPS], waits=found.waits_in is not None)
        return wire.encode(found)

    @_guarded
    def end_session(self, reason: str) -> None:
        """Send the last snapshot and the reason for the end of the process."""
        if self.client.connected:
            now = self._clock()
            self.state.count_unreported_step(now)  # the last one of a loop, on whatever thread
            self.purposes.close()
            self.publish(now)
            self.client.send(now, wire.encode(wire.Bye(self._session, self.sequence + 1, reason)))

    def leave(self) -> None:
        """Report nothing more. The connection stays open until the process has ended, and its exit status is known."""
        self.client.leave()
        self._switch_off()


def _is_torchs(iterator: Any) -> bool:
    """Return whether this is an iterator of DataLoader, not one that the hook has put around another iterator."""
    return hasattr(type(iterator), "gpugauge_size")


def _loads() -> bool:
    """Return whether this is the process of a loader."""
    return getattr(sys.modules.get("torch.utils.data"), "get_worker_info", lambda: None)() is not None
