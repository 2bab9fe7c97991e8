"""Drawn histories of faults of GPUs, with their truth, and what a daemon on the simulated machine exports.

The truth follows from the drawing alone: which alerts must fire and may fire, by minute.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.golden_metrics import GROUPS, LIMITS, START, _answer

from gpugauge.catalog import create_collectors
from gpugauge.collectors.base import Sources
from gpugauge.collectors.kmsg import KernelLog
from gpugauge.daemon.sampler import Sampler
from gpugauge.driver.api import DriverFacts, DriverView, Reply
from gpugauge.driver.inventory import Inventory
from gpugauge.driver.nvidia.bus import parse
from gpugauge.simulator.device.world import World
from gpugauge.simulator.scenario.load import parse_scenario
from gpugauge.simulator.worker import service as simulated_service
from gpugauge.snapshot import Snapshot
from gpugauge.status.history import History as StatusHistory
from gpugauge.status.node import build
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.workloads import Workloads
from qa.bench.alerts.record import selector
from qa.bench.alerts.story import Story, notation

MINUTES, SCRAPE = 80, 30
BOOT = 20_000.0  # seconds from the boot to the start of the scenario
KEEP_FIRING, PATIENCE, SETTLE = 15, 15, 5  # minutes, the defaults of the rules
LATE = 6  # minutes: readings, scrape, two groups of rules, the window of a last value, and the confirmation of a repair
ACTIONS = (
    *("gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset"),
    *("recover_imex_domain", "bus_reset", "system_reboot"),
)
# Alert, and whether a driver with a recovery action requires one, by Xid code.
LASTING_XIDS = {
    **dict.fromkeys((46, 109, 119, 140), ("GpuXidReset", False)),
    **dict.fromkeys((62, 95, 120), ("GpuXidReset", True)),
    **dict.fromkeys((48, 74, 149), ("GpuXidWorkflow", True)),
    54: ("GpuXidNode", False),
}
KINDS = (
    *("action", "pending", "failure", "ecc", "nvlink", "narrow", "narrow_idle", "hot", "lasting_xid", "program_xid"),
    *("harmless_xid", "harmless_counts", "old_ecc", "warm", "none"),
)
# Errors whose repair only the exporter can notice have more turns.
_TURNS = (*KINDS, *("lasting_xid",) * 3)
_COLLECTORS = {"device", "utilization", "clocks", "health", "events", "links", "faults"}
_WITHOUT_ACTION = ["fans", "nvlink_5", "page_retirement", "recovery_action"]


@dataclass
class Expected:
    """An alert: the minutes, both included, in which it must fire, and those in which it may fire."""

    must: tuple[float, float]
    may: tuple[float, float]
    labels: dict[str, str] = field(default_factory=dict)


@dataclass
class History:
    """A GPU with one fault: `begin` and `repair` are seconds, of which the first may be before the start."""

    kind: str
    begin: float
    repair: float | None
    gpu: dict[str, Any]
    xid: int | None = None
    expected: dict[str, Expected] = field(default_factory=dict)


@dataclass
class Machine:
    """A machine: its GPUs, the first scrape, the restarts of the daemon, and whether it reads the kernel log."""

    histories: list[History]
    first_scrape: int  # minute
    restarts: list[int]  # minutes
    kernel_log: bool

    @property
    def scenario(self) -> str:
        return json.dumps({"description": "drawn", "gpus": [history.gpu for history in self.histories]})


def draw(seed: int, gpus: int = 12) -> Machine:
    """Return a drawn machine, on which each kind of fault has its turn."""
    rng = random.Random(seed)
    machine = Machine(
        [],
        rng.choice((0, 0, rng.randrange(1, 12))),
        sorted(rng.sample(range(5, 55), rng.choice((0, 1, 2, 2)))),
        seed % 2 == 0,
    )
    for i in range(gpus):
        machine.histories.append(_history(rng, _TURNS[(seed * gpus + i) % len(_TURNS)], machine))
    return machine


def _history(rng: random.Random, kind: str, machine: Machine) -> History:
    before = rng.random() < 0.4
    begin = -rng.uniform(10, 3600) if before else rng.uniform(0, 45 * 60)
    while any(abs(begin - 60 * minute) < 60 for minute in machine.restarts):  # no event source sees it
        begin += 61
    repair = rng.choice((None, max(begin, 0.0) + rng.uniform(8, 25) * 60))
    history = History(kind, begin, repair, {"model": "h100", "load": 0.9})
    health: dict[str, Any] = {"since": begin, "until": repair} if kind in _REPLACED else {"since": begin}
    if repair is not None and kind not in _REPLACED:
        health["reset_at"] = repair
    history.gpu["health"] = health
    with_action = rng.random() < 0.6
    if not with_action:
        history.gpu["lacks"] = _WITHOUT_ACTION
    _FAULTS[kind](rng, history, machine, with_action)
    return history


def _fires(
    history: History, machine: Machine, alert: str, hold: float = 0.0, labels: dict[str, str] | None = None
) -> None:
    """Expect the alert from the begin of the fault to its repair."""
    begin = max(history.begin / 60, machine.first_scrape)
    end = MINUTES if history.repair is None else history.repair / 60
    last = MINUTES if history.repair is None else end + KEEP_FIRING + LATE
    certain = begin + LATE + hold
    for minute in machine.restarts if hold else ():  # the condition has a gap, and must hold again for its time
        if begin <= minute <= certain:
            certain = minute + LATE + hold
    history.expected[alert] = Expected((certain, end), (begin, last), labels or {})


def _action(rng: random.Random, history: History, machine: Machine, with_action: bool) -> None:
    number = rng.randrange(1, 8)
    history.gpu["health"]["recovery_action"] = number
    if with_action:
        _fires(history, machine, "GpuNeedsReset", labels={"reason": ACTIONS[number - 1]})


def _pending(_: random.Random, history: History, machine: Machine, _a: bool) -> None:
    history.gpu["health"]["remapped_rows"] = {"uncorrectable": 1, "pending": 1}
    _fires(history, machine, "GpuResetPending", labels={"reason": "row_remap_pending"})


def _failure(_: random.Random, history: History, machine: Machine, _a: bool) -> None:
    history.gpu["health"]["remapped_rows"] = {"uncorrectable": 8, "failure": 1}
    _fires(history, machine, "GpuRowRemapFailed")


def _ecc(rng: random.Random, history: History, machine: Machine, _a: bool) -> None:
    # The driver of the simulator was loaded long before, but counts from second 0 on.
    history.gpu["health"]["ecc"] = [
        {"at": max(0.0, history.begin), "kind": "uncorrected", "count": rng.randrange(1, 9)}
    ]
    _fires(history, machine, "GpuUncorrectedEcc")


def _nvlink(rng: random.Random, history: History, machine: Machine, _a: bool) -> None:
    kind = rng.choice(("replay", "recovery", "ecc_data"))
    history.gpu["health"]["nvlink_errors"] = {kind: rng.randrange(10, 50)}
    _fires(history, machine, "GpuNvlinkErrors")


def _narrow(rng: random.Random, history: History, machine: Machine, _a: bool) -> None:
    history.gpu["health"]["pcie_width"] = rng.choice((1, 4, 8))
    _fires(history, machine, "GpuPcieDegraded", hold=SETTLE + 5)


def _narrow_idle(_: random.Random, history: History, _m: Machine, _a: bool) -> None:
    history.gpu["health"]["pcie_width"] = 8
    history.gpu["load"] = 0.05


def _hot(rng: random.Random, history: History, machine: Machine, _a: bool) -> None:
    history.gpu["health"]["temperature"] = rng.randrange(87, 95)
    _fires(history, machine, "GpuHot", hold=SETTLE)


def _lasting_xid(rng: random.Random, history: History, machine: Machine, with_action: bool) -> None:
    history.xid, (alert, covered) = rng.choice(list(LASTING_XIDS.items()))
    history.gpu["health"]["xids"] = [{"at": history.begin, "xid": history.xid}]
    known = history.begin >= 0 or machine.kernel_log
    labels = {"xid": str(history.xid)} if known else {}
    if covered and with_action:
        history.gpu["health"]["recovery_action"] = 1
        _fires(history, machine, "GpuNeedsReset", labels={"reason": "gpu_reset"})
    if known:
        _fires(history, machine, alert, labels=labels)


def _program_xid(rng: random.Random, history: History, machine: Machine, _a: bool) -> None:
    history.xid = rng.choice((13, 31, 68, 142))
    history.gpu["health"]["xids"] = [{"at": history.begin, "xid": history.xid}]
    if history.begin < 0 and not machine.kernel_log:
        return
    begin, end = max(history.begin / 60, machine.first_scrape), history.begin / 60 + PATIENCE
    alert = "GpuXidOther" if history.xid == 142 else "GpuXidApplication"
    history.expected[alert] = Expected((begin + LATE, end - 1), (begin, end + KEEP_FIRING + LATE))
    if end <= begin:
        del history.expected[alert]


def _harmless_xid(rng: random.Random, history: History, _m: Machine, _a: bool) -> None:
    history.xid = rng.choice((43, 45, 63, 92, 94))
    history.gpu["health"]["xids"] = [{"at": min(history.begin, -3000), "xid": history.xid}]


def _harmless_counts(_: random.Random, history: History, _m: Machine, _a: bool) -> None:
    history.gpu["health"] |= {
        "ecc": [{"at": max(0.0, history.begin), "kind": "corrected", "count": 40}],
        "nvlink_errors": {"crc_flit": 400, "crc_data": 12},
        "pcie_errors": {"correctable": 9},
        "pcie_replays": 3,
        "remapped_rows": {"correctable": 2, "uncorrectable": 1},
    }


def _old_ecc(_: random.Random, history: History, _m: Machine, _a: bool) -> None:
    history.gpu["health"]["ecc"] = [{"at": -7200.0, "kind": "uncorrected", "count": 3}]


def _warm(_: random.Random, history: History, _m: Machine, _a: bool) -> None:
    history.gpu["health"]["temperature"] = 86


def _none(_: random.Random, _h: History, _m: Machine, _a: bool) -> None:
    pass


_REPLACED = {"failure", "narrow", "narrow_idle", "hot", "warm"}
_FAULTS = dict(
    zip(
        KINDS,
        (
            *(_action, _pending, _failure, _ecc, _nvlink, _narrow, _narrow_idle, _hot, _lasting_xid, _program_xid),
            *(_harmless_xid, _harmless_counts, _old_ecc, _warm, _none),
        ),
        strict=True,
    )
)


def observe(
    machine: Machine, folder: Path, name: str, wanted: set[str]
) -> tuple[Story, dict[tuple[str, int], set[float]]]:
    """Return what Prometheus scrapes of the `wanted` metrics, minute 0 being the start of the scenario, and the minutes
    in which the status shows a fault of a GPU, by section of the runbook and index.
    """
    shown: dict[tuple[str, int], set[float]] = defaultdict(set)
    history = StatusHistory()

    def watched() -> Iterator[tuple[int, Snapshot]]:
        for number, snapshot in _scrapes(machine, folder):
            history.feed(snapshot)
            for gpu in build(snapshot, history).gpus:
                for fault in gpu.faults:
                    assert fault.runbook
                    assert gpu.index is not None
                    shown[fault.runbook, gpu.index].add(number * SCRAPE / 60)
            yield number, snapshot

    return story_of(name, watched(), wanted, MINUTES), shown


def story_of(name: str, scrapes: Iterable[tuple[int, Snapshot]], wanted: set[str], minutes: int) -> Story:
    """Return numbered scrapes as a story of some minutes."""
    series: dict[str, dict[int, float]] = defaultdict(dict)
    for at, snapshot in scrapes:
        for section in snapshot.sections:
            for family in section.families:
                if family.metric.name not in wanted:
                    continue
                shift = START if family.metric.name.endswith("_timestamp_seconds") else 0.0
                for values, value in family.samples:
                    assert isinstance(value, (int, float))
                    labels = {"instance": "node-1", **dict(zip(family.metric.labels, values, strict=True))}
                    series[selector(family.metric.name, labels)][at] = round(float(value) - shift, 3)
    count = minutes * 60 // SCRAPE
    texts = {key: notation([values.get(i) for i in range(count)]) for key, values in sorted(series.items())}
    return Story(name=name, description="drawn", interval=SCRAPE, minutes=minutes, series=texts)


def _scrapes(machine: Machine, folder: Path) -> Iterator[tuple[int, Snapshot]]:
    """Yield the snapshots that are scraped, with their number since minute 0. A restart costs one scrape."""
    made = parse_scenario(machine.scenario, "drawn.yaml", "drawn")
    made._start |= {"monotonic": BOOT, "unix": START}
    world = World(made.simulation(), lambda: BOOT)
    log, logged = (
        folder / "kmsg",
        sorted(
            (history.begin if history.kind != "harmless_xid" else min(history.begin, -3000), device.bus_id, history.xid)
            for history, device in zip(machine.histories, world.devices, strict=True)
            if history.xid is not None
        ),
    )
    log.write_text("")
    daemon = _Daemon(made, folder, machine)
    down = [60 * minute for minute in machine.restarts]
    for second in range(0, MINUTES * 60, SCRAPE):
        while logged and logged[0][0] <= second:
            at, bus_id, xid = logged.pop(0)
            with log.open("a") as file:
                file.write(f"4,1,{round(1e6 * (BOOT + at))},-;NVRM: Xid (PCI:{bus_id[4:-2].lower()}): {xid}, drawn\n")
        if second in down:
            daemon.close()
            daemon = _Daemon(made, folder, machine)
        if any(begin <= second < begin + SCRAPE for begin in down):
            continue
        snapshot = daemon.tick(BOOT + second, START + second)
        if second >= 60 * machine.first_scrape:
            yield second // SCRAPE, snapshot
    daemon.close()


class _Daemon:
    """The collectors of a daemon, and the worker of its driver, without processes."""

    def __init__(self, made: Any, folder: Path, machine: Machine) -> None:
        self._now = BOOT
        self._service, self._inventory = simulated_service(lambda: self._now), Inventory(LIMITS)
        driver = _answer(self._service, "open", simulate=made.simulation()).values["driver"]
        self._facts, self._replies = DriverFacts(**driver), list[Reply]()
        (folder / "proc").mkdir(exist_ok=True)
        procfs = Procfs(str(folder / "proc"))
        self._log = KernelLog(folder / "kmsg", parse) if machine.kernel_log else None
        node = Sources(
            procfs, Workloads(procfs), kernel_log=self._log, fault_file=folder / "gpus-xids.json", boot="this boot"
        )
        collectors = [collector for collector in create_collectors(node) if collector.name in _COLLECTORS]
        self._sampler = Sampler(collectors, self._news, lambda _: None, 1.0)

    def _news(self) -> tuple[DriverView, tuple[Reply, ...]]:
        replies, self._replies = tuple(self._replies), []
        return DriverView(True, "ok", self._facts, self._inventory.devices(self._now), worker_starts=1), replies

    def tick(self, now: float, timestamp: float) -> Snapshot:
        self._now = now
        for index in range(self._facts.device_count):
            reply = _answer(self._service, "read", index=index, groups=list(GROUPS))
            self._inventory.apply(reply, now)
            self._replies.append(replace(reply, uuid=self._inventory.uuid(index) or "", received=now))
        return self._sampler.tick(timestamp, now)

    def close(self) -> None:
        self._service.close()
        if self._log:
            self._log.close()
