"""Bodies of the simulated fleet: those of our own simulated daemon, with slots for values that advance in time."""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from qa.bench.measure import Program, gpugauge

DEVICES = 8
_WARM_UP_SECONDS = 70.0  # a verdict needs a minute of evidence
_SCRAPES, _PAUSE_SECONDS = 5, 4.0
_SAMPLE = re.compile(rb"^([a-zA-Z_:][\w:]*)(\{[^\n]*\})? (\S+)$", re.MULTILINE)
_DEVICE = re.compile(rb'\b(uuid|serial)="([^"]*)"')
_HOLDS = re.compile(rb'^gpu_process_memory_used_bytes\{process="(\w+)",uuid="([^"]+)"', re.MULTILINE)
_WORKLOAD = re.compile(rb'^gpu_process_info\{.*process="(\w+)",(workload_[^}]*)\}', re.MULTILINE)
_RANKS = "{pid: 7001, gpus: all, per_gpu: 1, memory: 60GiB, command: python3 -m torch.distributed.run pretrain.py"
_SLURM = 'cgroup: /system.slice/slurmstepd.scope/job_4711/step_0/user/task_0, environment: {SLURM_JOB_ID: "4711"}'
_POD = (
    "container_pid: 1, cgroup: /kubepods.slice/kubepods-pod3f1c0d1e_8a2b_4b5e_9c47_1f2e3d4c5b6a.slice/"
    "cri-containerd-6a1b2c3d4e5f60718293a4b5c6d7e8f90112233445566778899aabbccddeeff0.scope"
)
# The eight ranks on a node, by kind of job; three more kinds are scenarios of the simulator.
_JOBS = {
    "healthy": f"{_POD}, pipeline: {{kernels: 0.4, host: 0.06, load: 0.2, workers: 8, world_size: 16}}",
    "data_loading": f"{_SLURM}, pipeline: {{load: 1.6, world_size: 16}}",
    "host_bound": f"{_POD}, pipeline: {{kernels: 0.01, host: 0.03, load: 0.01, world_size: 16}}",
    "waiting": f"{_SLURM}, pipeline: {{peer: 0.3, world_size: 16}}",
    "slow_rank": f"{_SLURM}, pipeline: {{kernels: 0.4, world_size: 16}}",
    "outside": f"{_POD}, load: {{shape: square, high: 0.9, period: 4, duty: 0.5}}",
    "held": f"{_POD}",
}
_SCENARIOS = ("bottlenecks", "node", "idle")


@dataclass(frozen=True)
class Template:
    """A body with slots for its values, and the values: constant texts, or increases per second."""

    lines: Sequence[bytes]  # each a sample with %b for its value; comments precede their sample
    families: Sequence[str]
    scrapes: Sequence[Sequence[bytes]]
    rates: Mapping[int, float]
    ages: Mapping[int, float]  # timestamps that follow the time, seconds behind it
    starts: Sequence[int]  # timestamps of the job's start

    def values(self, now: float, started: float) -> list[bytes]:
        """Return the values for a job that began at `started`."""
        made = list(self.scrapes[int(now / 10) % len(self.scrapes)])
        age = now - started
        for i, rate in self.rates.items():
            made[i] = repr(rate * age).encode()
        for i, behind in self.ages.items():
            made[i] = repr(now - behind).encode()
        for i in self.starts:
            made[i] = repr(started).encode()
        return made

    @cached_property
    def text(self) -> bytes:
        return b"".join(self.lines)

    def only(self, windows: Mapping[str, float], lag: float) -> Template:
        """Return the families whose window reaches `lag` seconds back, without comments."""
        kept = [i for i, name in enumerate(self.families) if windows.get(name, 0) >= lag]
        place = {old: new for new, old in enumerate(kept)}
        return Template(
            [self.lines[i][self.lines[i].rfind(b"\n", 0, -1) + 1 :] for i in kept],
            [self.families[i] for i in kept],
            [[values[i] for i in kept] for values in self.scrapes],
            {place[i]: rate for i, rate in self.rates.items() if i in place},
            {place[i]: age for i, age in self.ages.items() if i in place},
            [place[i] for i in self.starts if i in place],
        )


