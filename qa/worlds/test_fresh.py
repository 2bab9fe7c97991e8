"""How old values are at each scrape, in simulated time: for drawn scrapers, with jitter, behind one address, that miss
scrapes and change their period.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.drawn import draws, seeds

from gpugauge.daemon.assembly import READING_INTERVALS
from gpugauge.driver.api import Group
from gpugauge.driver.reader import SCRAPE_GROUPS
from gpugauge.web.refresh import WAIT_SECONDS
from qa.bench.timeline import Costs, Timeline

SECONDS = 1500.0
LEARNT = 8  # scrapes after which the period and the jitter of a scraper are known
OLD = 1.0  # seconds
MOST_OLD = 0.1  # as a share of the scrapes of a scraper with jitter, or beside others behind one address
IDLE = 5.0  # seconds between two readings without scrapers


@dataclass(frozen=True)
class Scraper:
    """`jitter` in seconds; `late`: it only comes later. `walks`: each scrape is a period after the last one. `missed`
    is the share of the scrapes that do not come. From `changes` on, the period is another one.
    """

    address: str
    first: float
    period: float
    jitter: float
    late: bool
    walks: bool
    missed: float
    changes: float
    then: float

    def times(self, drawn: random.Random) -> Iterator[tuple[float, float, bool]]:
        """Yield the time and the period of each scrape, and whether that is known."""
        at, seen, before = self.first, 0, self.period
        while at < SECONDS:
            period = self.period if at < self.changes else self.then
            seen, before = (seen if period == before else 0), period
            off = self.jitter * (drawn.random() ** 2 if self.late else drawn.uniform(-1, 1))
            if drawn.random() >= self.missed:
                yield at + (0.0 if self.walks else off), period, seen >= LEARNT
                seen += 1
            at += period + (off if self.walks else 0.0)


def drawn_scrapers(drawn: random.Random) -> list[Scraper]:
    """Return one to three scrapers with periods of their own, or equal ones, perhaps behind one address."""
    period, equal, found = drawn.choice([5.0, 10.0, 15.0, 30.0, 60.0]), drawn.random() < 0.5, list[Scraper]()
    together = equal and drawn.random() < 0.6
    for number in range(drawn.choice([1, 1, 2, 2, 3])):
        own = period if equal else drawn.choice([5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 60.0])
        jitter = drawn.choice([0.003, 0.003, 0.05, 0.1, 0.2, 0.3])
        found.append(
            Scraper(
                "10.0.0.1" if together else f"10.0.0.{number}",
                drawn.uniform(0, own),
                own,
                jitter,
                drawn.random() < 0.3,
                drawn.random() < 0.3,
                drawn.choice([0.0, 0.0, 0.02, 0.05]),
                SECONDS if together else drawn.choice([SECONDS, SECONDS, SECONDS / 2]),
                drawn.choice([5.0, 10.0, 15.0, 30.0, 60.0]),
            )
        )
    return found


class Node:
    """A daemon in simulated time: when each group was read, and what the scrapes see of that."""

    def __init__(self, drawn: random.Random, costs: Costs) -> None:
        self._read, self._shown = dict[str, float](), dict[str, float]()
        self.groups, self.slow = dict.fromkeys(READING_INTERVALS, 0), costs.reading + costs.ticking > WAIT_SECONDS
        self.timeline = Timeline[tuple[float, list[Group]]](self._note, self._tick, self._show, drawn, costs)

    def _note(self, groups: list[Group]) -> tuple[float, list[Group]]:
        for group in groups:
            self.groups[group] += 1
        return self.timeline.now, groups

    def _tick(self, found: list[tuple[float, list[Group]]]) -> None:
        self._read.update({group: began for began, groups in found for group in groups})

    def _show(self) -> None:
        self._shown.update(self._read)

    def age(self, period: float) -> float:
        """Return the age of the oldest value now, without those that are read less often than in `period` seconds."""
        every = {str(group): seconds for group, seconds in READING_INTERVALS.items()}
        return self.timeline.now - min(at for group, at in self._shown.items() if every[group] <= period)


def observe(seed: int) -> tuple[list[Scraper], list[list[float]], Node, int]:
    """Return drawn scrapers, the ages at each scrape of each one once it is known, the node, and all scrapes."""
    drawn = random.Random(seed)
    scrapers = drawn_scrapers(drawn)
    node = Node(drawn, drawn.choice([Costs(), Costs(0.02, 0.05)]))
    ages = [list[float]() for _ in scrapers]
    scrapes, together = 0, len({each.address for each in scrapers}) < len(scrapers)
    for scraper, own in zip(scrapers, ages, strict=True):
        for at, period, known in scraper.times(drawn):

            def answer(own: list[float] = own, period: float = period, known: bool = known) -> None:
                if known:
                    # In equal turn they look like one scraper, for which no more is read than is due.
                    own.append(node.age(min(period / len(scrapers), 5.0) if together else period))

            node.timeline.scrape(max(0.0, at), scraper.address, answer)
            scrapes += 1
    node.timeline.run(SECONDS + 5)
    return scrapers, ages, node, scrapes


@seeds(draws(60, 1000))
def test_values_are_new_at_each_scrape(seed: int) -> None:
    scrapers, ages, node, scrapes = observe(seed)

    for scraper, own in zip(scrapers, ages, strict=True):
        old = [age for age in own if age > OLD]
        exact = scraper.jitter < 0.01 and len({each.address for each in scrapers}) == len(scrapers)
        assert len(old) <= (0 if exact else 2 + MOST_OLD * len(own)), (scraper, old, len(own))
    # Beside those of an idle daemon: one before each scrape, one that it asks for, and, of a driver too slow for that,
    # one each second of some periods, while they are learnt.
    learning = sum(6 * max(scraper.period, scraper.then) for scraper in scrapers) if node.slow else 0
    assert node.timeline.readings <= SECONDS / IDLE + 2 * scrapes + learning, (
        scrapers,
        node.timeline.readings,
        scrapes,
    )


@seeds(draws(30, 500))
def test_no_scraper_without_a_period_waits_long_or_gets_old_values(seed: int) -> None:
    """A driver too slow for readings on demand is read each second while such a scraper is awaited."""
    drawn = random.Random(seed)
    costs = drawn.choice([Costs(), Costs(0.02, 0.05), Costs(0.2, 0.05)])
    node, ages, at, longest = Node(drawn, costs), list[float](), 1.0, drawn.uniform(2, 20)

    def answer() -> None:
        ages.append(node.timeline.now - min(node._shown[group] for group in SCRAPE_GROUPS))

    while (at := at + drawn.uniform(0.7, 1.0) * longest) < SECONDS / 5:
        node.timeline.scrape(at, "10.0.0.1", answer)
    node.timeline.run(SECONDS / 5 + 5)

    assert max(node.timeline.delays) <= WAIT_SECONDS + 1e-9
    limit = (2.0 if node.slow else 0.0) + 3 * (costs.reading + costs.ticking) + 0.2
    assert sum(age > limit for age in ages) <= 3 + 2 * MOST_OLD * len(ages), (costs, ages)
    assert node.slow or node.timeline.readings <= 1.1 * SECONDS / 5 / IDLE + 3 * len(ages) + 20
