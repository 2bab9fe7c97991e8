"""The doctor on drawn machines: each planted fault is named once, with the GPU, and no other GPU is accused."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.doctor.cases import case as small_case
from tests.doctor.cases import findings as of_check
from tests.drawn import seeds
from tests.simulator.build import scenario

from gpugauge.doctor import condition, machine
from gpugauge.doctor.case import Case, Options
from gpugauge.doctor.finding import Finding, skipped, warning
from gpugauge.doctor.gpus import ask
from gpugauge.doctor.report import lines
from gpugauge.doctor.table import Entry
from gpugauge.driver.api import Reply
from gpugauge.driver.client import Worker, WorkerGoneError, WorkerHangsError
from gpugauge.simulator.device.faults import Fault
from gpugauge.simulator.worker import service

MACHINES = 120
SOFT_CODES = {"unknown": 999, "timeout": 10, "irq_issue": 11, "corrupted_inforom": 14, "operating_system": 17}
# A call without an older function as its substitute, and the field that it fills.
CALLS = {
    "nvmlDeviceGetPowerUsage": "power_milliwatts",
    "nvmlDeviceGetTotalEnergyConsumption": "energy_millijoules",
    "nvmlDeviceGetPerformanceState": "performance_state",
    "nvmlDeviceGetBAR1MemoryInfo": "bar1_total_bytes",
    "nvmlDeviceGetCurrPcieLinkWidth": "pcie_width",
    "nvmlDeviceGetComputeMode": "compute_mode",
    "nvmlDeviceGetVbiosVersion": "vbios_version",
    "nvmlDeviceGetDisplayActive": "display_active",
}
STATIC = {"nvmlDeviceGetVbiosVersion"}  # read together with the uuid
ACTIONS = (
    "",
    "a reset of the GPU",
    "a reboot of the node",
    "peer-to-peer",
    "drained and reset",
    "IMEX",
    "PCI",
    "system",
)


@dataclass
class Gpu:
    """A GPU of a drawn machine, and the texts that the doctor must report of it."""

    uuid: str
    entry: dict[str, Any]
    faults: list[dict[str, Any]] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    named: bool = True  # its uuid can be read


def plant_whole(rng: random.Random, gpu: Gpu, index: int) -> None:
    """The GPU cannot be read; nothing else can be known of it."""
    call = rng.choice([None, *CALLS])
    effects: list[tuple[dict[str, Any], str]] = [
        ({"code": "gpu_is_lost"}, "gpu_is_lost"),
        ({"code": "reset_required"}, "reset_required"),
        ({"hang": True}, "hangs"),
        ({"crash": True}, "ends the process"),
    ]
    effect, text = rng.choice(effects)
    gpu.faults.append({"gpu": index, **effect, **({"call": call} if call else {})})
    gpu.expected = [text]
    # One call that fails with a code costs its value alone.
    alone = "code" in effect and call != "nvmlDeviceGetUUID"
    gpu.named = call is not None and (call not in STATIC or alone)


def plant_parts(rng: random.Random, gpu: Gpu, index: int) -> None:
    health: dict[str, Any] = {}
    rows: dict[str, int] = {}
    if rng.random() < 0.3:
        action = rng.randint(1, 7)
        health["recovery_action"] = action
        gpu.expected.append(ACTIONS[action])
    if rng.random() < 0.3:
        rows["pending"] = 1
        gpu.expected.append("waits to be remapped")
    if rng.random() < 0.2:
        rows["failure"] = 1
        gpu.expected.append("remapping of a faulty memory row failed")
    if rng.random() < 0.3:
        count = rng.randint(1, 5)
        health["ecc"] = [{"at": 0, "kind": "uncorrected", "count": count}]
        gpu.expected.append(f"{count} uncorrected memory error")
    if rows:
        health["remapped_rows"] = {**rows, "uncorrectable": rng.randint(0, 9)}
    if rng.random() < 0.3:
        call, code = rng.choice(list(CALLS)), rng.choice(list(SOFT_CODES))
        gpu.faults.append({"gpu": index, "call": call, "code": code})
        gpu.expected.append(f"{CALLS[call]} ({code})")
    elif rng.random() < 0.3:
        gpu.faults.append({"gpu": index, "call": "nvmlDeviceGetComputeMode", "value": 2})
        gpu.expected.append("compute mode is Prohibited")
    gpu.entry["health"] = health


def plant_pages(rng: random.Random, gpu: Gpu) -> None:
    pages = {"single_bit": rng.randint(0, 20), "double_bit": rng.choice([0, 3, 50])}
    if rng.random() < 0.5:
        pages["pending"] = 1
        gpu.expected.append("waits to be retired")
    if pages["single_bit"] + pages["double_bit"] >= 60:
        gpu.expected.append("memory pages are retired")
    gpu.entry["health"] = {"retired_pages": pages}


def drawn(seed: int) -> list[Gpu]:
    rng = random.Random(seed)
    gpus = []
    for index in range(rng.randint(0, 8)):
        uuid = f"GPU-{rng.getrandbits(64):016x}"
        gpu = Gpu(uuid, {"model": rng.choice(["h100", "b200", "t4"]), "uuid": uuid})
        how = rng.random()
        if how < 0.2:
            plant_whole(rng, gpu, index)
        elif how < 0.7 and gpu.entry["model"] == "t4":
            plant_pages(rng, gpu)
        elif how < 0.7:
            plant_parts(rng, gpu, index)
        gpus.append(gpu)
    return gpus


class Stuck(BaseException):
    """A call of the library hangs or crashes, in a test without a process."""


class InProcess(Worker):
    """A worker without a process: a hang and a crash are reported at once."""

    def __init__(self) -> None:
        self._service, self.lost = service(lambda: 0.0), False

    def ask(self, op: str, deadline: float, **arguments: Any) -> Reply:
        assert not self.lost
        try:
            return self._service.answer({"id": 1, "op": op, **arguments})
        except Stuck as stuck:
            self.lost = True
            raise (WorkerHangsError if stuck.args[0] == "hang" else WorkerGoneError)(str(stuck)) from None

    def end(self, *, graceful: bool = True, grace_seconds: float = 0.3) -> bool:
        if not self.lost:
            self._service.close()
        return True


def apply(fault: Fault) -> int | None:
    if fault._plain["hang"] or fault._plain["crash"]:
        raise Stuck("hang" if fault._plain["hang"] else "crash")
    code: int | None = fault._plain["code"]
    return code


def findings(gpus: list[Gpu], folder: Path) -> list[Finding]:
    plain = {
        "driver": {"version": "580.95.05"},
        "gpus": [gpu.entry for gpu in gpus],
        "faults": [fault for gpu in gpus for fault in gpu.faults],
    }
    simulated = scenario(yaml.safe_dump(plain))
    simulated._start |= {"monotonic": 0.0}
    simulation = simulated.simulation()
    case = Case(Options(simulation=simulation), {}, folder)
    case.driver = ask(InProcess, simulation)
    checks = (machine.devices, condition.modes, condition.health, condition.values)
    return [finding for check in checks for finding in of_check(check, case) if finding.severity]


@seeds(range(MACHINES))
def test_drawn_machines(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fault, "apply", apply)
    gpus = drawn(seed)
    found = findings(gpus, tmp_path)
    planted = set[Finding]()
    for index, gpu in enumerate(gpus):
        names = (f"GPU {index} ({gpu.uuid}): " if gpu.named else f"GPU {index}: ", f"GPU {index}: ")
        for text in gpu.expected:
            naming = [finding for finding in found if finding.found.startswith(names) and text in finding.found]
            assert len(naming) == 1, f"{names[0]}{text} is in {len(naming)} of {found}"
            assert naming[0].advice or naming[0].title == "GPUs"
            planted.add(naming[0])
    assert planted == {*found}, f"nobody planted {[finding for finding in found if finding not in planted]}"


def test_the_generator_draws_every_kind_of_fault() -> None:
    texts = " ".join(text for seed in range(MACHINES) for gpu in drawn(seed) for text in gpu.expected)
    counts = {len(drawn(seed)) for seed in range(MACHINES)}

    assert counts == set(range(9))
    for kind in (
        "gpu_is_lost",
        "hangs",
        "ends the process",
        "remapped",
        "retired",
        "uncorrected",
        "Prohibited",
        *ACTIONS,
    ):
        assert kind in texts, kind


def test_it_begins_with_the_gpu_of_the_first_fault(tmp_path: Path) -> None:
    faults = [warning("Faults", f"GPU {index}: NVLink errors (used by a.py)", "check") for index in (1, 2)]
    entries = [Entry("Condition", "health", fault) for fault in (skipped("PCIe link", "unknown"), *faults)]

    text = list(lines(small_case(tmp_path), entries, colour=False))
    assert text[-1] == "2 warnings. Begin with: Faults, GPU 1."
    assert [line[2:6] for line in text if line[2:6] in {"WARN", "skip"}] == ["WARN", "WARN", "skip"]
