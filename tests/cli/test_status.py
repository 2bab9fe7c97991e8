import http.server
import io
import json
import re
import threading
from collections.abc import Iterator

import pytest

from gpugauge.cli.status import show
from gpugauge.cli.status_table import table
from gpugauge.driver.api import CODE_NAMES, DOWN_REASONS
from gpugauge.status.down import down_phrase
from gpugauge.status.history import History
from gpugauge.status.node import status as facts_of
from gpugauge.web.client import RequestError
from tests.status.statusfacts import snapshot

NOW = 1.7e9


def drawn(command: str = "train.py", *, up: int = 1, colour: bool = False) -> str:
    return table(json.loads(json.dumps(facts_of(snapshot(command, up=up), History()))), colour, NOW)


def test_table() -> None:
    text = drawn()

    assert text.splitlines() == [
        "SIMULATED: these GPUs do not exist.",
        "Collector host fails: no",
        "GPU  NAME                      LOAD  5 MIN     MEMORY GiB    POWER W  TEMP",
        "  0  H100 80GB HBM3            93 %      -      41.0/80.0    612/700    64",
        "           4001    -   40.0    2h  ml/trainer-0 train.py",
        "       and 3 more processes",
        "  1  H100 80GB HBM3             0 %      -       1.0/80.0     71/700     -",
        "       held by web/idle-7, no process",
        "",
        "With torch, but on no GPU:",
        "             77    -      -     -  ann fit.py",
    ]


def test_driver_that_is_down_with_what_to_do() -> None:
    facts = {"driver": {"up": False, "reason": "driver_not_loaded", "advice": "load the module " * 8}, "gpus": []}

    first, *advice, _ = table(facts, False, NOW).splitlines()

    assert first == "The driver is not available: driver_not_loaded"
    assert " ".join(" ".join(advice).split()) == " ".join(["load the module"] * 8)
    assert max(map(len, advice)) <= 80


def test_released_driver_is_no_failure() -> None:
    facts = {"driver": {"up": False, "reason": "released", "released_until": NOW}, "gpus": []}

    text = table(facts, False, NOW)

    assert text.splitlines()[0] == "The driver is released until 22:13:20 UTC on 14 November: the GPUs are not watched."
    assert "no GPU" not in text


@pytest.mark.parametrize(
    ("who", "shown"),
    [
        ({"kind": "pod", "namespace": "ml", "pod": "a-0", "job_id": "3f1c0d1e-8a2b", "user": "1000"}, "ml/a-0 fit.py"),
        ({"kind": "pod", "job_id": "3f1c0d1e-8a2b", "user": "1000"}, "pod 3f1c0d1e 1000 fit.py"),
        ({"kind": "slurm", "job_id": "77", "user": "ann"}, "job 77 ann fit.py"),
        ({"kind": "systemd", "job_id": "web.service", "user": "root"}, "web.service root fit.py"),
        ({"kind": "container", "container": "0f1e2d3c4b5a"}, "0f1e2d3c4b5a fit.py"),
        ({}, "fit.py"),
    ],
)
def test_who(who: dict[str, str], shown: str) -> None:
    facts = facts_of(snapshot(), History())
    facts["gpus"][0]["processes"][0] |= {"workload": who, "command": "fit.py", "state": "unknown"}

    assert table(facts, False, NOW).splitlines()[4].endswith(f"  {shown}")


def test_state_and_cause() -> None:
    facts = facts_of(snapshot(), History())
    facts["gpus"][0]["processes"][0] |= {"state": "training", "limited_by": "data_loading"}

    line = table(facts, False, NOW).splitlines()[4]

    assert line.endswith("  [training: data_loading]")
    assert len(line) <= 80


def test_parts_of_the_steps_of_a_training_on_the_cpu() -> None:
    facts = facts_of(snapshot(), History())
    facts["without_gpu"][0] |= {"state": "training_on_cpu", "step_shares": {"data": 0.7, "peers": 0.1, "rest": 0.2}}
    facts["gpus"][0]["processes"][0] |= {"step_shares": {"data": 0.4, "rest": 0.6}}

    text = table(facts, False, NOW)

    assert text.endswith(
        "\n" + 16 * " " + "70 % waiting for data, 10 % waiting for other ranks, 20 % the\n" + 16 * " " + "rest\n"
    )
    assert "40 %" not in text  # its GPU is more important


def test_what_makes_a_cause_decidable() -> None:
    facts = facts_of(snapshot(), History())
    facts["gpus"][0]["processes"][0] |= {"state": "training", "undecidable": ["data_loading", "host_bound"]}

    assert "declare the loader" in " ".join(table(facts, False, NOW).split())


def test_device_that_does_not_answer() -> None:
    assert "  0  H100 80GB HBM3          does not answer" in drawn(up=0)


def test_device_that_is_down_for_a_known_reason() -> None:
    facts = facts_of(snapshot(up=0), History())
    facts["gpus"][0] |= {"name": None, "uuid": "PCI-00000000:65:00.0", "index": None, "down_reason": "not_enumerated"}

    line = next(line for line in table(facts, False, NOW).splitlines() if "PCI-" in line)

    assert line == "  ?  PCI-00000000:65:00.0    down: the driver does not list it"


def test_phrases_fit_the_table() -> None:
    reasons = (*DOWN_REASONS, *CODE_NAMES.values(), "code_77", None)

    assert max(len(down_phrase(reason)) for reason in reasons) <= 51


def test_hostile_names_do_not_control_the_terminal_or_break_the_table() -> None:
    text = drawn("\x1b[2Jevil\n\u202e" + "x" * 10_000)

    assert "\x1b" not in text
    assert "\u202e" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "?[2Jevil??xxx" in text


def test_colours_change_nothing_else() -> None:
    assert re.sub("\x1b\\[\\d+m", "", drawn(colour=True)) == drawn()


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


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
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
