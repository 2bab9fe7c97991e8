"""One fault: how it is brought about, what must be said, and what is measured while it lasts and afterwards."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeAlias

from bench.torture.page import Page, Scraper
from bench.torture.subject import Setting, Subject, subject, switch
from bench.torture.truth import Judge

_EVERY = 0.2  # seconds between two scrapes
_WARM = 30.0  # longest wait for a whole page before the fault
_AFTER = 1.5  # how long it is watched when all is over
_TIMES_MEDIAN = 5

Inject: TypeAlias = Callable[[Subject], AbstractContextManager[None]]
# Whether a page says so; the page before the fault, this one, and the daemon with its log.
Sign: TypeAlias = Callable[[Page, Page, Subject], bool]


@contextlib.contextmanager
def switched(run: Subject) -> Iterator[None]:
    """Let the scenario's own faults strike."""
    switch(run.folder).touch()
    yield
    switch(run.folder).unlink()


@dataclass(frozen=True)
class Fault:
    """A row of the table. `lasts`: seconds. `says` is what tells of it (for the reader) and `sign` how it is seen;
    both are missing where nothing is wrong, and so nothing is to be said. Bounds are seconds: from the beginning to the
    sign, and from the end of the fault to a page with every value. `delayed` is how many scrapes the fault itself holds
    up.
    """

    name: str
    how: str
    says: str = ""
    sign: Sign | None = None
    inject: Inject = switched
    lasts: float = 6.0
    tell_within: float = 10.0
    back_within: float = 15.0
    setting: Setting = field(default_factory=Setting)
    delayed: int = 0
    quick: bool = False
    during: Sign | None = None
    """What must be true of every page between the sign and the end of the fault."""
    also: Sign | None = None
    """What must be true of the last page."""


@dataclass
class Outcome:
    """What was measured; `failed` are sentences, none when all is as promised."""

    fault: Fault
    scrapes: int = 0
    lost: int = 0
    slow: int = 0
    median_ms: float = 0.0
    worst_ms: float = 0.0
    wrong: int = 0
    told: float | None = None
    back: float | None = None
    failed: list[str] = field(default_factory=list)

    @property
    def only_slow(self) -> bool:
        """Whether nothing is wrong but the time that a scrape took."""
        return len(self.failed) == 1 and self.slow > self.fault.delayed


class Watch:
    """Scrapes all the time from a thread of its own, and judges each page at once."""

    def __init__(self, run: Subject, judge: Judge) -> None:
        self._run, self._judge = run, judge
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._scrape, daemon=True)
        self._came = threading.Condition()
        self.pages: list[Page] = []

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(15)

    def until(self, true: Callable[[Page], bool], seconds: float, since: float = 0.0) -> float | None:
        """Wait for a page, begun after `since`, of which it is true; return when that scrape was answered."""
        deadline = time.monotonic() + seconds
        seen = 0
        while True:
            with self._came:
                if seen == len(self.pages) and not self._came.wait(max(0.0, deadline - time.monotonic())):
                    return None
                new, seen = self.pages[seen:], len(self.pages)
            for page in new:
                if page.began >= since and not page.error and true(page):
                    return page.began + page.seconds
            if time.monotonic() > deadline:
                return None

    def _scrape(self) -> None:
        scraper, due = Scraper(self._run.port), time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + _EVERY
            page = scraper.scrape()
            if not self.pages and page.error:  # it has not begun to serve
                continue
            self._judge.look(page, self._run.unix())
            with self._came:
                self.pages.append(page)
                self._came.notify_all()
        scraper.close()


def torture(fault: Fault, floor: float) -> Outcome:
    """Run one fault; a scrape is slow if it takes five times the median of this run and more than `floor` seconds."""
    found = Outcome(fault)
    with subject(fault.setting) as run:
        judge = Judge(run.truth)
        with Watch(run, judge) as watch:
            if watch.until(judge.whole, _WARM) is None:
                found.failed.append(f"no whole page before the fault: {run.log()[-500:]}")
                return found
            time.sleep(2.0)
            pages_before = len(watch.pages)
            _strike(fault, run, judge, watch, found)
            time.sleep(_AFTER)
        pages = watch.pages
        if run.process.poll() is not None:
            found.failed.append(f"the daemon ended with {run.process.returncode}: {run.log()[-1500:]}")
        if fault.also and not fault.also(pages[pages_before - 1], pages[-1], run):
            found.failed.append("what must be true afterwards is not")
    _judge(found, pages, judge, floor)
    return found


def _strike(fault: Fault, run: Subject, judge: Judge, watch: Watch, found: Outcome) -> None:
    before = watch.pages[-1]
    began = time.monotonic()
    with fault.inject(run):
        if fault.sign:
            sign = fault.sign
            told = watch.until(lambda page: sign(before, page, run), fault.tell_within, began)
            found.told = None if told is None else told - began
            if told is None:
                found.failed.append(f"not told within {fault.tell_within:g} s")
        since = time.monotonic()
        time.sleep(max(0.0, fault.lasts - (since - began)))
        if fault.during:
            shown = [page for page in list(watch.pages) if page.began >= since and not page.error]
            broken = [page for page in shown if not fault.during(before, page, run)]
            found.wrong += len(broken)
            found.failed += [f"wrong on {len(broken)} of {len(shown)} pages beside the strangers"] if broken else []
    ended = time.monotonic()
    back = watch.until(judge.whole, fault.back_within, ended)
    found.back = None if back is None else back - ended
    if back is None:
        found.failed.append(f"not whole within {fault.back_within:g} s")


def _judge(found: Outcome, pages: Sequence[Page], judge: Judge, floor: float) -> None:
    times = [page.seconds for page in pages if not page.error]
    if not times:
        return
    median = statistics.median(times)
    limit = max(_TIMES_MEDIAN * median, floor)
    found.scrapes, found.lost = len(pages), len(pages) - len(times)
    found.slow = sum(t > limit for t in times)
    found.median_ms, found.worst_ms = 1000 * median, 1000 * max(times)
    found.wrong += sum(judge.wrong.values())
    found.failed += [f"lost: {page.error}" for page in pages if page.error][:3]
    found.failed += [f"wrong on {count} pages: {sentence}" for sentence, count in list(judge.wrong.items())[:5]]
    if found.slow > found.fault.delayed:
        found.failed.append(f"{found.slow} slow scrapes, the longest took {1000 * max(times):.0f} ms")
