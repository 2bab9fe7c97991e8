import http.server
import io
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from qa.worlds.scraped import snapshot_of

from gpugauge.cli.common import with_scheme
from gpugauge.cli.status import exit_status, fetch, show
from gpugauge.doctor import DEFAULT_URL
from gpugauge.driver.advice import down_phrase
from gpugauge.driver.api import CODES, DOWN_REASONS
from gpugauge.snapshot import Section
from gpugauge.status.history import History
from gpugauge.status.model import Status, decoded
from gpugauge.terminal.screen import of_users
from gpugauge.terminal.table import table
from gpugauge.web.client import RequestError
from tests.drawn import cases
from tests.simulation import status as facts_of
from tests.status.statusfacts import family, snapshot

NOW = 1.7e9


def drawn(command: str = "train.py", *, up: int = 1, colour: bool = False) -> str:
    facts = json.loads(json.dumps(facts_of(snapshot(command, up=up), History()))) | {"host": "node-7"}
    return table(decoded(Status, facts), colour, NOW)


def test_table() -> None:
    text = drawn()

    assert text.splitlines() == [
        "SIMULATED: these GPUs do not exist.",
        "node-7: 1 collector of gpugauge failing; 1 of 2 GPUs allocated and not used",
        "",
        "Faults",
        "  Collector host: fails: no",
        "",
        "Wasted GPU time",
        "  GPU 1: allocated to pod web/idle-7, but no process uses it",
        "",
        "GPU  NAME            BUSY  BUSY 5m  MEMORY GiB  POWER W   TEMP  STATE",
        "      PID  BUSY 5m   GiB    AGE  STATE    PROGRAM",
        "  0  H100 80GB HBM3  93 %        -   41.0/80.0  612/700  64 °C  in use",
        "     4001        -  40.0  2.0 h  no hook  train.py pod ml/trainer-0, user 1000",
        "     and 3 more processes",
        "  1  H100 80GB HBM3   0 %        -    1.0/80.0   71/700      -  not used",
        "     held by pod web/idle-7, no process",
        "",
        "With torch, on no GPU",
        "      PID  BUSY 5m   GiB    AGE  STATE    PROGRAM",
        "       77        -     -      -  no hook  fit.py user ann",
        "",
        "no hook: if it trains, start it under the hook next time to learn its state:",
        "gpugauge run -- python train.py",
    ]


def without_gpus(reason: str, released_until: float | None = None) -> dict[str, Any]:
    found = [family("gpugauge_driver_up", ({"reason": reason}, int(reason == "ok")))]
    if released_until is not None:
        found.append(family("gpugauge_driver_released_until_timestamp_seconds", ({}, released_until)))
    return facts_of(snapshot_of(NOW, 1.0, (Section("all", tuple(found)),)), History())


@cases(
    ("driver", "status", "words"),
    [
        ({"reason": "driver_not_loaded"}, 1, "The driver is not available: its kernel module is not loaded"),
        ({"reason": "code_4711"}, 1, "The driver is not available: it reports code_4711"),
        ({"reason": "released", "released_until": NOW}, 2, "The driver is released until 2023-11-14 22:13:20 UTC"),
        ({"reason": "off"}, 0, "No GPU is watched: driver.mode is off"),
        ({"reason": "starting"}, 2, "The driver is being opened"),
        ({"reason": "ok"}, 1, "No GPU: the driver lists none, or the settings exclude all"),
    ],
)
def test_node_without_gpus(driver: dict[str, Any], status: int, words: str) -> None:
    facts = without_gpus(**driver)

    assert words in " ".join(table(decoded(Status, facts), False, NOW).split())
    assert exit_status(decoded(Status, facts)) == status


def test_each_problem_that_is_listed_is_in_the_exit_status() -> None:
    one = {
        "subject": "train.py",
        "text": "waits for data 99 % of its time",
        "grave": False,
        "gpus": [],
        "processes": ["a"],
    }
    facts = without_gpus("ok")

    for kind in ("waits", "on_cpu"):
        found = decoded(Status, facts | {"problems": [one | {"kind": kind}]})
        assert (exit_status(found), exit_status(found, "health")) == (3, 0)


def test_driver_that_is_down_with_what_to_do() -> None:
    found = decoded(Status, without_gpus(reason="driver_not_loaded"))
    assert exit_status(of_users(found, ["ann"])) == exit_status(found) == 1
    text = " ".join(table(found, False, NOW).split())

    assert (
        "→ the NVIDIA library is there but its kernel driver is not loaded: load the module (modprobe nvidia)" in text
    )


@cases(
    ("who", "shown"),
    [
        ({"kind": "pod", "namespace": "ml", "pod": "a-0", "user": "1000"}, "fit.py pod ml/a-0, user 1000"),
        ({"kind": "slurm", "job_id": "77", "user": "ann"}, "fit.py Slurm job 77, user ann"),
        ({"kind": "systemd", "job_id": "web.service", "user": "root"}, "fit.py unit web.service, user root"),
        ({"kind": "container", "container": "0f1e2d3c4b5a"}, "fit.py container 0f1e2d3c4b5a"),
        ({}, "fit.py"),
    ],
)
def test_who(who: dict[str, str], shown: str) -> None:
    facts = facts_of(snapshot(), History())
    facts["gpus"][0]["processes"][0] |= {"workload": who, "command": "fit.py"}

    assert f"  {shown}\n" in table(decoded(Status, facts), False, NOW)


