"""The phase of the training thread, from calls of torch or from the program itself."""

from __future__ import annotations

import threading

from gpugauge.hook.counts.clock import CLOCKS
from gpugauge.hook.counts.record import RecordMemory
from gpugauge.wire.record import PHASE, PHASES, SEQUENCE, SEQUENCE_COPY, SINCE

OTHER, STARTING, TRAINING, EVALUATING, CHECKPOINTING, COMPILING, LOADING, GENERATING = range(len(PHASES))

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


class Phases:
    """The phase of one thread: the innermost one that was entered, else the base phase from batches and steps.

    Times are perf_counter_ns.
    """

    def __init__(self, record: RecordMemory) -> None:
        self.live = record.live
        self.switch = self.live.switch
        self.clear()

    def clear(self) -> None:
        """Start from zero on the calling thread, with an empty record: at the start, and in a forked child."""
        live = self.live
        live.thread = threading.get_ident()
        live.phase = live.base = STARTING
        live.since = CLOCKS[0]()
        live.entered = []
        live.within = False
        live.words[PHASE], live.words[SINCE] = STARTING, live.since
        live.words[SEQUENCE] = live.words[SEQUENCE_COPY] = 1

    def follow_caller(self) -> bool:
        """Follow the calling thread if Python started it: the threads of autograd only run parts of a step. Return
        whether the thread is a new one.
        """
        caller = threading.get_ident()
        if caller == self.live.thread or all(thread.ident != caller for thread in threading.enumerate()):
            return False
        self.live.thread = caller
        self.live.entered.clear()
        self.live.within = False
        return True

    def on_training_thread(self) -> bool:
        """Return whether the caller runs on the followed thread."""
        return threading.get_ident() == self.live.thread

    @property
    def declared(self) -> bool:
        """Whether the program itself has entered the phase loading."""
        entered = self.live.entered
        return bool(entered) and entered[-1] == LOADING

    @property
    def named(self) -> int | None:
        """The phase that a wait for a batch serves by the program's own word, None if that is not known."""
        # An evaluation inside of a phase "train" is known by its batches.
        return next((phase for phase in reversed(self.live.entered) if phase not in _NO_OWN_WAITS), None)

    def enter(self, phase: int, now: int) -> None:
        """Enter a phase until leave()."""
        self.live.entered.append(phase)
        self.live.within = True
        self.switch(phase, now)

    def leave(self, phase: int, now: int) -> None:
        """Leave a phase: the innermost one of its kind. Coroutines enter and leave phases in any order."""
        entered = self.live.entered
        if phase in entered:
            del entered[len(entered) - 1 - entered[::-1].index(phase)]
        self.live.within = bool(entered)
        self.switch(entered[-1] if entered else self.live.base, now)

    def set_base(self, base: int, now: int) -> None:
        """Set the phase that counts while none is entered."""
        self.live.base = base
        if not self.live.entered:
            self.switch(base, now)

    def end_wait(self, base: int, before: int, now: int) -> int:
        """End a wait for a batch: set the base phase, and go back to the phase `before` if one is entered. Return the
        phase that the wait served.
        """
        self.live.base = base
        if not self.live.entered:
            self.switch(base, now)
            return base
        self.switch(before, now)
        named = self.named
        return base if named is None else named
