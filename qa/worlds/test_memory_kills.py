"""Drawn lives of cgroups whose memory runs out: trainings that the kernel has killed, and others."""

from __future__ import annotations

import random
import shutil
import signal
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.drawn import draws, seeds
from tests.sessions.hooks import ONE, until
from tests.sessions.playedreceiver import Played, playing, settle

from gpugauge.sessions import ends
from gpugauge.sessions.receiver import protocol as p
from gpugauge.workload.procfs import Procfs
from qa.worlds.trees import Made, proc, v1, v2


@dataclass
class Group:
    """A cgroup: the text of its processes, the file with its count, and by pid the folders of its trainings."""

    text: str
    file: Path
    count: int
    trainings: dict[int, Path | None] = field(default_factory=dict)

    def killed(self, number: int) -> None:
        """Count processes that the kernel has killed."""
        self.count += number
        begin = "low 0\noom 9\n" if self.file.name == "memory.events" else "oom_kill_disable 0\nunder_oom 0\n"
        self.file.write_text(f"{begin}oom_kill {self.count}\n")


class World:
    """Cgroups of drawn forms, in a cgroup file system that has nothing else."""

    def __init__(self, seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.random = random.Random(seed)
        self.made: Made = proc(folder / "proc")
        self.mount = folder / "cgroup"
        monkeypatch.setattr(ends, "PROC", Procfs(str(self.made.root)))
        monkeypatch.setattr(ends, "MOUNT", self.mount)
        self.kills, self.now, self.pid = ends.MemoryKills(), time.monotonic(), 40
        self.groups = [self.group(name) for name in ("/a", "/b/c", "/d/e/f")[: self.random.randint(1, 3)]]
        self.found: list[str] = []
        self.truth: list[str] = []

    def group(self, name: str) -> Group:
        version, counted = self.random.choice((v1, v2, v2)), name
        if version is v2 and name.count("/") > 1 and self.random.random() < 0.5:
            counted = name.rpartition("/")[0]  # the controller is not enabled in the cgroup itself
        at = self.mount / ("memory" if version is v1 else "")
        (at / name[1:]).mkdir(parents=True)
        file = at / counted[1:] / ("memory.oom_control" if version is v1 else "memory.events")
        made = Group(version(name), file, self.random.choice((0, 0, 7)))
        made.killed(0)
        return made

    def begin(self, group: Group) -> None:
        self.pid += 1
        self.made.process(self.pid, cgroup=group.text)
        group.trainings[self.pid] = self.kills.watch(self.pid)

    def rest(self) -> None:
        """Let more time pass than a kill explains."""
        for _ in range(2):
            self.now += 10
            self.kills.read([folder for group in self.groups for folder in group.trainings.values()], self.now)

    def end(self, group: Group, truth: str, status: int | None) -> None:
        folder = group.trainings.pop(self.random.choice([*group.trainings]))
        self.found.append(ends.reason(None, status, for_memory=self.kills.claim(folder)))
        self.truth.append(truth)

    def end_all(self, group: Group, truth: str, status: int | None) -> None:
        """Let the kernel kill all trainings of a group; its file may be gone."""
        if group.file.exists():
            group.killed(len(group.trainings))
        while group.trainings:
            self.end(group, truth, status)

    def act(self, group: Group) -> None:
        action = self.random.choice(("begin", "begin", "kill", "kill all", "other", "end", "end", "rest", "gone"))
        by_kernel = self.random.choice((None, signal.SIGKILL))
        if action == "begin" or not group.trainings:
            self.begin(group)
        elif action == "rest":
            self.rest()
        elif action == "kill":  # and the launcher ends the others
            group.killed(1)
            self.end(group, "oom_killed", by_kernel)
            while group.trainings and self.random.random() < 0.5:
                self.end(group, "killed", self.random.choice((None, signal.SIGKILL, signal.SIGTERM)))
        elif action == "kill all":  # memory.oom.group
            self.end_all(group, "oom_killed", by_kernel)
        elif action == "other":  # a loader worker, long before
            group.killed(1)
            self.rest()
        elif action == "end":
            status, truth = self.random.choice(((None, "killed"), (signal.SIGKILL, "killed"), (256, "error")))
            self.end(group, truth, status)
        elif self.random.random() < 0.2:  # the runtime has removed the cgroup with the killed processes
            shutil.rmtree(self.mount)
            self.end_all(group, "killed", by_kernel)
            self.groups = []


@seeds(draws(50, 500))
def test_the_kernel_has_killed_those_that_it_has_killed(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(seed, tmp_path, monkeypatch)
    while len(world.truth) < 12 and world.groups:
        world.act(world.random.choice(world.groups))

    assert world.found == world.truth


def test_the_listener_tells_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(1, tmp_path, monkeypatch)
    group = world.groups[0]
    for pid in (41, 42):
        world.made.process(pid, cgroup=group.text)
    with playing(tmp_path, monkeypatch) as start:
        listener = start()
        played = Played.made[-1]
        played.begin(1, ONE, pid=41, start=5000)
        settle(listener, 1)
        group.killed(1)
        played.send(p.ENDED, 1)

        until(lambda: [session.end_reason for session in listener.view()] == ["oom_killed"])
        assert listener.counters().ended["oom_killed"] == 1
        # A receiver that is replaced loses nothing.
        played.begin(2, "2" * 32, pid=42, start=5000)
        settle(listener, 2)
        group.killed(1)
        shutil.rmtree(world.made.root / "42")
        played.channel.shutdown(socket.SHUT_RDWR)

        until(lambda: listener.counters().ended["oom_killed"] == 2)
