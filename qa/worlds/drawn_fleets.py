"""Drawn fleets with a known truth: clusters, nodes, GPUs and jobs, as series of an hour."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from tests.e2e.backfill import Sample, labelled
from tests.status.statusfacts import ROWS

from gpugauge.driver.vendors.vendor import RESTART

MINUTE, SECONDS, WATTS, STEPS = 60, 3600, 300, 2
# Names that several clusters, namespaces and kinds share.
_NAMES, _NAMESPACES, _KINDS = ("llm", "1000", "résumé-7", "a b"), ("ml", "web", ""), ("slurm", "jobset", "user")
LOST = 8  # minutes for which a lost GPU does not answer
# By fault of a GPU, its alert and the severity.
FAULTS = {"lost": ("GpuLost", "critical"), "ecc": ("GpuUncorrectedEcc", "warning")}
# The bounds of each exported gain, relative to it.
SPREAD = {"": 1.0, "_lower": 0.8, "_upper": 1.3}
_CAUSES = ("data_loading", "host_bound", "transfer", "underfilled")


class JobId(NamedTuple):
    """A job as the rules identify it."""

    cluster: str
    kind: str
    namespace: str
    name: str


@dataclass
class DrawnNode:
    """A node; `down` and `blind` are the minutes for which its exporter or its driver is gone, 0 for never."""

    cluster: str
    name: str
    uuids: list[str]
    down: int = 0
    blind: bool = False
    faults: dict[str, str] = field(default_factory=dict)  # by uuid

    @property
    def scraped(self) -> dict[str, str]:
        """The labels that a scrape adds."""
        return {"job": "gpugauge", "instance": self.name, "cluster": self.cluster}


@dataclass
class DrawnJob:
    """A job with a process on each of its GPUs. Without evidence of a training it is a display server."""

    id: JobId
    places: list[tuple[DrawnNode, str]]
    lost: dict[str, float]
    trains: bool = True
    ended: int = 0  # minutes ago
    began: int = 120  # minutes ago
    # By cause and by mistake, for each process in the order of the places; None where it is not decided. Time of a step
    # without the cause, relative to the step.
    left: dict[str, list[float | None]] = field(default_factory=dict)
    after: str = "gpu"
    mistakes: dict[str, list[bool | None]] = field(default_factory=dict)

    @property
    def main(self) -> str:
        """The cause that limits each of its processes."""
        return max(self.lost, key=lambda cause: self.lost[cause])

    def of_seen(self, values: list[Any]) -> list[Any]:
        """Return the values of the processes of which Prometheus has values."""
        return [value for (node, _), value in zip(self.places, values, strict=True) if not (node.down or node.blind)]

    def gains(self) -> dict[str, tuple[float, float, float]]:
        """Return the factor of the step rate without each cause, and its bounds: a step takes as long as on the slowest
        process.
        """
        seen = {cause: self.of_seen(left) for cause, left in self.left.items()}
        known = {cause: [share for share in left if share is not None] for cause, left in seen.items()}
        undecided = {self.main} if None in seen.get(self.main, [None]) else set()
        return {
            cause: (1 / max(left), SPREAD["_lower"] / max(left), SPREAD["_upper"] / min(left))
            for cause, left in known.items()
            if left and cause not in undecided
        }

    def made(self) -> dict[str, int]:
        """Return the number of processes that make each mistake, at least one."""
        counts = {mistake: sum(map(bool, self.of_seen(made))) for mistake, made in self.mistakes.items()}
        return {mistake: count for mistake, count in counts.items() if count}

    def not_seen(self) -> set[str]:
        """Return the nodes that are not scraped now and on which it ran when they were seen last."""
        return {node.name for node, _ in self.places if node.down and not node.blind and node.down >= self.ended}

    @property
    def wasted(self) -> float:
        """The number of GPUs that it wastes, those of nodes that are seen."""
        return sum(self.lost.values()) * sum(not (node.down or node.blind) for node, _ in self.places)


@dataclass
class DrawnFleet:
    """A fleet, and what its dashboards must say about it."""

    scrape: int
    nodes: list[DrawnNode]
    jobs: list[DrawnJob]
    missing: frozenset[str]  # families that no exporter reports

    @property
    def judged(self) -> list[DrawnJob]:
        """The trainings that run, on nodes that are seen."""
        return [job for job in self.jobs if job.trains and not job.ended and self.seen(job)]

    @staticmethod
    def seen(job: DrawnJob) -> bool:
        """Return whether Prometheus has values of the job."""
        return any(not (node.down or node.blind) for node, _ in job.places)

    def samples(self, end: int) -> Iterator[Sample]:
        """Yield the series of the hour before `end`."""
        for second in range(end - SECONDS, end + 1, self.scrape):
            ago, age = end - second, second - end + 2 * SECONDS
            for node in self.nodes:
                yield from self._of_node(node, second, ago, age)

    def _row(self, node: DrawnNode, second: int, name: str, value: float, **labels: str) -> Iterator[Sample]:
        if name not in self.missing:
            assert labels.keys() <= set(ROWS[name].labels), name
            yield labelled(name, {**labels, **node.scraped}), float(value), second

    def _of_node(self, node: DrawnNode, second: int, ago: int, age: int) -> Iterator[Sample]:
        row = partial(self._row, node, second)
        down = bool(node.down) and ago < node.down * MINUTE
        yield labelled("up", node.scraped), float(not down), second
        if down:
            return
        yield from row("gpugauge_build_info", 1, version="1", driver_version="575", python="3.11", simulated="false")
        yield from row("gpugauge_snapshot_timestamp_seconds", second)
        yield from row("gpugauge_driver_up", not node.blind, reason="driver_not_loaded" if node.blind else "ok")
        yield from row("gpugauge_collector_success", 1, collector="device")
        yield from row("gpugauge_collector_success", 1, collector="faults")
        if node.blind:
            return
        for index, uuid in enumerate(node.uuids):
            fault = node.faults.get(uuid, "")
            lost = fault == "lost" and ago <= LOST * MINUTE + node.down * MINUTE
            yield from _of_gpu(row, uuid, index, "" if fault == "lost" and not lost else fault, age)
        for number, job in enumerate(self.jobs):
            if job.began * MINUTE >= ago >= job.ended * MINUTE:
                for place, uuid in ((at, uuid) for at, (where, uuid) in enumerate(job.places) if where is node):
                    process = f"{number}-{node.name}-{uuid}"
                    ran = job.began * MINUTE - ago
                    lost = node.faults.get(uuid) == "lost" and ago <= LOST * MINUTE + node.down * MINUTE
                    yield from _of_process(row, process, "" if lost else uuid, job, second - ran, ran, place)
                    yield from _of_advice(row, process, job, place, ran)


Rows = Callable[..., Iterator[Sample]]


BROKEN = 1_700_000_000  # since when each fault of a GPU that answers is there, Unix seconds
# As an exporter gives it: what is repaired now, by its steps, or later. By fault: advice, when, command and note.
STEPS_OF_LOST = (
    "Repair of GPU 0, now, in this order:\n1. start nothing new on the node;\n"
    "2. systemctl reboot, which ends every program of the node;\n3. check that all is well.\nreplace it"
)
ADVICE = {
    "lost": (STEPS_OF_LOST, "now", "systemctl reboot", "replace it"),
    "ecc": (
        f"{RESTART}.\nRepair of GPUs 0, 1, when the jobs have ended, in this order:\n1. drain;\n"
        "2. nvidia-smi --gpu-reset -i 0;\n3. if a reset fails, then systemctl reboot",
        "when the jobs have ended",
        "nvidia-smi --gpu-reset -i 0",
        RESTART,
    ),
}


def _of_gpu(row: Rows, uuid: str, index: int, fault: str, age: int) -> Iterator[Sample]:
    yield from row("gpu_up", fault != "lost", uuid=uuid)
    yield from row("gpu_info", 1, uuid=uuid, index=str(index))
    yield from row("gpu_problems", bool(fault), uuid=uuid)
    if fault:
        alert, severity = FAULTS[fault]
        yield from row("gpu_problem", 1, uuid=uuid, problem=alert, severity=severity)
        if fault != "lost":
            yield from row("gpu_problem_since_timestamp_seconds", BROKEN, uuid=uuid, problem=alert, earlier="")
        words = dict(zip(("advice", "when", "command", "note"), ADVICE[fault], strict=True))
        yield from row("gpu_problem_info", 1, uuid=uuid, problem=alert, summary=fault, index=str(index), **words)
    if fault == "lost":
        return
    yield from row("gpu_temperature_celsius", 50, uuid=uuid, sensor="gpu")
    yield from row("gpu_temperature_limit_celsius", 90, uuid=uuid, limit="slowdown")
    errors = 2 if fault == "ecc" else 0
    yield from row("gpu_ecc_errors_total", errors, uuid=uuid, type="uncorrected", scope="volatile")
    yield from row("gpu_remapped_rows_pending", fault == "ecc", uuid=uuid)
    yield from row("gpu_utilization_ratio", 0.5, uuid=uuid)
    yield from row("gpu_busy_seconds_total", age * 0.5, uuid=uuid, engine="gpu")
    yield from row("gpu_observed_seconds_total", age, uuid=uuid, engine="gpu")
    yield from row("gpu_energy_joules_total", age * WATTS, uuid=uuid)
    yield from row("gpu_power_watts", WATTS, uuid=uuid)
    yield from row("gpu_pcie_width", 8, uuid=uuid, when="current")
    yield from row("gpu_pcie_width", 16, uuid=uuid, when="max")


def _of_process(
    row: Rows, process: str, uuid: str, job: DrawnJob, start: int, age: int, place: int
) -> Iterator[Sample]:
    identity = dict(zip(("workload_job_kind", "workload_namespace", "workload_job"), job.id[1:], strict=True))
    info = {**identity, "process": process, "pid": "7"}
    named = {**info, "workload_user": "ann", "workload_command": "train.py"}
    state = "training" if job.trains else "unknown"
    yield from row("gpu_process_info", 1, **named)
    yield from row("gpu_process_host_info", 1, **named, torch_build="cuda" if job.trains else "")
    if uuid:  # of a GPU that is lost, nothing is known
        yield from row("gpu_process_memory_used_bytes", 1e10, process=process, uuid=uuid)
    yield from row("training_state", 1, process=process, state=state)
    yield from row("training_seconds_total", age, process=process, state=state)
    yield from row("training_gpu_held_seconds_total", age, process=process)
    if job.trains:
        yield from row("training_start_timestamp_seconds", start, process=process)
        yield from row("torch_process_info", 1, rank=str(place), run_id="r", **info)
    for cause, share in job.lost.items():
        yield from row("training_lost_seconds_total", age * share, process=process, cause=cause)


def advised(cause: str) -> str:
    """Return what the daemon advises about a cause."""
    return f"12 in place of 4, because of {cause}"


def _of_advice(row: Rows, process: str, job: DrawnJob, place: int, age: int) -> Iterator[Sample]:
    if not job.trains:
        return
    yield from row("torch_local_work_seconds_total", age * (place + 1) / 10, process=process)
    yield from row("torch_steps_total", age * STEPS, process=process)
    yield from row("training_limited_by", 1, process=process, cause=job.main)
    for cause in {job.main, *job.left}:
        yield from row("training_advice_info", 1, process=process, cause=cause, advice=advised(cause))
    for cause, left in job.left.items():
        if (share := left[place]) is not None:
            for part, factor in SPREAD.items():
                yield from row(f"training_expected_speedup{part}_ratio", factor / share, process=process, cause=cause)
            yield from row("training_expected_speedup_info", 1, process=process, cause=cause, next=job.after)
    for mistake, made in job.mistakes.items():
        if (value := made[place]) is not None:
            yield from row("training_mistake", value, process=process, mistake=mistake)


def _advise(dice: random.Random, job: DrawnJob) -> None:
    """Draw what is known of a job's gains and mistakes: of most of its processes, of all or of none."""

    def drawn(known: float, values: tuple[Any, ...]) -> list[Any]:
        return [dice.choice(values) if dice.random() < known else None for _ in job.places]

    known = dice.choice((0.0, 0.7, 1.0, 1.0))
    job.left = {
        cause: drawn(known, (0.2, 0.4, 0.65, 0.9)) for cause, lost in job.lost.items() if lost and cause != "unknown"
    }
    job.after = dice.choice(("gpu", "cpu", "throttled"))
    some = dice.choice((0.0, 0.5, 1.0))
    job.mistakes = {mistake: drawn(some, (False, False, True)) for mistake in ("profiler", "empty_cache")}


