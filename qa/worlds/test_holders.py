"""The job of an allocation over drawn lives of a pod's name: created again, with one training after the other."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.drawn import seeds
from tests.workload.kubelet import Service, listing, serving

from gpugauge.workload.procfs import Procfs
from gpugauge.workload.workloads import Workloads
from qa.worlds.trees import ID, Made, pod_logs, proc, v2

STEP = 30.0
SETTLED = 240.0  # seconds after which the job of a training that has ended is not shown any more


@dataclass
class Life:
    """A pod `ml/dev` of a node; `trainings` has the pids and names of those that run."""

    made: Made
    log: Path
    random: random.Random
    uid: str = ""
    trainings: dict[int, str] = field(default_factory=dict)
    first: list[str] = field(default_factory=list)  # names of trainings of this pod, in the order of their starts
    since: float = 0.0  # of the last change
    pids: Iterator[int] = field(default_factory=lambda: iter(range(100, 10_000)))
    folder: Path | None = None

    def step(self, now: float) -> None:
        event = self.random.choice(("", "", "start", "end", "create", "delete"))
        if event == "create" and not self.uid:
            self.uid, self.since = str(uuid.UUID(int=self.random.getrandbits(128))), now
            self.folder = pod_logs(self.log / self.uid, "ml", "dev", self.uid, {"main": ID})
        elif event == "delete" and self.uid:
            for pid in list(self.trainings):
                self._end(pid)
            self.uid, self.first, self.since = "", [], now
        elif event == "start" and self.uid and len(self.trainings) < 2:
            pid, name = next(self.pids), f"exp{self.random.randint(1, 3)}"
            group = v2(f"/kubepods/pod{self.uid}/{ID}")
            self.made.process(pid, cgroup=group, environ={"GPUGAUGE_JOB": name}, uid=0, start=int(now))
            self.trainings[pid], self.since = name, now
            self.first.append(name)
        elif event == "end" and self.trainings:
            self._end(self.random.choice(list(self.trainings)))
            self.since = now

    def _end(self, pid: int) -> None:
        folder = self.made.root / str(pid)
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        del self.trainings[pid]


@pytest.mark.everything
@seeds(range(30))
def test_an_allocation_has_a_job_that_runs_in_that_pod(tmp_path: Path, seed: int) -> None:
    now = 1000.0
    (tmp_path / "log").mkdir()
    life = Life(proc(tmp_path / "proc"), tmp_path / "logs", random.Random(seed))
    workloads = Workloads(
        Procfs(str(life.made.root)), kubelet_socket=tmp_path / "s", pod_logs=tmp_path / "log", clock=lambda: now
    )
    with serving(tmp_path / "s", Service(b"")) as service:
        for _ in range(60):
            life.step(now)
            service.reply = listing({("ml", "dev"): {"main": {"nvidia.com/gpu": ["GPU-1"]}}}) if life.uid else b""
            link(tmp_path / "log", life)
            for _ in range(2):  # the thread reads at once when there is a new pod
                workloads.refresh()
                workloads.allocations()
                for pid in life.trainings:
                    workloads.resolve(pid, (("GPU-1",),))
            found = workloads.allocations().get("GPU-1", ())
            shown = [holder.job.removeprefix("root/") for holder in found]

            assert len(shown) == bool(life.uid)
            if life.uid:
                assert set(shown) <= {"", *life.first}, "a job that never ran in this pod"
                if life.trainings:
                    assert shown != [""]
                if life.trainings and now - life.since > SETTLED:
                    assert set(shown) <= set(life.trainings.values())
            now += STEP


def link(log: Path, life: Life) -> None:
    """Have the log folders show the pod that there is."""
    for name in ("pods", "containers"):
        (log / name).unlink(missing_ok=True)
        target = life.folder / name if life.uid and life.folder else log.parent / "none"
        target.mkdir(parents=True, exist_ok=True)
        (log / name).symlink_to(target)
