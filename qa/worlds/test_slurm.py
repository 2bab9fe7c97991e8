"""Drawn Slurm nodes: each layout of its cgroups, and what its prolog and epilog record about GPUs that get lost."""

from __future__ import annotations

import os
import random
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from tests.drawn import draws, seeds

from gpugauge.collectors.base import Tick
from gpugauge.collectors.process.allocation import AllocationCollector
from gpugauge.driver.api import Device, DeviceReading, DriverView
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.users import Users
from gpugauge.workload.workloads import Workloads
from qa.worlds.trees import ID, UID_, Made, proc, v1, v2

SCRIPTS = Path(__file__).parents[2] / "deploy/prometheus/slurm"
_BASE32 = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_POD = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice/cri-containerd-{ID}.scope"
_STEPS = ("step_0", "step_12", "step_batch", "step_extern", "step_interactive")
_SUBMITTED_ON = 1_770_000_000.0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def script(name: str, folder: Path, job: int, devices: str = "", sluid: str = "", root: Path = Path("/none")) -> None:
    """Run a script of Slurm; `root` has what it finds about GPUs."""
    variables = {"GPUGAUGE_JOBS": str(folder), "SLURM_JOB_ID": str(job), "SLURM_JOB_UID": "1000"}
    variables |= {"SLURM_JOB_GPUS": devices, "SLURM_JOB_SLUID": sluid, "GPUGAUGE_PROC": str(root), "PATH": str(root)}
    variables |= {"GPUGAUGE_SYS": str(root)}
    subprocess.run([SCRIPTS / name], env=variables, check=True, timeout=60)


@dataclass(frozen=True)
class Job:
    number: int
    sluid: str
    uid: int
    readable: bool  # its environment
    leader: int  # of a het job
    mapped: bool  # its prolog has written the SLUID

    def path(self, layout: str, step: str) -> str:
        """Return the cgroup file of a process, as slurmd makes it."""
        node = "gpu-a1_" if "nodes" in layout else ""
        pod = _POD if "pod" in layout else ""
        task = f"{step}/user/task_{self.number % 3}" if step != "step_extern" else f"{step}/user/task_special"
        if "v1" in layout:
            service = "" if pod else "/system.slice/slurmd.service"
            return v1(f"{pod}/slurm{'_gpu-a1' if node else ''}/uid_{self.uid}/job_{self.number}/{step}/task_0", service)
        name = self.sluid if "sluid" in layout else f"job_{self.number}"
        return v2(f"{pod}/system.slice/{node}slurmstepd.scope/{name}/{task}")


LAYOUTS = tuple(
    " ".join(filter(None, (form, nodes, pod)))
    for form in ("v1", "v2", "sluid")
    for nodes in ("", "nodes")
    for pod in ("", "pod")
)