def draw(seed: int) -> DrawnFleet:
    """Return a fleet. Two clusters may have equal names of nodes, GPUs and jobs."""
    dice = random.Random(seed)
    clusters = dice.choice([[""], ["a", "b"], ["a"]])
    nodes = [
        DrawnNode(cluster, f"gpu-{number}", [f"GPU-{cluster}{number}-{gpu}" for gpu in range(dice.randint(1, 4))])
        for cluster in clusters
        for number in range(dice.randint(1, 4))
    ]
    for node in nodes[1:]:
        node.down = dice.choice([0, 0, 0, 25, 50])
        node.blind = not node.down and dice.random() < 0.15
        node.faults = {uuid: dice.choice(["lost", "ecc"]) for uuid in node.uuids if dice.random() < 0.2}
    jobs: dict[JobId, DrawnJob] = {}
    for cluster in clusters:
        free = [(node, uuid) for node in nodes if node.cluster == cluster for uuid in node.uuids]
        dice.shuffle(free)
        while free:
            taken, free = free[: dice.randint(1, 4)], free[4:]
            identity = JobId(cluster, dice.choice(_KINDS), dice.choice(_NAMESPACES), dice.choice(_NAMES))
            causes = dice.sample(_CAUSES, 2)
            lost = {
                causes[0]: round(dice.uniform(0, 0.6), 2),
                causes[1]: round(dice.uniform(0, 0.3), 2),
                "unknown": 0.05,
            }
            ended = dice.choice([0, 0, 0, 25])
            jobs.setdefault(identity, DrawnJob(identity, taken, lost, dice.random() < 0.8, ended))
    # With dice of their own, so that the fleets stay what they were.
    advice = random.Random(seed)
    for job in jobs.values():
        _advise(advice, job)
    missing = frozenset(dice.sample(["gpu_utilization_ratio", "gpu_temperature_celsius", "gpu_ecc_errors_total"], 1))
    return DrawnFleet(dice.choice([15, 30, 60]), nodes, list(jobs.values()), missing)
