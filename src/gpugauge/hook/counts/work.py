"""The samples and tokens of the training: those of the batches before each step, or those that the program reports."""

from __future__ import annotations

from gpugauge.hook.counts.record import RecordMemory
from gpugauge.wire.record import SAMPLES, STEPS, TOKENS


class Work:
    """`samples` and `tokens` of all batches that the training thread has taken to train on, and the words `unknown`
    because a batch did not show its size. count() stores both in the shared record, at each step.
    """

    __slots__ = ("_record", "_reported", "samples", "tokens", "unknown")

    def __init__(self, record: RecordMemory) -> None:
        self._record = record
        self.clear()

    def clear(self) -> None:
        """Start from zero."""
        self.samples = self.tokens = 0
        self.unknown: set[int] = set()
        self._reported: set[int] = set()

    def count(self) -> None:
        """Count the batches that were taken before a step. Batches after the last step do not count."""
        words = self._record.words
        for word, taken in ((SAMPLES, self.samples), (TOKENS, self.tokens)):
            if word not in self._reported:
                words[word] = taken

    def report(self, word: int, count: int) -> None:
        """Add what the program reports with a step. From the first report on, only reports count."""
        words = self._record.words
        if word not in self._reported:
            self._reported.add(word)
            # An optimizer of torch made the same step before, and the batches of that step are counted.
            if words[word] and words[STEPS]:
                words[word] = count if words[STEPS] == 1 else words[word]
                return
        words[word] += count

    def add(self, other: Work) -> None:
        """Add the batches of a thread that has turned out to be the one that trains, in place of those that the thread
        before has taken since the last step.
        """
        words = self._record.words
        self.samples = min(self.samples, words[SAMPLES]) + other.samples
        self.tokens = min(self.tokens, words[TOKENS]) + other.tokens
        self.unknown |= other.unknown

    def reports(self, word: int) -> bool:
        """Return whether the program reports a count itself."""
        return word in self._reported

    def counted(self, word: int) -> int | None:
        """Return the count of a word; None if it is not known, and before the first step with a batch."""
        count = self._record.words[word]
        return count if word in self._reported or (count and word not in self.unknown) else None
