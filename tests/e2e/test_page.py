"""The page in a real browser."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tornado.websocket import websocket_connect

from gpugauge.snapshot import Snapshot
from gpugauge.status.history import History
from gpugauge.web.page.routes import page_routes
from gpugauge.web.server import Reply, Request, Route, Server
from tests.e2e.programs import daemon, http, wait_for
from tests.needs import need
from tests.serving import answer
from tests.status.statusfacts import snapshot

pytestmark = pytest.mark.e2e

FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
FLAGS += " --disable-component-update --disable-sync --enable-logging=stderr --window-size=1280,1000"
HOSTILE = "</th><script>document.title='taken'</script><img src=x onerror=document.title='taken'>"
MEASURE = """<!DOCTYPE html><title>wait</title><iframe src="/framed" width="320" height="900"></iframe>
<script>document.querySelector("iframe").onload = (event) => {
  const root = event.target.contentDocument.documentElement;
  document.title = `width ${root.scrollWidth} of ${root.clientWidth}`;
}</script>"""


class Recorded(History):
    """Ten minutes of half load."""

    def loads(self, _uuid: str) -> list[tuple[float, float | None]]:
        return [(600.0 - 5 * n, 0.5 if n else None) for n in range(121)]


@contextmanager
def serving(scenario: str | None = None, command: str = "train-{}.py") -> Iterator[tuple[str, list[int]]]:
    """Serve the page with a new snapshot for each request; yield the URL and the list of the requests' numbers.

    The number of the request is in the command of a process.
    """
    numbers: list[int] = []

    def current() -> Snapshot:
        numbers.append(len(numbers) + 1)
        return replace(snapshot(command.format(numbers[-1])), monotonic=time.monotonic())

    routes = page_routes(current, Recorded(), lambda: None, "/metrics", scenario)
    page = routes["/"]

    def framed(request: Request) -> Reply:
        return answer(page, request)._replace(headers=())

    routes["/framed"] = Route(framed)
    routes["/measure"] = Route(lambda _: Reply(200, MEASURE.encode(), "text/html"))
    server = Server([("127.0.0.1", 0)], routes)
    server.start()
    try:
        yield f"http://127.0.0.1:{server.addresses[0][1]}", numbers
    finally:
        server.stop()


def dom(folder: Path, url: str, *flags: str) -> str:
    """Return the document after the browser has loaded it. Fails if the console has messages."""
    command = [need("chromium"), *FLAGS.split(), f"--user-data-dir={folder / 'browser'}", *flags, "--dump-dom", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    messages = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert messages == []
    return done.stdout


@contextmanager
def opened(folder: Path, url: str) -> Iterator[Callable[[str], Any]]:
    """Keep the page open in a browser; yield a function that evaluates an expression in it."""
    profile = folder / "browser"
    flags = [*FLAGS.split(), "--remote-debugging-port=0", f"--user-data-dir={profile}"]
    browser = subprocess.Popen([need("chromium"), *flags, url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def tab() -> str:
        port = profile / "DevToolsActivePort"
        _, listed = http(f"http://127.0.0.1:{port.read_text().split()[0]}/json/list") if port.exists() else (0, b"")
        return next((t["webSocketDebuggerUrl"] for t in json.loads(listed or b"[]") if t["type"] == "page"), "")

    try:
        socket = wait_for(tab, 60, "the browser is open")
        yield lambda expression: asyncio.run(evaluated(socket, expression))
    finally:
        browser.terminate()
        browser.wait(20)


async def evaluated(socket: str, expression: str) -> Any:
    """Call Runtime.evaluate: https://chromedevtools.github.io/devtools-protocol/tot/Runtime/#method-evaluate."""
    connection = await websocket_connect(socket)
    try:
        question = {"expression": expression, "returnByValue": True}
        await connection.write_message(json.dumps({"id": 1, "method": "Runtime.evaluate", "params": question}))
        while True:
            message = await connection.read_message()
            assert message is not None, "the browser hung up"
            answer = json.loads(message)
            if answer.get("id") == 1:
                assert "exceptionDetails" not in answer["result"], answer
                return answer["result"]["result"].get("value")
    finally:
        connection.close()
        while await connection.read_message() is not None:
            """Read until the browser has closed the connection."""


