from pathlib import Path
from typing import Any

import pytest
from qa.worlds.nodes import Gpu, Node, Program

from gpugauge.doctor.process import existence
from tests.doctor.cases import case
from tests.doctor.daemons import answers_of, serving

NODE = Node(
    [Gpu("GPU-0", 0, "NVIDIA H100")],
    [Program("old", 7, "a.py", "ended", []), Program("new", 7, "b.py", "stalled", ["GPU-0"])],
)


def test_what_the_daemon_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # it would refuse
    with serving(answers_of(NODE)) as url:
        known, nobody = (case(tmp_path, pid=pid, url=url) for pid in (7, 8))
        assert known.daemon[1] == ""
        assert [process.facts.process for process in known.known] == ["new", "old"]

    assert (known.facts.process, known.facts.state) == ("new", "stalled")
    assert nobody.process is None
    assert existence(known).level == "warning"


def test_a_process_whose_pid_differs_is_known_by_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(answers_of(NODE)) as url:
        in_container = case(tmp_path, pid=8, url=url)
        monkeypatch.setattr(type(in_container.procfs), "process_id", lambda *_: "new")
        assert in_container.facts.pid == 7


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((404, "gone"), "answers 404: gone"),
        ((200, "<html> {1"), "does not answer as gpugauge does"),
        ((401, ""), "answers 401"),
    ],
)
def test_what_is_no_daemon(tmp_path: Path, answer: Any, problem: str) -> None:
    with serving({"/api/v1/status": answer}) as url:
        status, found = case(tmp_path, pid=7, url=url).daemon

    assert status is None
    assert problem in found


def test_nobody_answers(tmp_path: Path) -> None:
    assert "does not answer" in case(tmp_path, pid=7, url="http://127.0.0.1:1/metrics").daemon[1]
    assert case(tmp_path, pid=7, url="file:///etc/passwd").daemon[1].endswith("begins with http:// or https://")
