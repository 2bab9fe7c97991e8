"""What NCCL says of a job without the hook: who may say it, answers that are none, and what it is evidence for."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.drawn import cases

from gpugauge.collectors.training import nccl
from gpugauge.collectors.training.verdict import VerdictCollector
from gpugauge.workload import ras
from gpugauge.workload.processfiles import HostProcess
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.ras import Launches
from qa.worlds.answering import moments
from qa.worlds.ras import OLD, Ras, Send, answer, communicator, drips, missing, rank, says
from qa.worlds.test_spins import LATE, SEEN, STALLED
from qa.worlds.trees import proc

HERE = Path("/proc/self/ns/net").readlink().name[5:-1]
UID = os.getuid()
OK = answer(communicator([rank(0, 41, 5), rank(1, 42, 5)]))
EVEN = Launches(10, size=2)
LAST = Launches(21, behind=3, rank="0", host="127.0.0.1", unresponsive=1, dead=1, size=4)


def asked(tmp_path: Path, port: str, processes: Iterable[dict[str, Any]], wanted: str = "a") -> dict[str, Launches]:
    """Return what is said of `wanted`, of processes a, b … whose pids begin at 41."""
    made, procfs = proc(tmp_path), Procfs(str(tmp_path))
    hosts = {}
    for number, more in enumerate(processes):
        pid, name = 41 + number, "abcd"[number]
        environ = {"PATH": "/bin", "NCCL_RAS_ADDR": f"localhost:{port}"}
        options: dict[str, Any] = {"uid": UID, "network": HERE, "environ": environ}
        made.process(pid, **options | more)
        stat, status = procfs.stat(pid), procfs.status(pid)
        assert stat
        assert status
        hosts[name] = HostProcess(name, pid, stat, container_pid=status.container_pid)
    return ras.inquire(procfs, list(wanted), hosts)


def uneven(**status: Any) -> bytes:
    return answer(communicator([rank(0, 41, 9, **status), rank(1, 42, 12)], [missing(2, 7), missing(3, 8, dead=True)]))


MANY = answer(communicator([rank(n, 41, 5) for n in range(5000)]))
ANSWERS: tuple[tuple[Send, dict[str, Launches]], ...] = (
    (says(OK), {"a": EVEN}),
    (says(OK.replace(b"\n", b"")), {"a": EVEN}),
    (says(uneven()), {"a": LAST}),
    (says(uneven(abort_flag=True)), {"a": Launches(21, unresponsive=1, dead=1, size=4)}),
    (says(uneven(async_error=7)), {"a": LAST}),
    (says(uneven(init_state=7)), {"a": LAST}),
    (says(uneven(async_error=3)), {"a": Launches(21, unresponsive=1, dead=1, size=4)}),
    # The comma that 2.28.9 leaves out.
    (
        says(answer(communicator([rank(0, 41, 4)], [missing(1, 8, version=OLD)]))),
        {"a": Launches(4, unresponsive=1, size=2)},
    ),
    # Several communicators; another one in which the process is not.
    (
        says(
            answer(
                communicator([rank(0, 41, 4), rank(1, 42, 4)]),
                communicator([rank(0, 41, 2), rank(1, 44, 3)], name="0x4"),
                communicator([rank(0, 43, 1), rank(1, 44, 9)], name="0x5"),
            )
        ),
        {"a": Launches(13, behind=1, rank="0", host="127.0.0.1", size=2)},
    ),
    (says(MANY), {"a": Launches(25000, size=5000)}),
    (says(answer(communicator([rank(0, 41, 5, host="192.0.2.1")]))), {}),  # the pid of another machine
    (says(answer(communicator([rank(0, 41, 5, host="unknown")]))), {}),
    (says(answer(communicator([rank(0, 50, 5), rank(1, 51, 5)]))), {}),  # another job, which shares the port
    (says(answer()), {}),
    (says(OK[:-40]), {}),
    (says(OK[: len(OK) // 2]), {}),
    (says(b""), {}),
    (says(b"NCCL version 2.29.2 compiled with CUDA 12.9\nJob summary\n"), {}),
    (says(b'{"communicators": 3, "ranks": {}}'), {}),
    (says(b"{" + b'"rank": 1, "pid": 41,' * 600_000 + b"}"), {}),
    (says(b"[" * 9_000_000), {}),
    (says(OK * 12_000), {}),
    (drips, {}),
)


@cases(("send", "found"), ANSWERS)
def test_answers(send: Send, found: dict[str, Launches], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "_SECONDS", 3.0 if send is not drips else 0.3)
    begin = time.monotonic()
    with Ras(send) as server:
        assert asked(tmp_path, str(server.port), [{}]) == found
        assert server.lines == ["CLIENT PROTOCOL 2", "SET FORMAT json", "MONITOR none", "STATUS"]
    assert time.monotonic() - begin < 5.0


@cases(
    ("processes", "version", "lines"),
    [
        ([{"uid": UID + 1}], (2, 29, 2), 0),  # the port is another user's
        ([{"network": "1"}], (2, 29, 2), 0),
        ([{"network": ""}], (2, 29, 2), 0),  # not known
        ([{"container_pid": 7}, {"container_pid": 7}], (2, 29, 2), 0),  # two containers
        ([{"container_pid": 42}, {}], (2, 29, 2), 0),
        ([{"environ": {}}], (2, 29, 2), 0),  # its own port is another one, on which nobody listens
        ([{"environ": {"NCCL_RAS_ADDR": "localhost"}}], (2, 29, 2), 0),
        ([{}], (2, 24, 3), 2),  # no JSON
        ([{}], OLD, 3),  # may crash
        ([{}], (2, 32, 3), 4),
    ],
)
def test_who_is_asked(
    processes: list[dict[str, Any]],
    version: tuple[int, ...],
    lines: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ras, "_PORT", 9)  # nobody listens
    with Ras(says(OK), version) as server:
        assert asked(tmp_path, str(server.port), processes) == ({"a": EVEN} if lines == 4 else {})
        assert len(server.lines) == lines


class _AtOnce:
    """The Background of a test in virtual time."""

    running = None

    def __init__(self, name: str) -> None:
        self._result: Any = None

    def start(self, work: Callable[[], Any], wait_seconds: float) -> None:
        self._result = work()

    def take(self) -> Any:
        found, self._result = self._result, None
        return found


FEW, GONE = Launches(7, behind=2, rank="5", host="10.0.0.5", size=8), Launches(7, unresponsive=1, size=8)


@pytest.mark.timeout(900)
@cases(
    ("at", "gpus", "said", "stalled"),
    [
        (1, 2, lambda n: FEW, True),  # from before the start of the daemon
        (1, 1, lambda n: GONE, True),  # one GPU of many nodes
        (100, 2, lambda n: Launches(7, size=8), True),  # after work; equal launches say nothing
        (1, 2, lambda n: Launches(7, size=8), False),
        (1, 2, lambda n: FEW._replace(total=n), False),
        (100, 2, lambda n: GONE._replace(total=n), False),  # what draws less and waits launches collectives
        (1, 2, lambda n: FEW._replace(total=n) if n < 10 else None, False),  # … as far as is known
        (1, 2, lambda n: FEW if n % 2 else None, True),  # another job on the same port answers, too
        (1, 2, lambda n: None, False),
    ],
)
def test_evidence(
    at: int,
    gpus: int,
    said: Callable[[int], Launches | None],
    stalled: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    questions: list[list[str]] = []

    def inquire(_: Procfs, wanted: list[str], hosts: object) -> dict[str, Launches]:
        questions.append(wanted)
        launches = said(len(questions))
        return dict.fromkeys(wanted, launches) if launches else {}

    monkeypatch.setattr(nccl, "inquire", inquire)
    monkeypatch.setattr(nccl, "Background", defaultdict(lambda: _AtOnce))
    monkeypatch.setattr(VerdictCollector, "configure", lambda collector, _: setattr(collector, "_asks", True))
    text = f"gpus: {{model: h100, count: {gpus}}}\nprocesses:\n"
    text += f"  - {{pid: 100, gpus: {list(range(gpus))}, memory: 20GiB, cgroup: /job-1, hook: false, "
    text += f"pipeline: {{world_size: 8}}, phases: {{stalled_at: {at}, spins: true}}}}\n"
    for moment in moments(text, tmp_path, monkeypatch, at + STALLED + LATE + 60, 5.0, collectors=SEEN):
        states = {p["state"] for gpu in moment.facts["gpus"] for p in gpu["processes"]}
        late = moment.second > at + STALLED + LATE + 15
        assert (states == {"stalled"}) == (stalled and (late or "stalled" in states)), (moment.second, states)
        if moment.second < at + 60:
            assert not questions
        behind = moment.of("training_nccl_collectives_behind")
        if behind and (launches := said(len(questions))):
            assert {(*labels[1:], n) for labels, n in behind.items()} == {
                (launches.rank, launches.host, launches.behind)
            }
    assert len(questions) <= (STALLED + LATE + 60) / 15
    assert bool(behind) == (said(999) is not None)
