"""The functions that run at every step and every batch. After a long step the processor has to load from memory again
whatever they use: objects, and lines of code. So they are in one module, use few objects and functions, and write the
words of the record themselves. The rest runs at most once a second, in Observer.publish.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpugauge.hook.clock import CLOCKS
from gpugauge.hook.record import LOADING, TRAINING
from gpugauge.wire.record import (
    BATCHES,
    LAST_STEP,
    PHASE,
    SAMPLES,
    SEQUENCE,
    SEQUENCE_COPY,
    SINCE,
    SPENT,
    STEPS,
    TOKENS,
    WAITED,
)

if TYPE_CHECKING:
    from gpugauge.hook.observer import Observer


def step_hook(observer: Observer, is_compiling: Callable[[], bool]) -> Callable[[Any, Any, Any], None]:
    """Return the hook after each step of an optimizer. `is_compiling` is that of torch."""
    (clock, _), live, identity = CLOCKS, observer.record, id
    ended, work = observer.recorder.ends.append, observer.recorder.work

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001 - torch's signature
        if is_compiling():
            return  # dynamo traces a compiled optimizer through this function and must find nothing to trace
        now = clock()
        if now < live.step_due and identity(optimizer) == live.sole:
            ended(now)
            words = live.words
            words[STEPS] += 1
            words[LAST_STEP] = now
            words[SAMPLES], words[TOKENS] = work.samples, work.tokens
        else:
            observer.on_step(optimizer, now)

    return after_step


def batch_wrapper(  # noqa: C901 - with the function in it
    observer: Observer, wait: Callable[[Any], Any], is_compiling: Callable[[], bool]
) -> Callable[[Any], Any]:
    """Return a wrapper of the method that waits for the next batch of an iterator of DataLoader."""
    (clock, _), live, thread = CLOCKS, observer.record, threading.get_ident
    ended, work = observer.recorder.waits.append, observer.recorder.work

    @functools.wraps(wait)
    def next_batch(self: Any) -> Any:  # noqa: C901 - one function: each call would cost
        if is_compiling():
            return wait(self)  # dynamo finds nothing to trace
        before, exposed = live.phase, live.exposed
        if thread() != live.thread or (before == LOADING and not live.declared):
            return observer.take_elsewhere(wait, self)
        start = clock()
        try:
            if before != LOADING:  # as in Record.switch()
                words, spent = live.words, start - live.since
                words[SEQUENCE] = start
                if spent > 0:
                    words[SPENT + before] += spent
                words[PHASE] = live.phase = LOADING
                words[SINCE] = words[SEQUENCE_COPY] = live.since = start
            if exposed:
                observer.state.waits.begin()
        except Exception:
            observer.count_error()
        try:
            batch = wait(self)
        except BaseException:
            observer.end_wait(before, start, self)
            raise
        try:
            now, read = clock(), self.gpugauge_size
            if read is None or now >= live.batch_due or live.since is not start or live.within:
                observer.end_wait_with_batch(before, start, now, self, batch)
            else:  # a batch for the training, after a batch or a step
                words, waited = live.words, now - start
                words[SEQUENCE] = now
                words[SPENT + LOADING] += waited
                words[PHASE] = live.phase = live.base = TRAINING
                words[SINCE] = words[SEQUENCE_COPY] = live.since = now
                ended(waited)
                live.last_batch = now
                words[BATCHES] += 1
                words[WAITED + TRAINING] += waited
                read(batch, work)
            if exposed:
                observer.state.waits.end(now, now - start)
        except Exception:
            observer.count_error()
        return batch

    return next_batch