@seeds(draws(48, 1500))
def test_a_job_is_what_the_kernel_says_in_each_layout(tmp_path: Path, seed: int) -> None:  # noqa: C901  # one story
    dice = random.Random(seed)
    layout = LAYOUTS[seed % len(LAYOUTS)]
    made, clock, files = proc(tmp_path / "proc"), Clock(), tmp_path / "jobs"
    configured = dice.random() < 0.5
    files.mkdir()
    jobs: list[Job] = []
    for number in range(4711, 4711 + dice.randint(2, 5)):
        sluid = "s" + "".join(dice.choices(_BASE32, k=13))
        leader = jobs[0].number if len(jobs) == 1 and jobs[0].readable and dice.random() < 0.3 else 0
        uid = jobs[0].uid if leader else dice.choice((1000, 1001))
        jobs.append(
            Job(number, sluid, uid, bool(leader) or dice.random() < 0.5, leader, configured and dice.random() < 0.5)
        )
    led = next((job for job in jobs if job.leader), None)
    if configured:
        for place, job in enumerate(jobs):
            script("prolog.sh", files, job.number, str(place), job.sluid if job.mapped else "")
    drawn: dict[int, Job] = {}
    for job in jobs:
        for _ in range(dice.randint(1, 4)):
            pid, step = 100 + len(drawn), dice.choice(_STEPS)
            # Slurm adopts a login into the external step, without variables.
            knows = job.readable and step != "step_extern"
            number = job.leader or job.number
            variables = {"SLURM_JOB_ID": str(number)} if knows else {}
            if knows and led and job in (jobs[0], led):
                variables |= {
                    "SLURM_JOB_ID_HET_GROUP_0": str(jobs[0].number),
                    "SLURM_JOB_ID_HET_GROUP_1": str(led.number),
                }
            if dice.random() < 0.2 and knows and not led:  # submitted from within an array job
                variables |= {"SLURM_ARRAY_JOB_ID": "4000", "SLURM_ARRAY_TASK_ID": "1"}
            made.process(pid, cgroup=job.path(layout, step), environ=variables, uid=job.uid)
            drawn[pid] = job
    # Slurm's own processes, of an unknown form of path: never a job of the scope.
    made.process(99, cgroup=v2("/system.slice/slurmstepd.scope/system"), uid=0)
    workloads = Workloads(Procfs(str(made.root)), job_mapping_dir=files if configured else None, clock=clock)
    named = {pid: set[tuple[str, str]]() for pid in drawn}
    for _ in range(15):
        for pid in dice.sample(sorted(drawn), len(drawn)):
            # A login into the job has no variables, and comes later than the job.
            if clock.now < 150 and not (made.root / str(pid) / "environ").read_bytes() and drawn[pid].readable:
                continue
            found = workloads.resolve(pid)
            assert found.kind == "slurm", (layout, found)
            if found.job:
                named[pid].add((found.job_kind, found.job))
        clock.now += 10.0
        workloads.refresh()

    by_name: dict[tuple[str, str], set[int]] = defaultdict(set)
    for pid, job in drawn.items():
        assert len(named[pid]) == 1, (layout, job, named[pid])
        name = named[pid].copy().pop()
        assert name[0] == "slurm"
        led_by = jobs[0].number if led and job in (jobs[0], led) else job.number
        by_name[name].add(led_by)
        number = "sluid" not in layout or job.mapped
        inside = (made.root / str(pid) / "environ").read_bytes()
        if not led and (number or inside):
            assert name[1].rpartition("/")[2] == str(job.number), (layout, job, name)
        elif not led and not job.readable:
            assert name[1] == job.sluid
    assert all(len(numbers) == 1 for numbers in by_name.values()), (layout, by_name)
    assert not workloads.resolve(99).job.endswith("slurmstepd.scope")


class LateUsers(Users):
    """A directory service that answers from some time on."""

    def __init__(self, clock: Clock, since: float) -> None:
        super().__init__(known=True)
        self._clock, self._since = clock, since

    def name(self, uid: int) -> str:
        return f"user{uid}" if self.is_known(uid) else str(uid)

    def is_known(self, uid: int) -> bool:
        return self._clock() >= self._since


