"""The shared record in the training process, with the phase of the training thread; see gpugauge.wire.record."""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from typing import Union

from gpugauge.hook.clock import CLOCKS
from gpugauge.wire import record as wire_record
from gpugauge.wire.record import PHASE, PHASES, SEQUENCE, SEQUENCE_COPY, SINCE, SPENT, THREAD, WORDS

# memoryview has no item types at run time in Python 3.9.
Words = Union["memoryview[int]", "list[int]"]

OTHER, STARTING, TRAINING, EVALUATING, CHECKPOINTING, COMPILING, LOADING, GENERATING = range(len(PHASES))

AT_ONCE = 0  # a time that something is due, and has passed
_NO_OWN_WAITS = (OTHER, STARTING, TRAINING, LOADING)

# Common names of phases. Every other name is "other": the values of the label `phase` are bounded.
_INDEXES = {
    **{name: index for index, name in enumerate(PHASES)},
    **dict.fromkeys(("train", "fit", "warmup"), TRAINING),
    **dict.fromkeys(("eval", "evaluation", "val", "valid", "validate", "validation", "validating", "test"), EVALUATING),
    **dict.fromkeys(("checkpoint", "save", "saving"), CHECKPOINTING),
    **dict.fromkeys(("compile", "compilation"), COMPILING),
    **dict.fromkeys(("load", "data"), LOADING),
    **dict.fromkeys(("generate", "generation", "rollout", "sampling"), GENERATING),
}


def phase_index(name: str) -> int:
    """Return the index of the phase that a program names."""
    return _INDEXES.get(str(name).strip().lower(), OTHER)


class Record:
    """What every step and batch reads or writes, in one object with slots: after a long step the processor has to load
    each object from memory again, and an object with a dict is three. `words` are those of the shared record: a list
    until open(), then a sealed memfd that the daemon can read. Where memfd is refused (an old kernel, a sandbox) they
    stay a list. `thread` is the one that trains. Its `phase`, `since` a time, is the innermost one that is `entered`,
    else the `base` from batches and steps; `within` is whether any is entered. `sole` is the identity of the optimizer
    whose every step is a training step, and `last_batch` the time of the last batch. `exposed` is whether the idle time
    of devices in waits is measured. Observer describes `step_due` and `batch_due`. Times are perf_counter_ns.
    """

    __slots__ = (
        *("_file", "_memory", "base", "batch_due", "entered", "exposed", "last_batch", "phase", "since", "sole"),
        *("step_due", "thread", "within", "words"),
    )

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._file: tuple[int, int, int] | None = None
        self.words: Words = []
        self.step_due = self.batch_due = self.last_batch = 0
        self.clear()

    def clear(self) -> None:
        """Start from zero on the calling thread: at the start, and in a forked child."""
        self.close()
        self.thread = threading.get_ident()
        self.phase = self.base = STARTING
        self.since = CLOCKS[0]()
        self.entered: list[int] = []
        self.exposed = self.within = False
        self.sole: int | None = None
        self.words[PHASE], self.words[SINCE], self.words[THREAD] = STARTING, self.since, threading.get_native_id()
        self.words[SEQUENCE] = self.words[SEQUENCE_COPY] = 1

    def switch(self, phase: int, now: int) -> None:
        """Switch to a phase, whatever is entered. Writes only the words that change."""
        before = self.phase
        if phase == before:
            return
        words, spent = self.words, now - self.since
        words[SEQUENCE] = now  # the sequence only has to differ from the previous one
        if spent > 0:
            words[SPENT + before] += spent
        words[PHASE] = phase
        self.phase, self.since = phase, now
        words[SINCE] = words[SEQUENCE_COPY] = now

    def on_training_thread(self) -> bool:
        """Return whether the caller runs on the thread that trains."""
        return threading.get_ident() == self.thread

    def follow_caller(self) -> bool:
        """Follow the calling thread if Python started it, not autograd; return whether the thread is a new one."""
        caller = threading.get_ident()
        if caller == self.thread or all(thread.ident != caller for thread in threading.enumerate()):
            return False
        self.thread, self.words[THREAD] = caller, threading.get_native_id()
        self.entered.clear()
        self.within = False
        return True

    @property
    def declared(self) -> bool:
        """Whether the program itself has entered the phase loading."""
        return bool(self.entered) and self.entered[-1] == LOADING

    @property
    def named(self) -> int | None:
        """The phase that a wait for a batch serves by the program's own word, None if that is not known."""
        # An evaluation inside of a phase "train" is known by its batches.
        return next((phase for phase in reversed(self.entered) if phase not in _NO_OWN_WAITS), None)

    def enter(self, phase: int, now: int) -> None:
        """Enter a phase until leave()."""
        self.entered.append(phase)
        self.within = True
        self.switch(phase, now)

    def leave(self, phase: int, now: int) -> None:
        """Leave a phase: the innermost one of its kind. Coroutines enter and leave phases in any order."""
        entered = self.entered
        if phase in entered:
            del entered[len(entered) - 1 - entered[::-1].index(phase)]
        self.within = bool(entered)
        self.switch(entered[-1] if entered else self.base, now)

    def set_base(self, base: int, now: int) -> None:
        """Set the phase that counts while none is entered."""
        self.base = base
        if not self.entered:
            self.switch(base, now)

    def end_wait(self, base: int, before: int, now: int) -> int:
        """End a wait for a batch, in the phase `before` if one is entered. Return the phase that the wait served."""
        self.base, named = base, self.named
        self.switch(before if self.entered else base, now)
        return base if named is None else named

    @property
    def descriptor(self) -> int | None:
        """The memfd; None if there is none, or if the program has closed it (a program that becomes a daemon does)."""
        if self._file is None:
            return None
        descriptor, device, inode = self._file
        try:
            found = os.fstat(descriptor)
        except OSError:
            return None
        return descriptor if (found.st_dev, found.st_ino) == (device, inode) else None

    def open(self) -> None:
        """Create the memory with the present words, once."""
        if self._memory is not None:
            return
        try:
            descriptor = os.memfd_create("gpugauge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except (AttributeError, OSError):
            return
        try:
            # Written, not only extended: memory that is not available is refused here, and not by SIGBUS later.
            os.write(descriptor, bytes(wire_record.RECORD_BYTES))
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            memory = mmap.mmap(descriptor, wire_record.RECORD_BYTES)
            found = os.fstat(descriptor)
        except OSError:
            os.close(descriptor)
            return
        wire_record.write_head(memory)
        wire_record.write(memory, self.words)
        self._memory, self._file = memory, (descriptor, found.st_dev, found.st_ino)
        self.words = wire_record.words(memory)

    def close(self) -> None:
        """Close the memory and begin with new words. A forked child cannot write to the memory of its parent."""
        descriptor, words = self.descriptor, self.words
        self.words = [0] * WORDS
        if isinstance(words, memoryview):
            words.release()
        if self._memory is not None:
            self._memory.close()
        if descriptor is not None:
            os.close(descriptor)
        self._memory = self._file = None
