"""What must still work after an attack: scrapes, an honest training and reloading, within the unit's memory."""

from __future__ import annotations

import http
import http.client
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.website import ALICE

from gpugauge.wire import messages as wire
from qa.torture.scrape import Scrape, Scraper
from qa.torture.subject import Subject
from qa.torture.truth import Judge

SECONDS = 5.0  # until a scrape is answered, and until a step of the training is shown
_RELOAD_SECONDS = 10.0
_MAX_BYTES = 512 * 1024 * 1024  # MemoryMax= of the unit
_POLL_SECONDS = 0.1
# A collector that is switched off and on again by a reload. The judge has no value of it.
_SWITCHED = 'gpugauge_collector_success{collector="mig"}'
SETTINGS = "settings.yml"


def settings(enabled: bool) -> str:
    """Return the settings with this collector on or off."""
    return f"collector: {{mig: {str(enabled).lower()}}}\n"


class Honest:
    """A correct training. It connects again like the hook, and knows its own count."""

    def __init__(self, path: Path) -> None:
        self.session, self.steps = os.urandom(16).hex(), 1_000_000
        self._path = path
        self._socket: socket.socket | None = None

    def step(self) -> None:
        """Report one more step."""
        self.steps += 1
        if not self._send():  # the connection has broken
            self._send()

    def _send(self) -> bool:
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
                self._socket.connect(str(self._path))
                self._socket.send(wire.encode(wire.Hello(self.session, 0, os.getpid())))
            self._socket.send(wire.encode(wire.Snap(self.session, self.steps, steps=wire.Progress(self.steps))))
        except OSError as error:
            connected = isinstance(error, BlockingIOError) and self._connected()
            if not connected:
                self.close()
            return connected
        return True

    def _connected(self) -> bool:
        try:
            return self._socket is not None and bool(self._socket.getpeername())
        except OSError:  # the queue of the listening socket was full
            return False

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class _Known(Scraper):
    """A scraper that logs in."""

    def __init__(self, port: int, headers: dict[str, str]) -> None:
        super().__init__(port, headers)

    def _ask(self) -> tuple[int, str]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(*self._address, timeout=SECONDS)
        self._connection.request("GET", "/metrics", headers=self._headers)
        response = self._connection.getresponse()
        return response.status, response.read().decode()