def test_content_without_messages_on_the_console(tmp_path: Path) -> None:
    with serving("node") as (url, _):
        page = dom(tmp_path, url)

    assert "Simulated: these GPUs do not exist." in page
    assert "train-1.py" in page
    assert "mean 50 %, from 50 % to 50 %" in page
    assert "<strong>Collector host:</strong> fails: no" in page


def test_it_updates_itself(tmp_path: Path) -> None:
    with serving() as (url, numbers):
        page = dom(tmp_path, url, "--virtual-time-budget=12000")

    shown = re.search(r"train-(\d+)\.py", page)
    assert shown
    assert 1 < int(shown[1]) <= len(numbers)
    assert 'id="lost" class="banner bad" role="status" hidden' in page


def test_without_script_the_browser_reloads_the_page(tmp_path: Path) -> None:
    # The debugging port keeps the browser running.
    flags = ["--blink-settings=scriptEnabled=false", "--remote-debugging-port=0", f"--user-data-dir={tmp_path}"]
    with serving() as (url, numbers):
        command = [need("chromium"), *FLAGS.split(), *flags, url]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: len(numbers) >= 3, 60, "the page was loaded three times")
        finally:
            browser.terminate()
            browser.wait(20)


def test_hostile_names_are_shown_as_text(tmp_path: Path) -> None:
    with serving(HOSTILE, HOSTILE) as (url, _):
        page = dom(tmp_path, url, "--virtual-time-budget=7000")

    assert "· gpugauge</title>" in page
    assert "&lt;script&gt;document.title='taken'&lt;/script&gt;" in page
    assert page.count("<script") == 1


def test_a_narrow_window_needs_no_scrolling_sideways(tmp_path: Path) -> None:
    with serving("node", "a-long-name-without-a-space" * 6) as (url, _):
        page = dom(tmp_path, f"{url}/measure", "--virtual-time-budget=3000")

    measured = re.search(r"<title>width (\d+) of (\d+)</title>", page)
    assert measured
    assert 280 < int(measured[2]) <= 320
    assert int(measured[1]) <= int(measured[2])


def test_page_shows_since_when_the_daemon_does_not_answer(tmp_path: Path) -> None:
    with ExitStack() as exits:
        running = exits.enter_context(daemon(tmp_path, "--simulate=healthy"))
        evaluate = exits.enter_context(opened(tmp_path, running.url))
        wait_for(lambda: evaluate("document.querySelectorAll('section.gpu').length") == 2, 30, "the page is there")
        assert evaluate("lost.hidden")

        running.stop()
        banner = wait_for(lambda: not evaluate("lost.hidden") and evaluate("lost.textContent"), 30, "the page says so")

        assert re.fullmatch(r"No answer since \d.*: these values are old\.", banner)
        assert evaluate("getComputedStyle(lost).display") != "none"
        assert evaluate("getComputedStyle(document.querySelector('main')).opacity") == "0.5"
        assert evaluate("document.querySelectorAll('section.gpu').length") == 2
        again = tmp_path / "again"
        again.mkdir()
        address = running.url.removeprefix("http://")
        exits.enter_context(daemon(again, "--simulate=idle", f"--web.listen-address={address}"))
        wait_for(lambda: evaluate("lost.hidden"), 30, "the page goes on")
        assert evaluate("getComputedStyle(document.querySelector('main')).opacity") == "1"


def test_a_driver_that_is_down_is_shown_with_advice(tmp_path: Path) -> None:
    with daemon(tmp_path, "--simulate=no-driver") as running:
        page = dom(tmp_path, running.url)

    assert "not available: driver_not_loaded" in page
    assert "<strong>Driver:</strong> not available: driver_not_loaded" in page
    assert "the NVIDIA library is there but its kernel driver is not loaded" in page


def test_the_daemon_serves_it(tmp_path: Path) -> None:
    with daemon(tmp_path, "--simulate=node") as running:
        page = dom(tmp_path, running.url)

    assert page.count('<section class="gpu') == 8
    assert "finetune.py" in page
    assert "Slurm job 88123" in page
