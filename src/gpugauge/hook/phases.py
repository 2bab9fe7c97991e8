"""What the training thread is doing: known from what torch is called for, or said by the program."""

from __future__ import annotations

import threading
from time import perf_counter_ns

from gpugauge.hook.record import Page
from gpugauge.wire.record import AGAIN, PHASE, PHASES, SEQUENCE, SINCE, SPENT

OTHER, STARTING, TRAINING, EVALUATING, CHECKPOINTING, COMPILING, LOADING, GENERATING = range(len(PHASES))

# What programs call their phases; anything else is "other", so that nobody can fill a time series database with names.
_NAMES = {
    **{name: index for index, name in enumerate(PHASES)},
    **dict.fromkeys(("train", "fit", "warmup"), TRAINING),
    **dict.fromkeys(("eval", "evaluation", "val", "valid", "validate", "validation", "validating", "test"), EVALUATING),
    **dict.fromkeys(("checkpoint", "save", "saving"), CHECKPOINTING),
    **dict.fromkeys(("compile", "compilation"), COMPILING),
    **dict.fromkeys(("load", "data"), LOADING),
    **dict.fromkeys(("generate", "generation", "rollout", "sampling"), GENERATING),
}


def named(name: str) -> int:
    """Return the phase that a program's word for it means."""
    return _NAMES.get(str(name).strip().lower(), OTHER)


class Phases:
    """The phase of one `thread`: the innermost that was `entered`, else the one that batches and steps show.

    Times are perf_counter_ns. Twice a batch it goes to the page, so what changes goes there and no more.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clear()

    def clear(self) -> None:
        """Begin anew: at the start, and in a forked child, on the thread that forked."""
        self.thread = threading.get_ident()
        self.current = self._base = STARTING
        self._since = perf_counter_ns()
        self.entered: list[int] = []
        self._nanoseconds = [0] * len(PHASES)

    def adopt(self) -> None:
        """Follow the thread that calls, if Python started it: autograd's own threads only run parts of a step."""
        caller = threading.get_ident()
        if caller != self.thread and any(thread.ident == caller for thread in threading.enumerate()):
            self.thread = caller
            self.entered.clear()

    def here(self) -> bool:
        """Whether the caller is on the thread that is followed."""
        return threading.get_ident() == self.thread

    def enter(self, phase: int, now: int) -> None:
        """Go into a phase, until leave()."""
        self.entered.append(phase)
        self.switch(phase, now)

    def leave(self, now: int) -> None:
        """Leave the innermost phase."""
        if self.entered:
            self.entered.pop()
        self.switch(self.entered[-1] if self.entered else self._base, now)

    def settle(self, base: int, now: int) -> None:
        """Say what the thread does when no phase is entered."""
        self._base = base
        if not self.entered:
            self.switch(base, now)

    def arrive(self, base: int, before: int, now: int) -> None:
        """Say what the thread does after a wait for a batch: what it did before it, when a phase is entered."""
        self._base = base
        self.switch(before if self.entered else base, now)

    def write(self, steps: int, batches: int) -> None:
        """Bring the whole page up to date."""
        self.page.write(self.current, self._since, steps, batches, self._nanoseconds)

    def switch(self, phase: int, now: int) -> None:
        """Go from one phase to another, whatever is entered."""
        before = self.current
        if phase == before:
            return
        spent = self._nanoseconds[before] = self._nanoseconds[before] + now - self._since
        self.current, self._since = phase, now
        if (words := self.page.words) is not None:
            words[SEQUENCE] = now  # any number that is new
            words[SPENT + before] = spent
            words[PHASE] = phase
            words[SINCE] = words[AGAIN] = now
