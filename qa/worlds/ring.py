"""Sample ring of a driver, written from its description independently of the simulator."""

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from random import Random


class Load:
    """A load that repeats: pieces of (seconds, level from 0 to 1)."""

    def __init__(self, pieces: list[tuple[float, float]]) -> None:
        self.ends, self.sums, self.levels = [0.0], [0.0], [level for _, level in pieces]
        for seconds, level in pieces:
            self.ends.append(self.ends[-1] + seconds)
            self.sums.append(self.sums[-1] + seconds * level)

    def integral(self, t: float) -> float:
        rounds, rest = divmod(t, self.ends[-1])
        i = min(bisect_right(self.ends, rest) - 1, len(self.levels) - 1)
        return rounds * self.sums[-1] + self.sums[i] + (rest - self.ends[i]) * self.levels[i]


@dataclass
class Ring:
    """Samples of a load, each about `period` seconds long. After `sleep_after` seconds of zeros no more are kept."""

    load: Load
    period: float
    jitter: float
    entries: int
    sleep_after: float
    clock: float  # value of its clock at time 0
    random: Random

    def __post_init__(self) -> None:
        self.now = self.sampled = 0.0
        self.idle_since = math.inf
        self.percent = 0
        self.kept: deque[list[int]] = deque(maxlen=self.entries)
        self.next = self.period

    def advance(self, to: float) -> None:
        while self.next <= to:
            mean = (self.load.integral(self.next) - self.load.integral(self.sampled)) / (self.next - self.sampled)
            self.percent = round(100 * mean)
            if self.percent:
                self.idle_since = math.inf
            else:
                self.idle_since = min(self.idle_since, self.sampled)
            if self.percent or self.next - self.idle_since <= self.sleep_after:
                self.kept.append([round((self.clock + self.next) * 1e6), self.percent])
            self.sampled = self.next
            self.next += self.period * (1 + self.random.uniform(-self.jitter, self.jitter))
        self.now = to

    def read(self, after: int) -> list[list[int]]:
        return [sample for sample in self.kept if sample[0] > after]

    def reload(self) -> None:
        """Load the driver again: the ring is empty, and its clock starts at 0."""
        self.kept.clear()
        self.clock = -self.now
