from collections.abc import Iterator

import pytest

from gpugauge.doctor import daemon as daemon_module
from gpugauge.doctor.daemon import ask_daemon
from tests.doctor.daemons import serving

TEXT = """\
# TYPE gpugauge_build_info gauge
gpugauge_build_info{simulated="true",version="1"} 1
# TYPE training_end_timestamp_seconds gauge
training_end_timestamp_seconds{process="old"} 1.7e9
# TYPE torch_process_info gauge
torch_process_info{process="old",pid="7"} 1
torch_process_info{process="new",pid="7"} 1
# TYPE training_state gauge
training_state{process="new",state="training"} 0
training_state{process="new",state="stalled"} 1
"""


ANSWERS = {
    "/metrics": (200, TEXT),
    "/other": (200, "# TYPE up gauge\nup 1\n"),
    "/html": (200, "<html> {1"),
    "/no": (401, ""),
}


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # it would refuse
    with serving(ANSWERS) as metrics:
        yield metrics.removesuffix("/metrics")


def test_what_the_daemon_knows(url: str) -> None:
    daemon = ask_daemon(url + "/metrics")

    assert daemon.problem == ""
    assert daemon.process_of(7) == "new"
    assert daemon.process_of(8) is None
    assert daemon.current("training_state", "state", "new") == "stalled"
    assert daemon.value("training_end_timestamp_seconds", process="old") == 1.7e9
    assert daemon.value("training_end_timestamp_seconds", process="new") is None


@pytest.mark.parametrize("name", ["gpugauge_build_info", "gpu_up", "training_state", "torch_process_info"])
def test_a_daemon_that_leaves_metrics_out_is_known(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_module, "request", lambda *_, **__: f"{name} 1\n".encode())

    assert ask_daemon("http://127.0.0.1:1/metrics").problem == ""


@pytest.mark.parametrize(
    ("path", "problem"),
    [("/other", "is not gpugauge"), ("/html", "does not answer as gpugauge does"), ("/no", "answers 401")],
)
def test_what_is_no_daemon(url: str, path: str, problem: str) -> None:
    daemon = ask_daemon(url + path)

    assert problem in daemon.problem
    assert not daemon.samples


def test_nobody_answers() -> None:
    assert "does not answer" in ask_daemon("http://127.0.0.1:1/metrics").problem
    assert ask_daemon("file:///etc/passwd").problem.endswith("begins with http:// or https://")
