"""What the training thread is doing: known from what torch is called for, or said by the program."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter_ns

from gpugauge.hook.page import Page
from gpugauge.wire_page import PHASES

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
    """The phase of one thread: the innermost that was entered, else the one that batches and steps show.

    `counts` returns steps and batches so far. Times are perf_counter_ns.
    """

    def __init__(self, page: Page, counts: Callable[[], tuple[int, int]]) -> None:
        self.page = page
        self._counts = counts
        self.clear()

    def clear(self) -> None:
        """Begin anew: at the start, and in a forked child, on the thread that forked."""
        self.thread = threading.get_ident()
        self.current = self._base = STARTING
        self._since = perf_counter_ns()
        self._entered: list[int] = []
        self._nanoseconds = [0] * len(PHASES)

    def adopt(self) -> None:
        """Follow the thread that calls, if Python started it: autograd's own threads only run parts of a step."""
        caller = threading.get_ident()
        if caller != self.thread and any(thread.ident == caller for thread in threading.enumerate()):
            self.thread = caller
            self._entered.clear()

    def here(self) -> bool:
        """Whether the caller is on the thread that is followed."""
        return threading.get_ident() == self.thread

    def enter(self, phase: int, now: int) -> None:
        """Go into a phase, until leave()."""
        self._entered.append(phase)
        self._switch(phase, now)

    def leave(self, now: int, base: int | None = None) -> None:
        """Leave the innermost phase; `base` is what the thread does from now on when no phase is entered."""
        if base is not None:
            self._base = base
        if self._entered:
            self._entered.pop()
        self._switch(self._entered[-1] if self._entered else self._base, now)

    def settle(self, base: int, now: int) -> None:
        """Say what the thread does when no phase is entered."""
        self._base = base
        if not self._entered and base != self.current:
            self._switch(base, now)

    def write(self) -> None:
        """Bring the page up to date."""
        steps, batches = self._counts()
        self.page.write(self.current, self._since, steps, batches, self._nanoseconds)

    def _switch(self, phase: int, now: int) -> None:
        if phase != self.current:
            self._nanoseconds[self.current] += now - self._since
            self.current, self._since = phase, now
        self.write()
