"""Machines whose /proc, cgroups and orchestrators are drawn by a seed, and all that is read of their processes."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpugauge.wire.messages import INIT_START, JOB_VARIABLES
from gpugauge.workload import cgroup, command, environ, launch, processfiles
from gpugauge.workload.controllers import Pod
from gpugauge.workload.job import called, job_words
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.registry import Want
from gpugauge.workload.workloads import Workloads
from qa.worlds.recorded import Record
from qa.worlds.trees import ID, OTHER_ID, STATIC_UID, UID, UID_, pod_logs, proc, v1, v2

_MISSING, _GARBAGE = 0.05, 0.04  # the shares of the files that are not there, and that make no sense
_MACHINE_NETWORK = "4026531840"
_CGROUPS = (
    v2("/"),
    v2(f"/kubepods/burstable/pod{UID}/{ID}"),
    v2(f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice/cri-containerd-{ID}.scope"),
    v2(f"/kubepods/pod{STATIC_UID}/{OTHER_ID}"),
    v1(f"/kubepods/besteffort/pod{UID}/{OTHER_ID}"),
    v2(f"/system.slice/docker-{ID}.scope"),
    v2(f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{OTHER_ID}.scope"),
    v2("/system.slice/slurmstepd.scope/job_77/step_0/user/task_0"),
    v2("/system.slice/n1_slurmstepd.scope/s5K1KKYAYG5D00/step_0"),
    v1("/slurm_n1/uid_1000/job_88/step_1"),
    v2("/system.slice/train.service"),
    v2("/system.slice/cron.service"),
    v2("/user.slice/user-1000.slice/session-3.scope"),
    v2("/user.slice/user-1000.slice/user@1000.service/app.slice/app-x-1@2.service"),
    v2("/user.slice/user-1001.slice/user@1001.service/app.slice/night.service"),
    v2("/lxc.payload.box/system.slice/a.service"),
    v2("/machine.slice/systemd-nspawn@jail.service/payload/x"),
    v2("/../../system.slice/train.service"),
    v2(f"/user.slice/user-1000.slice/pod{UID}/{ID}"),
)
_ARGV: Sequence[Sequence[bytes]] = tuple(
    text.split()
    for text in (
        *(
            b"/usr/bin/python3 train.py --secret x",
            b"python -m pkg.train",
            b"python3.11 -u -W ignore fit.py",
            b"pypy3 -",
        ),
        *(
            b"python -c print",
            b"python -uc pass",
            b"python /srv/project/__main__.py",
            b"python -Xdev -mpkg.x",
            b"python",
        ),
        *(
            b"bash",
            b"-bash",
            b"bash -c run",
            b"zsh --rcfile x",
            b"sh script.sh",
            b"fish -i",
            b"/usr/lib/xorg/Xorg -core",
        ),
        *(b"python -m ipykernel_launcher -f x", b"nvidia-persistenced", b"torchrun train.py", b"vllm serve", b"a/b/c/"),
        *(b"python --check-hash-based-pycs always x.py", b"python -c from multiprocessing.spawn import"),
        *(b"raylet --session-name=session_2026-01 --x", b"raylet --session-dir=/tmp/ray/session_9", b"\xff\xfe"),
    )
)
_COMMS = ("python3", "bash", "sshd", "systemd", "tmux: server", "raylet", "slurmstepd", "Xorg", "cron", "code", "a b")
_VALUES: Mapping[str, Sequence[str]] = {
    "GPUGAUGE_JOB": ("night", "  ", "x" * 200, "a/b"),
    "WORLD_SIZE": ("1", "8", "x"),
    "LOCAL_WORLD_SIZE": ("1", "8"),
    "NNODES": ("1", "2"),
    "MASTER_ADDR": ("localhost", "10.0.0.7", "127.0.0.1", "node-1"),
    "MASTER_PORT": ("29500", "1234"),
    "SLURM_JOB_ID": ("77", "5", "x"),
    "SLURM_JOB_ID_HET_GROUP_0": ("77", "5"),
    "SLURM_JOB_ID_PACK_GROUP_0": ("5",),
    "TORCHELASTIC_RUN_ID": ("none", "run1"),
    "PET_RDZV_ENDPOINT": ("10.0.0.7:29400", "localhost:1"),
    "OMPI_MCA_orte_hnp_uri": ("42.0;tcp://10.0.0.7,10.0.0.8:5000", "x"),
    "PMIX_NAMESPACE": ("prterun-n1-55@1", "x"),
    "HOSTNAME": ("trainer-0", "box"),
    "JOB_COMPLETION_INDEX": ("0",),
    "K_MPI_JOB_ROLE": ("launcher", "worker"),
    "WANDB_RUN_ID": ("abc", "null"),
    "GPUGAUGE_HOOK": ("0", "off", "1"),
    "PYTHONPATH": ("/x/gpugauge/hook/bootstrap", "/y"),
    "PYTHONUSERBASE": ("/opt/gpugauge-hook/1", "/z"),
    "CUDA_VISIBLE_DEVICES": ("0,1", "", "-1"),
    "VC_TRAIN_HOSTS": ("a,b",),
}
_VARIABLES = sorted({*JOB_VARIABLES, *(name.decode() for name in environ.VARIABLES), *_VALUES})
_OF_CGROUP: Mapping[str, Sequence[str]] = {
    "cpu.stat": ("throttled_usec 1500000\nusage_usec 9\n", "throttled_time 2500000000\n", "x\n"),
    "cpu.max": ("400000 100000", "max 100000", "0 0"),
    "cpu.cfs_quota_us": ("200000", "-1"),
    "cpu.cfs_period_us": ("100000",),
    "memory.stat": (
        "anon 4000\nshmem 96\ninactive_file 50\n",
        "total_rss 9000\ntotal_shmem 1\ntotal_inactive_file 7\n",
    ),
    "memory.max": ("8589934592", "max", ""),
    "memory.limit_in_bytes": ("9223372036854771712", "1000000"),
    "memory.current": ("4294967296", ""),
    "memory.usage_in_bytes": ("500000",),
    "cpu.pressure": ("some avg10=0.00 avg60=0.00 avg300=0.00 total=250000\nfull x\n",),
    "io.pressure": ("some avg10=0.00 total=12345\n", "full total=1\n"),
    "memory.pressure": ("some avg10=0.00 avg60=0.00 avg300=0.00 total=99\n",),
}
_FILES: Mapping[str, Sequence[str]] = {
    "io": ("rchar: 1\nread_bytes: 4096\nwrite_bytes: 8192\n", "read_bytes: 5\n"),
    "statm": ("3000 1000 400 1 0 900 0\n", "1 2 3\n", "7\n"),
    "maps": (
        "7f r-xp 0 0 /x/libtorch_cpu.so\n7f r-xp 0 0 /x/libtorch_cuda.so\n",
        "7f r-xp 0 0 /x/libtorch.so\n",
        "7f r-xp 0 0 /x/libtorch_python.so.1\n7f r 0 0 /x/libc10_hip.so\n",
        "7f r-xp 0 0 /x/libc.so\n",
    ),
}
_DEVICE_FILES = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-caps/nvidia-cap21", "/dev/null")
_SLURM_FILES = ("88\n", "77 1000\n", "5 1001 s5K1KKYAYG5D00\n", "\n", "a b\n77\n")


class Machine:
    """A machine below a folder."""

    def __init__(self, seed: int, folder: Path) -> None:
        self._dice, self.root, self._cgroups = random.Random(seed), folder / "proc", folder / "cgroup"
        self.now = 100.0
        self._made = proc(self.root)
        self.pids = [1, *range(100, 100 + self._dice.randint(6, 14))]
        self._logs, self._jobs, self._docker = folder / "log", folder / "jobs", folder / "docker"
        self._jobs.mkdir()
        for name in ("0", "1.2", "GPU-a", "0000:01:00.0", "x"):
            (self._jobs / name).write_text(self._dice.choice(_SLURM_FILES))
        pod_logs(self._logs, "ml", "trainer-0", UID, {"main": ID})
        (self._docker / ID).mkdir(parents=True)
        labels = {"com.docker.compose.project": "lab", "com.docker.compose.service": "fit"}
        (self._docker / ID / "config.v2.json").write_text(json.dumps({"Config": {"Labels": labels}}))
        self._of_machine()
        for number, pid in enumerate(self.pids):
            self._process(pid, self._dice.choice(self.pids[:number]) if number else 0)
        own = Pod("ml", "own-0", UID) if self._dice.random() < 0.2 else None
        self.procfs = Procfs(str(self.root))
        self.workloads = Workloads(
            self.procfs,
            cgroup_root=self._cgroups,
            job_mapping_dir=self._jobs if self._dice.random() < 0.7 else None,
            pod_logs=self._logs if self._dice.random() < 0.7 else None,
            docker_containers=self._docker,
            own_pod=own,
            clock=lambda: self.now,
        )

    def _of_machine(self) -> None:
        dice = self._dice
        texts = {"uptime": "12345.67 1.0\n", "meminfo": "MemTotal: 9 kB\nMemAvailable:   4096 kB\n"}
        texts |= {"stat": "cpu 1\nbtime 1700000000\n", "sys/kernel/hostname": "node-1\n"}
        for name, text in texts.items():
            self._write(self.root / name, text)
        (self.root / "self/ns").mkdir(parents=True)
        (self.root / "self/ns/pid").symlink_to(dice.choice(("pid:[4026531836]", "pid:[7]")))
        (self.root / "self/ns/uts").symlink_to(dice.choice(("uts:[4026531838]", "uts:[7]")))

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._dice.random() >= _MISSING:
            path.write_text("?? \n" if self._dice.random() < _GARBAGE else text)

    def environment(self) -> dict[str, str]:
        """Return drawn variables."""
        known = {name: _VALUES.get(name, ("x", "1")) for name in _VARIABLES}
        return {name: self._dice.choice(values) for name, values in known.items() if self._dice.random() < 0.12}

    def _process(self, pid: int, parent: int) -> None:
        dice, folder = self._dice, self.root / str(pid)
        group = dice.choice(_CGROUPS)
        self._made.process(
            pid,
            dice.choice(_ARGV),
            cgroup=group,
            environ=self.environment(),
            uid=dice.choice((0, 1000, 1000, 1000, 1001)),
            parent=parent,
            start=dice.randint(1, 99_999),
            comm="systemd" if pid == 1 else dice.choice(_COMMS),
            container_pid=dice.choice((None, 7, 1)),
            session=dice.choice((pid, parent)),
            terminal=dice.choice((0, 34816)),
            group=dice.choice((pid, parent)),
            network=dice.choice((_MACHINE_NETWORK, _MACHINE_NETWORK, "9")) if pid > 1 else _MACHINE_NETWORK,
        )
        for name, texts in _FILES.items():
            self._write(folder / name, dice.choice(texts))
        more = "Cpus_allowed:\tff,0f\nCpus_allowed_list:\t0-3,8\nVmSwap:\t  12 kB\n"
        self._write(folder / "status", (folder / "status").read_text() + dice.choice(("", more, more[5:])))
        fields = [str(dice.randint(0, 9999)) for _ in range(14)]
        before = (folder / "stat").read_text().split(" 0" * 14)
        self._write(folder / "stat", f" {' '.join(fields)}".join(before[:2]))
        for name in ("cmdline", "comm", "environ", "cgroup"):
            if dice.random() < _MISSING:
                (folder / name).unlink()
        (folder / "fd").mkdir()
        for number, target in enumerate(_DEVICE_FILES):
            if dice.random() < 0.5:
                (folder / f"fd/{number}").symlink_to(target)
        path = self._cgroups / group.split("\n", maxsplit=1)[0].rpartition(":")[2].strip("/.")
        for name, texts in _OF_CGROUP.items():
            if dice.random() < 0.6:
                self._write(path / name, dice.choice(texts))

    def shown(self) -> Iterator[tuple[str, str]]:
        """Yield what is read of the machine and its processes, at some moments."""
        for moment in range(3):
            if moment == 1:
                self.workloads.refresh()
            if moment == 2:
                (self._jobs / "0").write_text(self._dice.choice(_SLURM_FILES))
                self._process_again(self._dice.choice(self.pids[1:]))
                self.workloads.refresh()
            for pid in [*self.pids, 5, 0]:
                yield from ((name, f"{pid} {text}") for name, text in self._of(pid))
            claim = self.environment() | {INIT_START: self._dice.choice(("", "9"))}
            said = self.workloads.claimed(claim, "s1", 1000, self._dice.choice((None, 4026531836, 9)))
            yield "claimed", f"{said} {environ.sent(claim)} {environ.run_identity(claim)}"
            yield from _all_of(
                (self.workloads.sources, self.workloads.counters, self.workloads.lists_all, self.workloads.allocations)
            )
            yield from _all_of((self.procfs.host, self.procfs.uptime, self.procfs.boot_time, self.procfs.shows_machine))
            yield "memory_available", repr(processfiles.memory_available(self.procfs))
            self.now += 70.0

    def _process_again(self, pid: int) -> None:
        """Let another process have a pid."""
        stat = self.root / f"{pid}/stat"
        if stat.exists():
            stat.write_text(stat.read_text().replace(" 0 0 0 0", " 0 0 0 1", 1))

    def _of(self, pid: int) -> Iterator[tuple[str, str]]:
        p, dice = self.procfs, self._dice
        ours = (p.start_time, p.stat, p.process_id, p.status, p.uses_host_network, p.argv, p.comm)
        yield from ((each.__name__, repr(each(pid))) for each in ours)
        of_files: tuple[Callable[[Procfs, int], Any], ...] = (
            *(processfiles.io_bytes, processfiles.bounds, processfiles.anonymous_bytes, processfiles.visible_devices),
            *(processfiles.starts_hook, processfiles.device_files),
        )
        yield from ((each.__name__, repr(each(p, pid))) for each in of_files)
        try:
            yield "torch_build", processfiles.torch_build(p, pid)
        except OSError as error:
            yield "torch_build", type(error).__name__
        argv, text = p.argv(pid), p.content(pid, "cgroup").decode()
        yield "command", repr((command.command_name(argv), command.is_python(argv), command.is_helper(argv)))
        yield "display", str(launch.is_display(command.command_name(argv).decode(errors="replace")))
        yield "launch", repr(launch.launch_of(p, pid, 1000))
        yield "cgroup", repr(cgroup.parse(text))
        folders = [self.workloads.cgroup_directory(pid, name) for name in ("cpu", "memory")]
        yield "cgroup folders", repr([folder and folder.relative_to(self._cgroups) for folder in folders])
        yield "figures of the cgroup", repr(processfiles.cgroup(*folders))
        devices = dice.choice(((), (("GPU-a", "nvidia0"),), (("index:0",), ("pci:0000:01:00.0",))))
        sent = self.environment() if dice.random() < 0.3 else None
        who = self.workloads.identify(Want(pid, devices=devices, sent=sent))
        yield "identity", repr(who)
        job = who.workload.job_kind, who.workload.namespace, who.workload.job
        yield "words of a job", f"{job_words(job[0], job[2])} {sorted(called(*job))}"


def _all_of(questions: Sequence[Callable[[], object]]) -> Iterator[tuple[str, str]]:
    for each in questions:
        found = each()
        yield each.__name__, repr(sorted(found.items())) if isinstance(found, Mapping) else repr(found)


def _shown_of(seed: int) -> Iterator[tuple[str, str]]:
    for number in range(3):
        with tempfile.TemporaryDirectory() as folder:
            yield from Machine(100 * seed + number, Path(folder)).shown()


RECORD = Record("drawn_machines", _shown_of, 10)