class Witness:
    """Examines a running daemon. With `users`, its clients log in."""

    def __init__(self, run: Subject, users: bool) -> None:
        self._run = run
        self._headers = {"Authorization": ALICE} if users else {}
        self._judge = Judge(run.truth)
        self._kept = _Known(run.port, self._headers)
        self._switched_on = True
        self.honest = Honest(Path(run.hook))
        self.worst = {"scrape": 0.0, "training": 0.0, "SIGHUP": 0.0, "/-/reload": 0.0}
        """The longest times in seconds."""
        self.most_bytes = 0

    def ready(self) -> bool:
        """Return whether the daemon serves every GPU."""
        return self._judge.whole(self._scrape(kept=False))

    def close(self) -> None:
        """End its connections."""
        self._kept.close()
        self.honest.close()

    def check(self) -> str:
        """Return what does not work any more, in one sentence; empty if all works."""
        return next(self._problems(), "")

    def _problems(self) -> Iterator[str]:
        for kept in (True, False):
            scrape = self._scrape(kept=kept)
            self.worst["scrape"] = max(self.worst["scrape"], scrape.seconds)
            over = f"the scrape over a {'kept' if kept else 'new'} connection"
            if scrape.error:
                yield f"{over} failed after {scrape.seconds:.1f} s: {scrape.error}"
            elif not self._judge.whole(scrape):
                yield f"{over} lacks values of GPUs: {self._lacking(scrape)}"
        if infinite := [series for series, value in scrape.series.items() if not math.isfinite(value)]:
            yield f"{len(infinite)} values are no numbers, such as that of {infinite[0]}"
        for series, value in scrape.series.items():
            if series.startswith("gpugauge_collector_success{") and not value:
                yield f"a collector fails: {series}"
        self._judge.wrong.clear()
        self._judge.check(scrape, time.time())
        # The counters of a new receiver begin at 0, as those of a worker do; its start time shows that.
        yield from (sentence for sentence in self._judge.wrong if 'part="receiver"' not in sentence)
        self.honest.step()
        step = self.honest.steps
        if not self._within("training", SECONDS, lambda scrape: self._shows(scrape, step)):
            yield f"the honest training's step {step} is not shown within {SECONDS:g} s"
        yield from self._read_by_people()
        yield from self._reload("SIGHUP", self._hang_up)
        yield from self._reload("/-/reload", self._request_reload)
        yield from self._process()

    def _scrape(self, *, kept: bool) -> Scrape:
        if kept:
            return self._kept.scrape()
        scraper = _Known(self._run.port, self._headers)
        try:
            return scraper.scrape()
        finally:
            scraper.close()

    def _lacking(self, scrape: Scrape) -> str:
        gauges = [series for gauges in self._judge.gauges.values() for series in gauges]
        failing = [
            series for series, value in scrape.series.items() if series.startswith("gpugauge_collector_s") and not value
        ]
        return ", ".join([*failing, *(series for series in gauges if series not in scrape.series)][:5]) or "gpu_up"

    def _shows(self, scrape: Scrape, step: int) -> bool:
        """Return whether the scrape has this step or a later one of the training, exactly once."""
        if sum(step <= value <= self.honest.steps for _, value in scrape.of("torch_steps_total")) == 1:
            return True
        self.honest.step()  # as the hook does: a value that was dropped comes with the next message
        return False

    def _within(self, what: str, seconds: float, condition: Callable[[Scrape], bool]) -> bool:
        began = time.monotonic()
        while True:
            scrape = self._scrape(kept=True)
            passed = time.monotonic() - began
            if not scrape.error and condition(scrape):
                self.worst[what] = max(self.worst[what], passed)
                return True
            if passed > seconds:
                return False
            time.sleep(_POLL_SECONDS)

    def _read_by_people(self) -> Iterator[str]:
        """Ask for the page and the status."""
        for path in ("/", "/api/v1/status"):
            status, text = self._answer("GET", path)
            if status != http.HTTPStatus.OK:
                yield f"{path}: {text}"

    def _reload(self, way: str, request: Callable[[], str]) -> Iterator[str]:
        """Switch a collector by a reload, and wait until a scrape shows it."""
        self._switched_on = not self._switched_on
        part = self._run.folder / "settings.part"
        part.write_text(settings(self._switched_on))
        part.rename(self._run.folder / SETTINGS)
        if problem := request():
            yield f"{way}: {problem}"
        if not self._within(way, _RELOAD_SECONDS, lambda scrape: (_SWITCHED in scrape.series) == self._switched_on):
            yield f"{way}: the new settings do not take effect within {_RELOAD_SECONDS:g} s"

    def _hang_up(self) -> str:
        os.kill(self._run.pid, signal.SIGHUP)
        return ""

    def _request_reload(self) -> str:
        status, text = self._answer("POST", "/-/reload")
        return "" if status == http.HTTPStatus.OK else text

    def _answer(self, method: str, path: str) -> tuple[int, str]:
        """Return status and text of an answer; 0 and the error without one."""
        connection = http.client.HTTPConnection("127.0.0.1", self._run.port, timeout=_RELOAD_SECONDS)
        try:
            connection.request(method, path, headers=self._headers)
            response = connection.getresponse()
            text = response.read().decode(errors="replace").strip()
        except (OSError, http.client.HTTPException) as error:
            return 0, f"{type(error).__name__}: {error}"
        finally:
            connection.close()
        return response.status, f"status {response.status}: {text[:200]}"

    def _process(self) -> Iterator[str]:
        if self._run.process.poll() is not None:
            yield f"the daemon has ended with {self._run.process.returncode}"
            return
        if "Traceback" in self._run.log():
            yield "the log has a traceback"
        used = _bytes(self._run.pid)
        self.most_bytes = max(self.most_bytes, used)
        if used > _MAX_BYTES:
            yield f"the daemon and its processes take {used / 2**20:.0f} MiB"


def _bytes(pid: int) -> int:
    """Return the proportional memory of a process and its children, in bytes; what has ended counts nothing."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        children = [int(c) for task in Path(f"/proc/{pid}/task").glob("*/children") for c in task.read_text().split()]
    except OSError:
        return 0
    own = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
    return own + sum(map(_bytes, children))
