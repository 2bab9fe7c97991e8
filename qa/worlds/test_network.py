"""The network of a training on one node, by files of NCCL Inspector: it is slow only if no rank is late. Drawn."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.drawn import cases, draws, seeds

from gpugauge.collectors.training.nccl import Inspector
from gpugauge.collectors.training.verdict import VerdictCollector
from gpugauge.driver.api import Device, DeviceReading
from gpugauge.node.node import Node
from gpugauge.sessions.session import Session
from gpugauge.settings.model import Settings, Verdict
from gpugauge.verdict.network import Networks
from gpugauge.wire import messages as wire
from gpugauge.workload.inspector import Dump, dumps
from qa.worlds.answering import START as START_OF_NODE
from qa.worlds.answering import moments
from qa.worlds.inspector import Job, drawn, uuid_of, write
from qa.worlds.test_spins import SEEN

LINKS = 18 * 26562e6  # of the NVLinks of an H100
START = 1.79e9


def node(ranks: int, *, links: bool = True, world: int | None = None) -> Node:
    """Return a node with a training of so many ranks, each on a GPU."""
    speeds = {str(link): 26562 for link in range(18)} if links else None
    reading = DeviceReading(
        nvlink_active=dict.fromkeys(speeds or {}, True) or None, nvlink_speed_megabytes_per_second=speeds
    )
    gpus = tuple(Device(uuid_of(rank), True, "ok", reading, {}) for rank in range(ranks))
    facts = {"world_size": str(world or ranks), "backend": "nccl"}
    sessions = {}
    for rank in range(ranks):
        snap = wire.Snap("a" * 32, 1, devices=(wire.Device(0, uuid_of(rank), allocated=1 << 30),))
        hello = wire.Hello("a" * 32, 0, 1, None, START, facts | {"rank": str(rank)})
        sessions[f"p{rank}"] = Session(hello, 4242, os.getuid(), snap)
    return Node(timestamp=START + 60, monotonic=60.0, devices=gpus, sessions=sessions)


def written(folder: Path, job: Job, dice: random.Random, at: float) -> dict[str, tuple[str, Dump]]:
    """Return what is read of the files of a job."""
    for rank, text in enumerate(job.texts(dice)):
        write(folder, uuid_of(rank), text, at - dice.randrange(30))
    found, refused = dumps(folder, [uuid_of(rank) for rank in range(job.ranks)], at - 90)
    assert (len(found), refused) == (job.ranks, 0)
    return {f"p{rank}": (uuid_of(rank), found[uuid_of(rank)]) for rank in range(job.ranks)}


def named(folder: Path, before: Job | None, job: Job, dice: random.Random, *, links: bool) -> bool:
    """Return whether the network of a job is slow, in which it was as `before`."""
    networks, one = Networks(), node(job.ranks, links=links)
    for turn in range(4 if before else 0):
        assert before
        networks.slow(one, written(folder, before, dice, START + 60 * turn))
    slow = networks.slow(one, written(folder, job, dice, START + 600))
    assert slow in (set(), set(one.sessions))
    return bool(slow)


@seeds(draws(300, 4000))
def test_a_late_rank_on_a_fast_network_is_never_a_slow_network(seed: int, tmp_path: Path) -> None:
    """Of the links, and of what the same ranks reached, a network has at least a sixteenth, and half."""
    dice = random.Random(seed)
    fast = LINKS * 10 ** dice.uniform(-1.2, -0.2)
    before = drawn(dice, fast, late=dice.random() < 0.2) if dice.random() < 0.7 else None
    job = drawn(dice, fast * dice.uniform(0.5, 1.0), late=dice.random() < 0.8)
    if before:
        job = replace(job, ranks=before.ranks, buckets=before.buckets)

    assert not named(tmp_path, before, job, dice, links=dice.random() < 0.7)


def test_a_slow_network_is_named_where_no_rank_is_late(tmp_path: Path) -> None:
    found = Counter[str]()
    for seed in range(200):
        dice = random.Random(f"slow {seed}")
        slow = drawn(dice, LINKS * 10 ** dice.uniform(-3.0, -1.9), late=False)
        found["links"] += named(tmp_path, None, slow, dice, links=True)
        found["nothing"] += named(tmp_path, None, slow, dice, links=False)
        before = replace(slow, bandwidth=slow.bandwidth * dice.uniform(9, 100))
        found["before"] += named(tmp_path, before, slow, dice, links=False)
        late = replace(slow, lateness="any one", late=10 ** dice.uniform(0.5, 2))
        found["late"] += named(tmp_path, before, late, dice, links=True)

    assert found["links"] >= 190, found
    assert found["before"] >= 190, found
    assert found["nothing"] == 0


def has_read(inspector: Inspector, one: Node) -> set[str]:
    """Return the processes with a file, once the folder is read."""
    for _ in range(500):
        found = inspector.read(one)
        if inspector._work.running is None and inspector._due:
            return set(inspector.read(one)) or set(found)
        time.sleep(0.01)
    raise TimeoutError


@cases(
    ("changes", "found"),
    [
        ({}, {"p0", "p1"}),
        ({"peer_uid": os.getuid() + 1}, {"p1"}),  # its GPU's file is another user's
        ({"ended_at": START + 50}, {"p1"}),
        ({"hello": wire.Hello("a" * 32, 0, started=START + 58)}, {"p1"}),  # an earlier program wrote it
        ({"snap": None}, {"p1"}),
        ({"snap": wire.Snap("a" * 32, 1, devices=(wire.Device(0, uuid_of(0), allocated=0),))}, {"p1"}),
        ({"snap": wire.Snap("a" * 32, 1, devices=(wire.Device(0, uuid_of(1), allocated=1),))}, set()),  # two on a GPU
    ],
)
def test_whose_a_file_is(changes: dict[str, Any], found: set[str], tmp_path: Path) -> None:
    inspector, one = Inspector(), node(2)
    inspector.folder = tmp_path
    for rank in range(2):
        write(
            tmp_path,
            uuid_of(rank),
            Job(2, (("AllReduce", 1),), 1.0, 0, "one", 0).texts(random.Random(1))[rank],
            START + 55,
        )

    assert (
        has_read(inspector, replace(one, sessions={**one.sessions, "p0": one.sessions["p0"]._replace(**changes)}))
        == found
    )


@pytest.mark.parametrize(("at", "found"), [(-31, False), (-29, True), (60, True), (151, False)])
def test_a_file_of_another_time_is_not_current(at: float, found: bool, tmp_path: Path) -> None:
    inspector, one = Inspector(), node(1)
    inspector.folder = tmp_path
    hello = wire.Hello("a" * 32, 0, started=START - 1000)
    write(tmp_path, uuid_of(0), Job(2, (("AllReduce", 1),), 1.0, 0, "one", 0).texts(random.Random(1))[0], START + at)

    one = replace(one, sessions={"p0": one.sessions["p0"]._replace(hello=hello)})
    assert has_read(inspector, one) == ({"p0"} if found else set())


def test_a_folder_that_cannot_be_read_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    inspector, one = Inspector(), node(2)
    inspector.folder = tmp_path / "a"
    for second in (60, 80, 100):
        assert has_read(inspector, replace(one, monotonic=float(second))) == set()

    assert caplog.messages == ["files of NCCL Inspector cannot be used"]
    inspector.folder = None
    assert inspector.read(one) == {}


@pytest.mark.parametrize("world", [16, 4])  # ranks on other nodes; two trainings of a user
def test_other_ranks_may_be_late(world: int, tmp_path: Path) -> None:
    dice = random.Random(1)
    job = replace(drawn(dice, LINKS / 300, late=False), ranks=8)
    figures = written(tmp_path, job, dice, START + 60)

    assert Networks().slow(node(8), figures) == set(node(8).sessions)
    assert not Networks().slow(node(8, world=world), figures)
    assert not Networks().slow(node(8), {p: of for p, of in figures.items() if p != "p3"})


@pytest.mark.parametrize("size", [4, 1500])
def test_small_messages_and_sizes_that_are_not_known_say_nothing(size: int, tmp_path: Path) -> None:
    job = replace(drawn(random.Random(1), LINKS / 300, late=False), buckets=(("AllReduce", size << 20),), ranks=4)

    assert not Networks().slow(node(4), written(tmp_path, job, random.Random(1), START + 60))


def test_a_training_on_a_slow_network_is_limited_by_it_while_its_files_are_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks wait. One has a link in the place of its file until 300 s; from 500 s on nothing is written."""
    folder, dice = tmp_path / "prom", random.Random(2)
    folder.mkdir()
    configure, chosen = VerdictCollector.configure, Settings(verdict=Verdict(nccl_inspector_dir=folder))
    monkeypatch.setattr(VerdictCollector, "configure", lambda collector, _: configure(collector, chosen))
    rest = f"memory: 20GiB, uid: {os.getuid()}, pipeline: {{peer: 0.3, world_size: 2}}"
    text = "gpus: {model: h100, count: 2}\nprocesses:\n"
    for gpu in range(2):
        cgroup = f"/slurm/uid_0/job_7/step_0/task_{gpu}"
        text += f"  - {{pid: {100 + gpu}, gpus: [{gpu}], cgroup: {cgroup}, {rest}}}\n"
    job = Job(2, (("AllReduce", 30 << 20),), LINKS / 300, 0.1, "one", 0.0)
    seen: dict[float, tuple[set[str], list[float]]] = {}
    for moment in moments(text, tmp_path / "proc", monkeypatch, 660.0, 5.0, collectors=SEEN | {"device"}):
        uuids = [uuid for uuid, *_ in moment.of("gpu_up")]
        if moment.second % 30 == 0 and moment.second < 500:
            for uuid, content in zip(uuids, job.texts(dice), strict=True):
                path = write(folder, uuid, content, START_OF_NODE + moment.second)
                if uuid == uuids[0] and moment.second < 300:
                    path.rename(tmp_path / "elsewhere")
                    path.symlink_to(tmp_path / "elsewhere")
        causes = {cause for (_, cause), value in moment.of("training_limited_by").items() if value}
        figures = {name for _, name in moment.of("training_nccl_bus_bandwidth_bytes")}
        seen[moment.second] = causes, list(moment.of("training_nccl_bus_bandwidth_bytes").values())
        assert figures <= {"AllReduce"}

    assert [seen[at][0] for at in (200, 295, 400, 490, 655)] == [
        {"waiting_for_peers"},
        {"waiting_for_peers"},
        {"slow_network"},
        {"slow_network"},
        {"waiting_for_peers"},
    ]
    assert [len(seen[at][1]) for at in (200, 400, 655)] == [1, 2, 0]
    assert all(0.8 < value / job.bandwidth < 1.2 for value in seen[400][1])
