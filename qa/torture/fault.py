"""One fault: its injection, how the daemon must report it, and the measurement during and after it."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeAlias

from qa.torture.scrape import Scrape, Scraper
from qa.torture.subject import Setting, Subject, subject, switch
from qa.torture.truth import Judge

_SCRAPE_INTERVAL_SECONDS = 0.2
_MAX_START_SECONDS = 30.0  # until a complete scrape before the fault
_AFTERMATH_SECONDS = 1.5  # of scrapes after the recovery
_SLOW_MEDIANS = 5  # a scrape that takes longer than this many medians is slow

Inject: TypeAlias = Callable[[Subject], AbstractContextManager[None]]
# A predicate of the scrape before the fault, the scrape in question, and the daemon with its log.
Sign: TypeAlias = Callable[[Scrape, Scrape, Subject], bool]


@contextlib.contextmanager
def switched(run: Subject) -> Iterator[None]:
    """Switch the scenario's faults on inside the context."""
    switch(run.folder).touch()
    yield
    switch(run.folder).unlink()


@dataclass(frozen=True)
class Fault:
    """A row of the table. `lasts` is the length of the fault in seconds. `reported_by` names the metrics or the log
    line that report it, and `sign` is the predicate for them; both are empty if there is nothing to report.
    `report_within` is the limit from the begin of the fault to the sign, `recover_within` from its end to a complete
    scrape, in seconds. `delayed` is the number of scrapes that the fault itself delays.
    """

    name: str
    how: str
    reported_by: str = ""
    sign: Sign | None = None
    inject: Inject = switched
    lasts: float = 6.0
    report_within: float = 10.0
    recover_within: float = 15.0
    setting: Setting = field(default_factory=Setting)
    delayed: int = 0
    quick: bool = False
    kind: str = ""
    during: Sign | None = None
    """A predicate for every scrape between the sign and the end of the fault."""
    finally_: Sign | None = None
    """A predicate for the last scrape."""


@dataclass
class Outcome:
    """The measurement. `reported` and `recovered` are seconds; `failed` has a sentence for each failure."""

    fault: Fault
    scrapes: int = 0
    lost: int = 0
    slow: int = 0
    worst_ms: float = 0.0
    wrong: int = 0
    reported: float | None = None
    recovered: float | None = None
    failed: list[str] = field(default_factory=list)

    @property
    def only_slow(self) -> bool:
        """Whether slow scrapes are the only failure."""
        return len(self.failed) == 1 and self.slow > self.fault.delayed


class Watch:
    """A thread that scrapes all the time, from the address `source`, and checks each scrape at once."""

    def __init__(
        self, run: Subject, judge: Judge, interval: float = _SCRAPE_INTERVAL_SECONDS, source: str = ""
    ) -> None:
        self._run, self._judge, self._interval, self._source = run, judge, interval, source
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._scrape, daemon=True)
        self._new_scrape = threading.Condition()
        self.scrapes: list[Scrape] = []

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(15)

    def until(self, predicate: Callable[[Scrape], bool], seconds: float, since: float = 0.0) -> float | None:
        """Wait at most `seconds` for a scrape that began after `since` and fulfils the predicate.

        Return the monotonic time of its answer, or None.
        """
        deadline = time.monotonic() + seconds
        seen = 0
        while True:
            with self._new_scrape:
                left = max(0.0, deadline - time.monotonic())
                if seen == len(self.scrapes) and not self._new_scrape.wait(left):
                    return None
                new, seen = self.scrapes[seen:], len(self.scrapes)
            for scrape in new:
                if scrape.began >= since and not scrape.error and predicate(scrape):
                    return scrape.began + scrape.seconds
            if time.monotonic() > deadline:
                return None

    def _scrape(self) -> None:
        scraper = Scraper(self._run.port, self._run.login, tls=self._run.tls, source=self._source)
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + self._interval
            scrape = scraper.scrape()
            if not self.scrapes and scrape.error:  # the daemon does not serve yet
                continue
            self._judge.check(scrape, self._run.unix())
            with self._new_scrape:
                self.scrapes.append(scrape)
                self._new_scrape.notify_all()
        scraper.close()


def torture(fault: Fault, floor: float) -> Outcome:
    """Run one fault. A scrape is slow if it takes over five medians of this run and more than `floor` seconds.

    The first one is left out, because the daemon still starts and verifies the login.
    """
    found = Outcome(fault)
    with subject(fault.setting) as run:
        judge = Judge(run.truth)
        with Watch(run, judge) as watch:
            if watch.until(judge.whole, _MAX_START_SECONDS) is None:
                found.failed.append(f"no complete scrape before the fault: {run.log()[-500:]}")
                return found
            time.sleep(2.0)
            scrapes_before = len(watch.scrapes)
            _inject(fault, run, judge, watch, found)
            time.sleep(_AFTERMATH_SECONDS)
        scrapes = watch.scrapes
        if run.process.poll() is not None:
            found.failed.append(f"the daemon ended with {run.process.returncode}: {run.log()[-1500:]}")
        if fault.finally_ and not fault.finally_(scrapes[scrapes_before - 1], scrapes[-1], run):
            found.failed.append("the predicate for the last scrape is false")
    _sum_up(found, scrapes, judge, floor)
    return found


def _inject(fault: Fault, run: Subject, judge: Judge, watch: Watch, found: Outcome) -> None:
    before = watch.scrapes[-1]
    began = time.monotonic()
    with fault.inject(run):
        if fault.sign:
            sign = fault.sign
            reported = watch.until(lambda scrape: sign(before, scrape, run), fault.report_within, began)
            found.reported = None if reported is None else reported - began
            if reported is None:
                found.failed.append(f"not reported within {fault.report_within:g} s")
        since = time.monotonic()
        time.sleep(max(0.0, fault.lasts - (since - began)))
        if fault.during:
            shown = [scrape for scrape in list(watch.scrapes) if scrape.began >= since and not scrape.error]
            broken = [scrape for scrape in shown if not fault.during(before, scrape, run)]
            found.wrong += len(broken)
            found.failed += [f"{len(broken)} of {len(shown)} scrapes during the fault are wrong"] if broken else []
    ended = time.monotonic()
    recovered = watch.until(judge.whole, fault.recover_within, ended)
    found.recovered = None if recovered is None else recovered - ended
    if recovered is None:
        found.failed.append(f"no complete scrape within {fault.recover_within:g} s")


def _sum_up(found: Outcome, scrapes: Sequence[Scrape], judge: Judge, floor: float) -> None:
    answered = [scrape.seconds for scrape in scrapes if not scrape.error]
    times = answered[1:] or [0.0]
    limit = max(_SLOW_MEDIANS * statistics.median(times), floor)
    found.scrapes, found.lost = len(scrapes), len(scrapes) - len(answered)
    found.slow = sum(t > limit for t in times)
    found.worst_ms = 1000 * max(times)
    found.wrong += sum(judge.wrong.values())
    found.failed += [f"lost: {scrape.error}" for scrape in scrapes if scrape.error][:3]
    found.failed += [f"wrong in {count} scrapes: {sentence}" for sentence, count in list(judge.wrong.items())[:5]]
    if found.slow > found.fault.delayed:
        found.failed.append(f"{found.slow} slow scrapes, the longest took {1000 * max(times):.0f} ms")
