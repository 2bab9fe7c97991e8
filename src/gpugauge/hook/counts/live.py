"""The values that every step and batch reads or writes."""

from __future__ import annotations

from typing import Union

from gpugauge.wire.record import PHASE, SEQUENCE, SEQUENCE_COPY, SINCE, SPENT, WORDS

# memoryview has no item types at run time in Python 3.9.
Words = Union["memoryview[int]", "list[int]"]


class Live:
    """What every step and batch reads or writes, in one object with slots: after a long step the processor has to load
    each object from memory again, and an object with a dict is three.

    `words` are those of the shared record. Of Phases are `thread`, `phase`, `base`, `since`, `entered`, and `within`:
    whether any phase is entered. `sole` is the identity of the optimizer whose every step is a training step, and
    `last_batch` the time of the last batch. `exposed` is whether the idle time of devices in waits is measured.
    Observer describes `step_due` and `batch_due`.
    """

    __slots__ = (
        "base",
        "batch_due",
        "entered",
        "exposed",
        "last_batch",
        "phase",
        "since",
        "sole",
        "step_due",
        "thread",
        "within",
        "words",
    )

    def __init__(self) -> None:
        self.words: Words = [0] * WORDS
        self.thread = self.phase = self.base = self.since = 0
        self.entered: list[int] = []
        self.exposed = self.within = False
        self.sole: int | None = None
        self.step_due = self.batch_due = self.last_batch = 0

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