@seeds(draws(100, 1500))
def test_a_number_that_comes_late_is_that_of_the_whole_job(tmp_path: Path, seed: int) -> None:  # noqa: C901  # one story
    """The number is in the environment of some processes, which the hook may send late, or comes from the prolog."""
    dice, clock = random.Random(seed), Clock()
    made, files = proc(tmp_path / "proc"), tmp_path / "jobs"
    files.mkdir()
    configured, begin = dice.random() < 0.5, clock.now
    jobs = {number: "s" + "".join(dice.choices(_BASE32, k=13)) for number in range(4711, 4711 + dice.randint(1, 3))}
    # When the prolog writes its file, and whether that has the SLUID.
    written = {number: dice.choice((0.0, 90.0, 150.0)) for number in jobs if configured and dice.random() < 0.7}
    stated = {number for number in written if dice.random() < 0.6}
    uids = {number: dice.choice((1000, 1001)) for number in jobs}
    drawn = {}  # number of the job, when it starts, and when its hook sends its environment
    for pid in range(100, 100 + dice.randint(2, 6)):
        number, starts = dice.choice(list(jobs)), dice.choice((0.0, 0.0, 30.0, 100.0))
        sends = dice.choice((0.0, 10.0, 40.0, 80.0, None))
        made.process(pid, cgroup=v2(f"/system.slice/slurmstepd.scope/{jobs[number]}/step_0"), uid=uids[number])
        environ = made.root / str(pid) / "environ"
        if sends is not None and dice.random() < 0.5:
            sends = None
            environ.write_text(f"SLURM_JOB_ID={number}\0")
        elif sends is not None or dice.random() < 0.5:
            environ.unlink()
        drawn[pid] = number, starts, None if sends is None else starts + sends
    known = {
        n for pid, (n, _, sends) in drawn.items() if sends is not None or b"S" in content(made, pid)
    } | written.keys()
    users = LateUsers(clock, begin + (dice.choice((0.0, 50.0)) if stated == written.keys() else 0.0))
    workloads = Workloads(
        Procfs(str(made.root)), job_mapping_dir=files if configured else None, users=users, clock=clock
    )
    found: dict[int, set[tuple[str, str]]] = {}
    for second in range(0, 300, 5):
        clock.now = begin + second
        for place, (number, since) in enumerate(written.items()):
            if second >= since:
                line = f"{number} {uids[number]} {jobs[number] if number in stated else ''}\n"
                (files / f"nvidia{place}").write_text(line)
        found = {number: set() for number in jobs}
        for pid, (number, starts, sends) in drawn.items():
            if second >= starts:
                sent = {"SLURM_JOB_ID": str(number)} if sends is not None and second >= sends else None
                devices = ((f"nvidia{[*written].index(number)}",),) if number in written else ()
                workload = workloads.resolve(pid, devices, sent=sent)
                found[number].add((workload.job, workload.job_id))
        workloads.refresh()
        workloads.allocations()
    for number, labels in found.items():
        job_id = str(number) if number in known else jobs[number]
        # A file is read before the word of a process counts, which has the user in front.
        names = {job_id, f"user{uids[number]}/{job_id}"}
        if number not in stated:
            names -= {str(number)}
        elif written[number] == 0.0:
            names = {job_id}
        assert len(labels) <= 1, (number, labels)
        assert labels <= {(name, job_id) for name in names}, (number, labels)
    assert 0 <= workloads.counters()["jobs_changed"] <= len(drawn)


def content(made: Made, pid: int) -> bytes:
    path = made.root / str(pid) / "environ"
    return path.read_bytes() if path.exists() else b""


@dataclass
class Gpu:
    uuid: str
    minor: int
    address: str
    lost: bool = False


@dataclass
class Node:
    """A node whose driver lists its GPUs again when a worker starts; Slurm knows them by their device files."""

    gpus: list[Gpu]
    indexes: dict[str, int] = field(default_factory=dict)
    minors: bool = True  # that the driver tells

    def list(self) -> None:
        alive = [gpu for gpu in sorted(self.gpus, key=lambda gpu: gpu.address) if not gpu.lost]
        self.indexes |= {gpu.uuid: -1 for gpu in self.gpus if gpu.lost}
        self.indexes |= {gpu.uuid: index for index, gpu in enumerate(alive)}

    def proc(self, root: Path) -> None:
        for gpu in self.gpus:
            folder = root / "driver/nvidia/gpus" / gpu.address
            folder.mkdir(parents=True, exist_ok=True)
            shown = "GPU-????????-????-????-????-????????????" if gpu.lost else gpu.uuid
            text = f"Model: \t\t NVIDIA A100\nIRQ:   \t\t 41\nGPU UUID: \t {shown}\nBus Type: \t PCIe\n"
            (folder / "information").write_text(f"{text}Bus Location: \t {gpu.address}\nDevice Minor: \t {gpu.minor}\n")

    def nvidia_smi(self, root: Path) -> None:
        """Write a program that says what nvidia-smi does about the GPUs that are not lost."""
        lines = [
            f"GPU 0000{gpu.address.upper()}\n    Product Name       : A100\n    GPU UUID        : {gpu.uuid}\n"
            f"    Minor Number      : {gpu.minor}\n    Serial Number   : 1\n"
            for gpu in self.gpus
            if not gpu.lost
        ]
        root.mkdir(exist_ok=True)
        (root / "nvidia-smi").write_text(f"#!/bin/sh\ncat <<END\nAttached GPUs   : 8\n{''.join(lines)}END\n")
        (root / "nvidia-smi").chmod(0o755)

    def amdgpu(self, root: Path) -> None:
        """Write what amdgpu shows, with the device of a partition that is not used, and without NVIDIA's GPUs."""
        for gpu in self.gpus:
            folder = root / "devices/pci0000:00" / gpu.address
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "vendor").write_text("0x1002\n")
            node = root / f"class/drm/renderD{128 + 8 * gpu.minor}"
            (node.parent / f"renderD{129 + 8 * gpu.minor}").mkdir(parents=True, exist_ok=True)
            if not node.exists():
                node.mkdir(parents=True)
                (node / "device").symlink_to(folder)

    def tick(self, at: float) -> Tick:
        return Tick(at, at, DriverView(True, "ok", devices=tuple(map(self._device, self.gpus))))

    def _device(self, gpu: Gpu) -> Device:
        reading = DeviceReading(
            uuid=gpu.uuid,
            index=self.indexes[gpu.uuid],
            minor_number=gpu.minor if self.minors else None,
            pci_bus_id=f"0000{gpu.address}".upper(),
        )
        return Device(
            gpu.uuid, not gpu.lost, "gpu_is_lost" if gpu.lost else "ok", reading, {"static": self.indexes[gpu.uuid]}
        )


