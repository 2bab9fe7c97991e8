"""Listens to torch's optimizers and loaders. Loaded only after the program itself has imported torch.

The rules: nothing here initialises CUDA or waits for it, no exception of ours leaves, and work is done at most once a
second, on the thread that steps or loads.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import uuid
import weakref
from time import perf_counter_ns
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from gpugauge import wire
from gpugauge.hook import facts
from gpugauge.hook.client import SECOND, Client
from gpugauge.hook.recorder import Recorder

MAX_ERRORS = 10
RESCAN = 60 * SECOND

# Since torch 2.3; what 2.1 has instead is true in every kind of compilation, which serves as well.
_is_compiling = getattr(torch.compiler, "is_dynamo_compiling", None) or torch.compiler.is_compiling


class Observer:
    """The state of this process. `due` is when to publish next, in perf_counter_ns; MAX_ERRORS `errors` end it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.recorder = Recorder()
        self.optimizers: dict[int, weakref.ref[Any]] = {}
        self.errors = 0
        self.reset()

    def reset(self) -> None:
        """Begin a session: at the start, and in a forked child, whose parent keeps its own."""
        self.client.close()
        self.recorder.clear()
        self.session = uuid.uuid4().hex
        self.due = 0
        self._sequence = 0
        self._busy = threading.Lock()
        self._hello: wire.Hello | None = None
        self._parameters: tuple[wire.Parameters, ...] = ()
        self._rescan = 0

    @property
    def off(self) -> bool:
        """Whether too much has gone wrong to go on."""
        return self.errors >= MAX_ERRORS

    def failed(self) -> None:
        """Count an error of ours; too many switch the hook off and end the session."""
        self.errors += 1
        if self.off:
            self.client.close()

    def know(self, optimizer: Any) -> None:
        """Remember an optimizer, without keeping it alive, and look at its parameters with the next publication."""
        key = id(optimizer)
        self.optimizers[key] = weakref.ref(optimizer, lambda _: self.optimizers.pop(key, None))
        self._rescan = 0
        if self._sequence < 2:
            self.due = 0  # the first step follows the first batch closely, and tells where the model lives

    def publish(self, now: int) -> None:
        """Send what has been counted, if a daemon is there. A thread that comes meanwhile leaves it to the first."""
        if not self._busy.acquire(blocking=False):
            return
        try:
            self.due = now + SECOND
            self.recorder.drain()
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

    def _greeting(self) -> bytes:
        if self._hello is None:
            self._hello = facts.hello(self.session)
        return wire.encode(self._hello)

    def _snap(self, now: int) -> bytes:
        if now >= self._rescan:
            self._rescan = now + RESCAN
            # A copy: a garbage collection may drop an optimizer meanwhile.
            self._parameters = facts.parameters([optimizer() for optimizer in tuple(self.optimizers.values())])
        return wire.encode(
            wire.Snap(
                session=self.session,
                sequence=self._next(),
                monotonic_ns=now,
                steps=self.recorder.step_tally.progress(),
                batches=self.recorder.batch_tally.progress(),
                parameters=self._parameters,
                devices=facts.devices(),
                errors=self.errors,
            )
        )


def _install_hooks(observer: Observer) -> None:
    """Register with torch: one global hook after each optimizer step, one wrapper around the wait for a batch."""
    steps = observer.recorder.steps
    batches = observer.recorder.batches
    optimizers = observer.optimizers

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001 - torch's signature
        if _is_compiling() or observer.off:
            return  # a compiled optimizer is traced through here: nothing that dynamo would have to understand
        try:
            now = perf_counter_ns()
            key = id(optimizer)
            steps.append((key, now))
            if key not in optimizers:
                observer.know(optimizer)
            if now >= observer.due:
                observer.publish(now)
        except Exception:
            observer.failed()

    wait = _BaseDataLoaderIter.__next__

    @functools.wraps(wait)
    def next_batch(self: Any) -> Any:
        start = perf_counter_ns()
        batch = wait(self)
        try:
            if not observer.off:
                now = perf_counter_ns()
                batches.append((start, now))
                if now >= observer.due:
                    observer.publish(now)
        except Exception:
            observer.failed()
        return batch

    register_optimizer_step_post_hook(after_step)
    _BaseDataLoaderIter.__next__ = next_batch


_observer: Observer | None = None


def install(announce: bool = False) -> None:
    """Listen in this process, once; `announce` opens the session now."""
    global _observer  # noqa: PLW0603 - torch's hooks are global to the process, so is this
    if _observer is None:
        _observer = Observer(Client(wire.client_paths()))
        _install_hooks(_observer)
        atexit.register(_observer.leave)
        # The child inherits the hooks: never register them again. The connection remains the parent's alone.
        os.register_at_fork(after_in_child=_observer.reset)
    if announce:
        _observer.publish(perf_counter_ns())
