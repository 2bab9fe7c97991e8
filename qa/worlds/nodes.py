"""Nodes drawn at random: what is there and what is wrong, and the snapshot in which the daemon would publish it."""

from __future__ import annotations

import functools
import json
import random
import unicodedata
from dataclasses import dataclass, field
from typing import Any

from tests.simulation import status
from tests.status.statusfacts import family

from gpugauge.faults.judged import Judged
from gpugauge.faults.table import GpuHealth, ailments
from gpugauge.snapshot import Health, Section, Snapshot
from gpugauge.status.history import History
from gpugauge.verdict.causes import CAUSES
from qa.worlds.scraped import snapshot_of

NOW = 1.7e9
GIB = 1 << 30
CROWD = -1  # the number of a full node
_NAMES = (
    "NVIDIA H100 80GB HBM3",
    "Tesla V100-SXM2-32GB",
    "NVIDIA RTX 6000 Ada Generation " * 3,
    "NVIDIA A",
    "图形处理器",
)
SERVER = "vllm.server"
_PROGRAMS = (
    *("train.py", "finetune.py", "a", "x" * 128, "训练.py", "été.py", "a b  c.py", "-", "e\u0301" * 9, "🚀" * 30),
    *("\x1b[2Jevil", "50 %", "GPU 0", "python3", SERVER),
)
_DOWN = ("gpu_is_lost", "hangs", "not_enumerated", "code_77")
_SLOWED = ("hw_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown")
_HARMLESS_SLOWED = ("gpu_idle", "sw_power_cap")
_XIDS = {
    48: {"xid": "48", "class": "workflow", "xid_name": "Double bit ECC error"},
    79: {"xid": "79", "class": "node", "xid_name": "GPU has fallen off the bus"},
    119: {"xid": "119", "class": "reset", "xid_name": "GSP RPC timeout"},
    31: {"xid": "31", "class": "application", "xid_name": "GPU memory page fault"},
    9999: {"xid": "9999", "class": "other", "xid_name": ""},
}
_LIMITS = [*sorted(CAUSES.keys() - {"model_on_cpu", "unused_gpus"}), *["throttled"] * 4]  # it is also a fault of a GPU


@dataclass
class Program:
    """`condition`: well, limited, judging, stalled, idle (for long), resting, ended, unhooked, display, or on_cpu."""

    process: str
    pid: int
    name: str
    condition: str
    gpus: list[str]
    cause: str | None = None
    ratio: float | None = None
    load: float | None = None
    memory: int = 0
    user: str = ""
    job: str = ""
    waits: float | None = None  # share of the steps of a training on the CPU
    loader: dict[str, str] = field(default_factory=dict)
    rest: float = 0.0  # the part of the ratio that other causes take

    @property
    def serves(self) -> bool:
        """Whether it is a server, whose load nobody promised: of a program with the hook it is known what it does."""
        return self.name.startswith(SERVER) and self.condition == "unhooked"

    @property
    def in_trouble(self) -> bool:
        """Whether somebody has to do something about it."""
        waiting = self.condition == "on_cpu" and self.waits is not None and self.waits >= 0.5
        return self.condition in {"limited", "stalled", "idle"} or bool(self.cause) or waiting

    @property
    def speedup(self) -> float | None:
        """The expected gain without the cause, None if it is not decided."""
        return round(1.0 / (1.0 - self.ratio), 3) if self.cause and self.ratio and self.ratio < 0.9 else None


@dataclass
class Gpu:
    """What is true of a GPU; `errors` are phrases that must be shown."""

    uuid: str
    index: int
    name: str
    up: bool = True
    reason: str = ""
    uncorrected: int = 0
    reset: bool = False
    remapping_failed: bool = False
    remapping_pending: bool = False
    xid: int | None = None
    slowed: str | None = None
    mig: list[tuple[str, str, float | None]] = field(default_factory=list)  # uuid, profile, load
    load: float = 0.0
    power: float = 0.0
    memory: int = 0

    @property
    def health(self) -> GpuHealth:
        """Its figures."""
        slowed = {self.slowed: 1.0} if self.slowed in _SLOWED else {}
        return GpuHealth(
            "gpu_reset" if self.reset else "none",
            self.remapping_failed,
            self.remapping_pending,
            uncorrected=self.uncorrected,
            slowed=slowed,
            load=1.0,
        )

    @property
    def faulty(self) -> bool:
        """Whether an administrator has something to do although the GPU answers."""
        memory = self.uncorrected or self.remapping_failed or self.remapping_pending
        return bool(self.up and (memory or self.reset or self.xid in {48, 79}))