@seeds(draws(48, 1500))
def test_an_allocation_stays_on_its_gpu(tmp_path: Path, seed: int) -> None:  # noqa: C901  # one story
    """The truth is the device that Slurm gave, or that had the index when a file of the old form was written."""
    dice, clock = random.Random(seed), Clock()
    count = dice.choice((2, 4, 8, 16))
    minors = list(range(count))
    if dice.random() < 0.5:
        dice.shuffle(minors)
    node = Node([Gpu(f"GPU-{i:x}a", minors[i], f"0000:{16 + i:x}:00.0") for i in range(count)])
    node.list()
    files, root = tmp_path / "jobs", tmp_path / "proc"
    files.mkdir()
    known = dice.choice(("driver", "nvidia-smi", "nothing", "amdgpu", "amdgpu by render minor"))
    node.minors = not known.startswith("amdgpu")
    workloads = Workloads(Procfs(str(root)), job_mapping_dir=files, clock=clock)
    collector = AllocationCollector(workloads)
    truth: dict[str, set[str]] = defaultdict(set)  # jobs by uuid
    running: list[int] = []
    old: dict[str, str] = {}
    at = _SUBMITTED_ON
    for number in range(100, 100 + dice.randint(4, 10)):
        at += 60.0
        event = dice.choice(("start", "start", "end", "old", "lose", "list"))
        if event == "lose" and sum(gpu.lost for gpu in node.gpus) < count - 1:
            dice.choice(node.gpus).lost = True
        if event == "list":
            node.list()
        if known == "driver":
            node.proc(root)
        if known == "nvidia-smi":
            node.nvidia_smi(root)
        if known.startswith("amdgpu"):
            node.amdgpu(root)
        if event == "start":  # of a GPU that is shared at times
            gpus = dice.sample(node.gpus, dice.randint(1, 2))
            script(
                "prolog.sh",
                files,
                number,
                ",".join(str(gpu.minor if "minor" not in known else 128 + 8 * gpu.minor) for gpu in gpus),
                root=root,
            )
            running.append(number)
            for gpu in gpus:
                truth[gpu.uuid].add(str(number))
        if event == "end" and running:
            job = running.pop(dice.randrange(len(running)))
            script("epilog.sh", files, job)
            for holders in truth.values():
                holders.discard(str(job))
        if event == "old":
            gpu = dice.choice(node.gpus)
            index = node.indexes[gpu.uuid]
            if index >= 0:
                collector.collect(node.tick(at - 1))
                for holders in truth.values():
                    holders.discard(old.get(str(index), ""))
                (files / str(index)).write_text(f"{number}\n")
                os.utime(files / str(index), (at, at))
                old[str(index)] = str(number)
                truth[gpu.uuid].add(str(number))
        workloads.refresh()
        samples = {f.metric.name: f.samples for f in collector.collect(node.tick(at + 1)).families}
        found: dict[str, set[str]] = defaultdict(set)
        for labels, _ in samples.get("gpu_allocation_info", ()):
            found[labels[0]].add(labels[5])
        assert {u: jobs for u, jobs in found.items() if jobs} == {u: jobs for u, jobs in truth.items() if jobs}, event
