"""The end of the daemon after a last scrape, in simulated time: drawn ends, reasons, scrapers and ticks."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.serving import fetch

from gpugauge.base.forecast import ScrapeForecast
from gpugauge.daemon import app
from gpugauge.daemon.app import LastScrape
from gpugauge.sessions.session import Session
from gpugauge.wire import messages as wire

REQUESTED = 100.0
RUNNING = Session(wire.Hello("1" * 32, 0, pid=1), 1, 1)


class Simulated:
    """A daemon with a tick a second and scrapers with a period, and what the scrapers have seen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.deadline: float | None = None
        self.finished: float | None = None
        self.sessions: tuple[Session, ...] = ()
        self.forecast = ScrapeForecast()
        self.ending = LastScrape(self.forecast, lambda: self.sessions, self._finish)
        monkeypatch.setattr(app, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(app, "threading", SimpleNamespace(Timer=self._timer))

    def _timer(self, seconds: float, finish: object) -> SimpleNamespace:
        assert finish == self._finish
        self.deadline = self.now + seconds
        return SimpleNamespace(start=lambda: None)

    def _finish(self) -> None:
        self.finished = self.now if self.finished is None else self.finished

    def run(
        self, wait: float, ends: list[tuple[float, float]], scrapers: list[tuple[float, float]], until: float = 200.0
    ) -> list[bool]:
        """Run until the end of the daemon; return for each scraper whether it has seen the reasons of all ends.

        A session ends at the first time of its pair, and has its reason at the second.
        """
        events = [(second + 0.07, "tick", 0) for second in range(int(until))]
        for number, (offset, period) in enumerate(scrapers):
            events += [(offset + i * period, "scrape", number) for i in range(int((until - offset) / period))]
        complete, seen, requested = False, [False] * len(scrapers), False
        for at, kind, number in sorted(events):
            if not requested and at >= REQUESTED:
                self.now, requested = REQUESTED, True
                self.ending.request(wait)
            if self.deadline is not None and at >= self.deadline:
                self.now = self.deadline
                self._finish()
            if self.finished is not None:
                break
            self.now = at
            if kind == "scrape":
                self.forecast.record_scrape(str(number), at)
                seen[number] |= complete
                continue
            self.sessions = tuple(
                RUNNING._replace(ended_at=end if at >= end else None, end_reason="finished" if at >= known else "")
                for end, known in ends
            )
            complete = bool(ends) and all(at >= known for _, known in ends)
            self.ending.after_tick(at + 0.01)
        return seen


MOMENTS = st.integers(int(REQUESTED) * 10 - 300, int(REQUESTED) * 10).map(lambda tenths: tenths / 10)
ENDS = st.tuples(MOMENTS, st.sampled_from([0.0, 0.4, 1.1, 3.0])).map(lambda pair: (pair[0], pair[0] + pair[1]))
# The offsets are those of the first scrapes: long before the request, or once or twice before it.
OFFSETS = st.integers(0, 99).flatmap(lambda tenths: st.sampled_from([tenths / 10, REQUESTED - 10 + tenths / 10]))
SCRAPERS = st.tuples(OFFSETS, st.sampled_from([0.3, 1.0, 5.0, 15.0, 30.0]))


@given(
    wait=st.sampled_from([5.0, 20.0, 60.0]),
    ends=st.lists(ENDS, min_size=1, max_size=3),
    scrapers=st.lists(SCRAPERS, max_size=3),
)
def test_it_ends_after_every_scraper_has_seen_the_ends_or_at_the_limit(
    wait: float, ends: list[tuple[float, float]], scrapers: list[tuple[float, float]]
) -> None:
    assume(len({offset for offset, _ in scrapers}) == len(scrapers))
    with pytest.MonkeyPatch.context() as monkeypatch:
        machine = Simulated(monkeypatch)
        seen = machine.run(wait, ends, scrapers)

    assert machine.finished is not None
    assert REQUESTED < machine.finished <= REQUESTED + wait
    if machine.finished < REQUESTED + wait:
        assert scrapers
        assert all(seen)
    # With a reason after 3 s, two ticks, the slowest period and the response it needs no more than this.
    elif scrapers:
        assert wait <= 3 + 2 + max(period for _, period in scrapers) + 3


@pytest.mark.parametrize(
    ("wait", "ends"), [(0.0, [(90.0, 90.0)]), (20.0, [])], ids=["it is not set", "nothing has reported"]
)
def test_it_ends_at_once(monkeypatch: pytest.MonkeyPatch, wait: float, ends: list[tuple[float, float]]) -> None:
    machine = Simulated(monkeypatch)
    machine.run(wait, ends, [(0.5, 15.0)])

    assert machine.finished is not None
    assert machine.finished < REQUESTED + 1.1


def test_a_second_request_ends_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Simulated(monkeypatch)
    machine.sessions = (RUNNING,)
    machine.ending.request(20.0)
    assert machine.finished is None
    machine.ending.request(20.0)

    assert machine.finished == 0.0


def test_a_training_that_goes_on_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Simulated(monkeypatch)
    machine.run(60.0, [(1e9, 1e9)], [(0.5, 5.0)])

    assert machine.finished is not None
    assert machine.finished < REQUESTED + 10


def ended_training(path: Path, steps: int) -> None:
    """Report a training of some steps to the daemon, and end it."""
    session = "1" * 32
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(path))
        client.send(wire.encode(wire.Hello(session, 0, pid=1)))
        client.send(wire.encode(wire.Snap(session, steps, steps=wire.Progress(steps))))
        time.sleep(0.2)


@pytest.mark.everything
def test_the_last_values_of_a_training_are_scraped_after_sigterm(tmp_path: Path) -> None:
    """A daemon beside a training that ends in the same moment, as the kubelet stops a sidecar."""
    hook = tmp_path / "hook.sock"
    flags = ["--web.listen-address=127.0.0.1:0", "--driver.mode=off", f"--hook.socket={hook}"]
    command = [sys.executable, "-m", "gpugauge", "serve", *flags, "--hook.last-scrape-seconds=20"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = next(line for line in process.stderr if "msg=serving" in line)
            found = re.search(r"listen=\S*?:(\d+)", line)
            assert found
            ended_training(hook, 41)
            process.send_signal(signal.SIGTERM)
            next(line for line in process.stderr if "waiting for a last scrape" in line)
            _, body, _ = fetch(("127.0.0.1", int(found[1])), "/metrics")
            code = process.wait(10)
        finally:
            process.kill()

    assert code == 0
    assert re.search(rb"^torch_steps_total\{[^}]*\} 41(\.0)?$", body, re.MULTILINE)
    ends = re.findall(rb"^gpugauge_trainings_ended_total\{[^}]*\} (\d+)", body, re.MULTILINE)
    assert sum(map(int, ends)) == 1
    assert b"\ntraining_end_timestamp_seconds{" in body