@dataclass
class Node:
    """A node, and what the history knows."""

    gpus: list[Gpu]
    programs: list[Program]

    @property
    def unjudged(self) -> int:
        """The number of programs on GPUs with the hook on which there is no verdict yet."""
        return sum(program.condition == "judging" and bool(program.gpus) for program in self.programs)

    @property
    def unexplained(self) -> list[Gpu]:
        """The GPUs with a low load of which only programs without the hook could tell why."""
        found = []
        for gpu in self.gpus:
            here = {program.condition for program in self.programs if gpu.uuid in program.gpus}
            if (
                gpu.up
                and not gpu.mig
                and gpu.load < 0.5
                and any(p.condition == "unhooked" and gpu.uuid in p.gpus and not p.serves for p in self.programs)
                and here <= {"unhooked", "display", "ended", "resting"}
            ):
                found.append(gpu)
        return found

    def snapshot(self) -> Snapshot:
        """Return the snapshot that the daemon publishes."""
        up = [gpu for gpu in self.gpus if gpu.up]
        uses = [(p, uuid) for p in self.programs for uuid in p.gpus]
        hooked = [p for p in self.programs if p.condition not in {"unhooked", "display"}]
        gaining = [
            ({"process": p.process, "cause": p.cause}, p.speedup) for p in self.programs if p.cause and p.speedup
        ]
        states = {"well": "training", "limited": "training", "stalled": "stalled", "idle": "held_idle"}
        states |= {"on_cpu": "training_on_cpu", "unhooked": "unknown", "display": "held_idle", "judging": "training"}
        states["resting"] = "held_idle"
        live = [p for p in self.programs if p.condition != "ended"]
        families = (
            family("gpugauge_build_info", ({"version": "9.9"}, 1)),
            family("gpugauge_driver_up", ({"reason": "ok"}, 1)),
            family("gpu_up", *(({"uuid": g.uuid}, int(g.up)) for g in self.gpus)),
            family("gpu_down_reason", *(({"uuid": g.uuid, "reason": g.reason}, 1) for g in self.gpus if not g.up)),
            family("gpu_info", *(({"uuid": g.uuid, "index": str(g.index), "name": g.name}, 1) for g in self.gpus)),
            family("gpu_utilization_ratio", *(({"uuid": g.uuid}, g.load) for g in up if not g.mig)),
            family("gpu_memory_used_bytes", *(({"uuid": g.uuid}, g.memory) for g in up)),
            family("gpu_memory_total_bytes", *(({"uuid": g.uuid}, 80 * GIB) for g in up)),
            family("gpu_power_watts", *(({"uuid": g.uuid}, g.power) for g in up)),
            family("gpu_power_limit_watts", *(({"uuid": g.uuid}, 700) for g in up)),
            family("gpu_temperature_celsius", *(({"uuid": g.uuid, "sensor": "gpu"}, 64) for g in up)),
            family(
                "gpu_clocks_event_active",
                *(({"uuid": g.uuid, "reason": r}, int(r == g.slowed)) for g in up for r in _SLOWED + _HARMLESS_SLOWED),
            ),
            family(
                "gpu_xid_last_timestamp_seconds",
                *(({"uuid": g.uuid, **_XIDS[g.xid]}, NOW - 60) for g in self.gpus if g.xid is not None),
            ),
            family(
                "gpu_xid_unrepaired_timestamp_seconds",
                *(({"uuid": g.uuid, **_XIDS[g.xid]}, NOW - 90_000) for g in self.gpus if g.xid in {48, 79}),
            ),
            family(
                "gpu_mig_info",
                *(({"uuid": u, "parent_uuid": g.uuid, "profile": p}, 1) for g in up for u, p, _ in g.mig),
            ),
            family(
                "gpu_mig_sm_active_ratio",
                *(({"uuid": u}, load) for g in up for u, _, load in g.mig if load is not None),
            ),
            family("gpu_process_memory_used_bytes", *(({"process": p.process, "uuid": u}, p.memory) for p, u in uses)),
            family(
                "gpu_process_info",
                *(
                    (
                        {
                            "process": p.process,
                            "pid": str(p.pid),
                            "kind": "graphics" if p.condition == "display" else "compute",
                            "workload_command": p.name,
                            "workload_user": p.user,
                            "workload_job": p.job,
                            "workload_job_kind": "slurm" if p.job else "",
                        },
                        1,
                    )
                    for p in self.programs
                    if p.gpus
                ),
            ),
            family(
                "gpu_process_host_info",
                *(
                    (
                        {
                            "process": p.process,
                            "pid": str(p.pid),
                            "torch_build": "" if p.condition == "display" else "cuda",
                            "workload_command": p.name,
                            "workload_user": p.user,
                            "workload_job": p.job,
                            "workload_job_kind": "slurm" if p.job else "",
                        },
                        1,
                    )
                    for p in self.programs
                ),
            ),
            family("torch_process_info", *(({"process": p.process, "pid": str(p.pid)}, 1) for p in hooked)),
            family(
                "training_state",
                *(({"process": p.process, "state": states[p.condition]}, 1) for p in live),
            ),
            family(
                "training_end_timestamp_seconds",
                *(({"process": p.process}, NOW - 7) for p in self.programs if p.condition == "ended"),
            ),
            family(
                "torch_phase",
                *(({"process": p.process, "phase": "training"}, 1) for p in hooked),
            ),
            family(
                "training_step_share_ratio",
                *(({"process": p.process, "part": "data"}, p.waits) for p in live if p.waits is not None),
            ),
            family("torch_loader_info", *(({"process": p.process, **p.loader}, 1) for p in self.programs if p.loader)),
            family(
                "training_limited_by",
                *(({"process": p.process, "cause": p.cause}, 1) for p in self.programs if p.cause),
            ),
            family(
                "training_limited_by_ratio",
                *(
                    ({"process": p.process, "cause": cause}, share)
                    for p in self.programs
                    if p.cause and p.ratio
                    for cause, share in ((p.cause, p.ratio - p.rest), ("contention", p.rest))
                    if share
                ),
            ),
            *(
                family(
                    f"training_expected_speedup{bound}_ratio",
                    *((labels, factor * speedup) for labels, speedup in gaining),
                )
                for bound, factor in (("", 1.0), ("_lower", 0.9), ("_upper", 1.2))
            ),
            family(
                "training_expected_speedup_info",
                *(({**labels, "next": "gpu"}, 1) for labels, _ in gaining),
            ),
        )
        faults = Judged("faults", (), {g.uuid: tuple(ailments(g.health)) for g in up})
        return snapshot_of(NOW, 100.0, (Section("all", families), faults), {"device": Health(True, 0.1, NOW, 0)})

    def history(self) -> History:
        """Return a history with the loads of GPUs and processes."""
        means = {gpu.uuid: gpu.load for gpu in self.gpus if not gpu.mig}
        loads = {p.process: p.load for p in self.programs}
        unused = {p.process for p in self.programs if p.condition == "idle"}
        young = {p.process: 3.0 + number for number, p in enumerate(self.programs) if p.condition == "judging"}

        class Drawn(History):
            def load(self, uuid: str, seconds: float) -> float | None:
                return means.get(uuid)

            def process_load(self, process: str, uuid: str, seconds: float) -> float | None:
                return loads[process]

            def reporting_seconds(self, process: str) -> float | None:
                return young.get(process, 600.0)

            def unused(self, process: str) -> bool:
                return process in unused

        return Drawn()