@contextlib.contextmanager
def nodes() -> Iterator[dict[str, Program]]:
    """Run a simulated daemon for each kind of node."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sources = {name: name for name in _SCENARIOS}
        for name, job in _JOBS.items():
            path = folder / f"{name}.yaml"
            path.write_text(
                f"description: {name}\ngpus: {{model: h100, count: {DEVICES}}}\nprocesses: [{_RANKS}, {job}}}]\n"
            )
            sources[name] = str(path)
        yield {name: stack.enter_context(gpugauge(source)) for name, source in sources.items()}


def templates() -> dict[str, Template]:
    """Return a template for each kind of node, from several scrapes of a simulated daemon for each."""
    with nodes() as daemons:
        time.sleep(_WARM_UP_SECONDS)
        scrapes: dict[str, list[tuple[float, bytes]]] = {name: [] for name in daemons}
        for _ in range(_SCRAPES):
            for name, daemon in daemons.items():
                scrapes[name].append((time.time(), _as_on_a_cluster(daemon.plain().encode())))
            time.sleep(_PAUSE_SECONDS)
    return {name: template(bodies) for name, bodies in scrapes.items()}


def template(bodies: list[tuple[float, bytes]]) -> Template:
    """Return a template from the bodies of one node and their times; series that are not in all bodies are dropped."""
    samples = [{m[1] + (m[2] or b""): m[3] for m in _SAMPLE.finditer(body)} for _, body in bodies]
    (begin, _), (end, last) = bodies[0], bodies[-1]
    counters = {m[1] for m in re.finditer(rb"^# TYPE (\S+) (counter|histogram)$", last, re.MULTILINE)}
    lines: list[bytes] = []
    families: list[str] = []
    scrapes: list[list[bytes]] = [[] for _ in samples]
    rates: dict[int, float] = {}
    ages: dict[int, float] = {}
    starts: list[int] = []
    comments = b""
    for line in last.splitlines(keepends=True):
        found = _SAMPLE.match(line)
        if not found:
            comments += line.replace(b"%", b"%%")
            continue
        name, key = found[1], found[1] + (found[2] or b"")
        if not all(key in values for values in samples):
            continue
        here, was, now = len(lines), float(samples[0][key]), float(found[3])
        if name in counters or re.sub(rb"_(bucket|sum|count)$", b"", name) in counters:
            if now > was:
                rates[here] = (now - was) / (end - begin)
        elif name.endswith((b"_start_timestamp_seconds", b"since_timestamp_seconds")):
            starts.append(here)
        elif name.endswith(b"_timestamp_seconds") and end - now < _WARM_UP_SECONDS:
            ages[here] = max(0.0, end - now)
        lines.append(comments + key.replace(b"%", b"%%") + b" %b\n")
        families.append(name.decode())
        for column, values in zip(scrapes, samples, strict=True):
            column.append(values[key])
        comments = b""
    return Template(lines, families, scrapes, rates, ages, starts)


def _as_on_a_cluster(body: bytes) -> bytes:
    """Return the body with GPUs numbered from 0, and with the allocation of each GPU to the job that uses it."""
    numbers: dict[bytes, dict[bytes, int]] = {b"uuid": {}, b"serial": {}}

    def numbered(found: re.Match[bytes]) -> bytes:
        known = numbers[found[1]]
        return found[1] + b'="%d"' % known.setdefault(found[2], len(known))

    workloads = dict(_WORKLOAD.findall(body))
    allocated = {uuid: workloads[process] for process, uuid in _HOLDS.findall(body) if process in workloads}
    info = [b'gpu_allocation_info{uuid="%b",%b} 1.0\n' % (uuid, labels) for uuid, labels in allocated.items()]
    devices = sorted(found[2] for found in _DEVICE.finditer(body) if found[1] == b"uuid")
    states = [
        b'gpu_allocation_state{state="%b",uuid="%b"} %d.0\n' % (state, uuid, state == now)
        for uuid in dict.fromkeys(devices)
        for now in [b"allocated" if uuid in allocated else b"unallocated"]
        for state in (b"allocated", b"shared", b"unallocated")
    ]
    return _DEVICE.sub(numbered, body + b"".join(info + states))
