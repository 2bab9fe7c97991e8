import re
from pathlib import Path
from typing import Any

import pytest
from qa.worlds.nodes import Gpu, Node, Program

from gpugauge.doctor.process import existence
from gpugauge.doctor.report import lines
from gpugauge.doctor.table import examine
from tests.doctor.cases import NO_DRIVER, case
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


def test_gpus_that_only_the_daemon_has(tmp_path: Path) -> None:
    other = Gpu("GPU-1", 1, "NVIDIA H100", reset=True, slowed="hw_slowdown")
    with serving(answers_of(Node([*NODE.gpus, other], NODE.programs))) as url:
        machine, process = (case(tmp_path, NO_DRIVER, pci={}, pid=pid, url=url, timed=False) for pid in (None, 7))
        found = [[entry.finding for entry in examine(of)] for of in (machine, process)]
        summary = " ".join(lines(machine, [], colour=False))

    for several in found:
        text = "; ".join(finding.found for finding in several)
        assert "2 x NVIDIA H100 of the daemon" in text
        assert not re.search("no GPU answers|train on the CPU|driver reports none|not installed", text)
    levels = [finding.level for several in found for finding in several if finding.title in {"Faults", "Clocks"}]
    assert levels == ["failure", "warning", "pass", "pass"]
    assert re.search(
        rf"1 of 2 GPUs .* Repair of GPU 1, now: in this order .*1[.] .* Next: .*: gpugauge doctor 7 --url {url}$",
        summary,
    )


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