def facts_of(node: Node) -> dict[str, Any]:
    """Return the status of a node, as a client receives it."""
    facts: dict[str, Any] = json.loads(json.dumps(status(node.snapshot(), node.history()), allow_nan=False))
    return facts | {"host": "node-7"}


@functools.cache
def world(seed: int) -> tuple[Node, dict[str, Any]]:
    """Return the node with this number and its status, which all tests share: they change neither."""
    return (node := draw_crowded(1) if seed == CROWD else draw(seed)), facts_of(node)


def printed(name: str) -> str:
    """Return a name as a terminal shows it."""
    return "".join(c if c.isprintable() else "?" for c in name)


def columns(line: str) -> int:
    """Return the columns that a line takes on a terminal, by the tables of Unicode."""
    wide = sum(unicodedata.east_asian_width(c) in {"W", "F"} for c in line)
    return len(line) + wide - sum(unicodedata.combining(c) > 0 for c in line)


def draw(seed: int) -> Node:
    """Return the node with this number."""
    dice = random.Random(seed)
    gpus = [_gpu(dice, index) for index in range(dice.choice((1, 1, 2, 4, 8, 16)))]
    up = [gpu.uuid for gpu in gpus if gpu.up]
    pids = dice.sample(range(1, 4_194_304), 12)
    programs = [_program(dice, number, pids[number], up) for number in range(dice.randint(0, 8))]
    return Node(gpus, programs)