def test_cause_and_what_the_hook_reports() -> None:
    facts = facts_of(snapshot(), History())
    loader = {"workers": "1", "batch_size": "32", "pin_memory": "no"}
    facts["gpus"][0]["processes"][0] |= {
        "limited_by_words": "waits for its data loader",
        "lost_ratio": 0.7,
        "state": "training",
        "step_seconds": 0.12,
        "phase": "loading",
        "data_wait_ratio": 0.7,
        "rank": 3,
        "world_size": 8,
        "loader": loader,
        "last_step": NOW - 12.34,
    }

    text = table(decoded(Status, facts), False, NOW, 200)

    assert (
        "       step 120 ms · phase loading · 70 % waiting for data · rank 3 of 8 · "
        "loader: 1 worker, batch 32, not pinned · last step 12 s ago\n"
        "       waits for its data loader: 70 % of its GPU time is lost\n"
    ) in text


def test_training_on_the_cpu_has_rate_phase_wait_and_last_step() -> None:
    facts = facts_of(snapshot(), History())
    shares = {"data": 0.7, "peers": 0.1, "rest": 0.2}
    facts["without_gpu"][0] |= {"state": "training_on_cpu", "step_shares": shares, "step_seconds": 1.5}
    facts["without_gpu"][0] |= {"phase": "training", "last_step": NOW - 1}
    facts["gpus"][0]["processes"][0] |= {"step_shares": {"data": 0.4, "rest": 0.6}}

    text = table(decoded(Status, facts), False, NOW, 200)

    assert "step 1.5 s · 70 % waiting for data, 10 % waiting for other ranks, 20 % the rest\n" in text
    assert "60 %" not in text  # its GPU is more important


def test_what_makes_a_cause_decidable() -> None:
    facts = facts_of(snapshot(), History())
    facts["gpus"][0]["processes"][0] |= {"state": "training", "undecidable": ["data_loading", "host_bound"]}

    assert "declare the loader" in " ".join(table(decoded(Status, facts), False, NOW).split())


def test_device_that_does_not_answer() -> None:
    assert "  0 H100 80GB HBM3 GPU-a down: every call returns" in drawn(up=0)


def test_device_that_is_down_for_a_known_reason() -> None:
    facts = facts_of(snapshot(up=0), History())
    facts["gpus"][0] |= {"name": None, "uuid": "PCI-00000000:65:00.0", "index": None, "down_reason": "not_enumerated"}

    line = next(line for line in table(decoded(Status, facts), False, NOW).splitlines() if "PCI-" in line)

    assert line == "  ? PCI-00000000:65:00.0 down: the driver does not list it"


def test_phrases_are_short() -> None:
    reasons = (*DOWN_REASONS, *CODES, "code_77", None)

    assert max(len(down_phrase(reason)) for reason in reasons) <= 51


def test_hostile_names_do_not_control_the_terminal_or_break_the_table() -> None:
    text = drawn("\x1b[2Jevil\n\u202e" + "x" * 10_000)

    assert "\x1b" not in text
    assert "\u202e" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "?[2Jevil" in text


def test_colours_change_nothing_else() -> None:
    assert re.sub("\x1b\\[[\\d;]+m", "", drawn(colour=True)) == drawn()


@pytest.fixture
def daemon() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/api/v1/status"
            body = json.dumps(facts_of(snapshot(), History())).encode() if found else b"gone\x1b[2J"
            self.send_response(200 if found else 503)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_table_without_colours_when_not_on_a_terminal(daemon: str) -> None:
    out = io.StringIO()

    show(daemon + "/", as_json=False, watch=False, out=out)

    assert "H100" in out.getvalue()
    assert "\x1b" not in out.getvalue()


@cases(("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colours_on_a_terminal(
    daemon: str, environment: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    out = Terminal()

    show(daemon, as_json=False, watch=False, out=out)

    assert ("\x1b[" in out.getvalue()) == coloured


def test_json(daemon: str) -> None:
    out = io.StringIO()

    show(daemon, as_json=True, watch=False, out=out)

    assert json.loads(out.getvalue())["gpus"][0]["uuid"] == "GPU-a"


def test_errors_are_one_sentence(daemon: str) -> None:
    with pytest.raises(RequestError, match=r"answers 503: gone\?\[2J$"):
        show(daemon + "/elsewhere", as_json=False, watch=False)
    with pytest.raises(RequestError, match="is `gpugauge serve` running"):
        show("http://127.0.0.1:9", as_json=False, watch=False)
    with pytest.raises(RequestError, match="begins with http"):
        show("file:///etc/passwd", as_json=False, watch=False)


@cases(
    ("written", "used"),
    [
        (DEFAULT_URL, DEFAULT_URL),
        ("node7:9100", "http://node7:9100"),
        ("node7:9100/gpu/", "http://node7:9100/gpu/"),
        ("node7", "http://node7:10478"),
        ("10.0.0.7", "http://10.0.0.7:10478"),
        ("[::1]", "http://[::1]:10478"),
        ("[::1]:9100", "http://[::1]:9100"),
        ("https://node7", "https://node7"),
        ("file:///etc/passwd", "file:///etc/passwd"),
    ],
)
def test_address_without_a_scheme(written: str, used: str) -> None:
    assert with_scheme(written) == used


def test_watch_survives_a_restart_of_the_daemon(daemon: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out, fetched, pauses = io.StringIO(), fetch, iter([None, None, None])

    def failing_once(url: str) -> Any:
        fetches.append(url)
        if len(fetches) == 2:
            raise RequestError("it restarts")
        return fetched(url)

    def sleep(_: float) -> None:
        if next(pauses, 0) == 0:
            raise KeyboardInterrupt

    fetches: list[str] = []
    monkeypatch.setattr("gpugauge.cli.status.fetch", failing_once)
    monkeypatch.setattr("gpugauge.cli.status.time.sleep", sleep)

    assert exit_status(show(daemon, as_json=False, watch=True, out=out)) == 1
    assert (out.getvalue().count("GPU  STATE"), out.getvalue().count("gpugauge: it restarts\n")) == (3, 1)