def crowd_of(gpus: int, programs: int) -> Node:
    """Return a node with so many GPUs, whose loads grow with their index, and so many programs on each."""
    dice = random.Random(gpus)
    there = [Gpu(f"GPU-{index}", index, _NAMES[0], load=index / gpus) for index in range(gpus)]
    placed = []
    for number in range(gpus * programs):
        condition = dice.choices(("well", "limited", "idle", "unhooked"), (92, 4, 1, 3))[0]
        program = Program(
            f"p{number}", 1000 + number, f"train{number % 9}.py", condition, [f"GPU-{number // programs}"]
        )
        if condition == "limited":
            program.cause, program.ratio = "data_loading", dice.choice((0.2, 0.7))
        placed.append(program)
    return Node(there, placed)


def draw_crowded(seed: int, gpus: int = 64, programs: int = 512) -> Node:
    """Return a full node with this number."""
    dice = random.Random(seed)
    drawn = [_gpu(dice, index) for index in range(gpus)]
    up = [gpu.uuid for gpu in drawn if gpu.up]
    pids = dice.sample(range(1, 4_194_304), programs)
    crowd = [_program(dice, number, pids[number], up) for number in range(programs)]
    for program in crowd:
        program.gpus = program.gpus[:2]  # 64 ranks on 64 GPUs each would be 33,000 rows
    return Node(drawn, crowd)


def _gpu(dice: random.Random, index: int) -> Gpu:
    gpu = Gpu(f"GPU-{index:08x}-7a1c", index, dice.choice(_NAMES))
    gpu.load, gpu.power, gpu.memory = dice.choice((0.0, 0.005, 0.5, 1.0)), dice.choice((3.2, 700.0, 1234.5)), 79 * GIB
    if dice.random() < 0.1:
        gpu.up, gpu.reason = False, dice.choice(_DOWN)
    if dice.random() < 0.2:
        gpu.uncorrected, gpu.reset = dice.choice((0, 1, 12345)), dice.random() < 0.5
        gpu.remapping_failed, gpu.remapping_pending = dice.random() < 0.3, dice.random() < 0.3
    if dice.random() < 0.2:
        gpu.xid = dice.choice((48, 79, 119, 31, 9999))  # 119 is repaired, the last two need no action
    if dice.random() < 0.3:
        gpu.slowed = dice.choice(_SLOWED + _HARMLESS_SLOWED)
    if dice.random() < 0.2:
        loads = [dice.choice((None, 0.0, 0.43, 1.0)) for _ in range(dice.randint(1, 7))]
        gpu.mig = [(f"MIG-{index}-{i}", dice.choice(("1g.10gb", "3g.40gb+me")), load) for i, load in enumerate(loads)]
    return gpu


def _program(dice: random.Random, number: int, pid: int, up: list[str]) -> Program:
    conditions = ["well", "limited", "limited", "stalled", "idle", "resting", "unhooked", "display", "on_cpu"]
    condition = dice.choice([*conditions, "judging", "ended"] if up else ["on_cpu"])
    gpus = [] if condition == "on_cpu" else sorted(dice.sample(up, dice.randint(1, len(up))))
    program = Program(f"p{number}", pid, f"{dice.choice(_PROGRAMS)}{number}", condition, gpus)
    program.load, program.memory = dice.choice((None, 0.0, 0.07, 1.0)), dice.choice((1, 3 * GIB, 79 * GIB))
    if condition == "limited":
        program.cause, program.ratio = dice.choice(_LIMITS), dice.choice((0.12, 0.3, 0.49, 0.5, 0.7, 1.0))
        program.rest = dice.choice((0.0, 0.25, 0.5)) * program.ratio if program.cause != "contention" else 0.0
    elif condition == "on_cpu" and dice.random() < 0.5:
        program.cause = dice.choice(("model_on_cpu", "no_cuda_build"))
    program.user, program.job = dice.choice(("", "ann", "1000")), dice.choice(("", "", "501"))
    if condition == "on_cpu":
        program.waits = dice.choice((None, 0.03, 0.49, 0.5, 0.99))
    if condition not in {"unhooked", "display"}:
        program.loader = dice.choice(
            (
                {},
                {"workers": "0", "pin_memory": "no"},
                {"workers": "4", "pin_memory": "yes", "prefetch": "2"},
                {"workers": "1", "pin_memory": "no", "prefetch": "2"},
            )
        )
    return program
