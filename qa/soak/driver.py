"""The worker's answers under the soak's load: those of a simulated GPU, with the changing values replaced."""

from __future__ import annotations

from typing import Any

from tests.golden_metrics import GROUPS

from gpugauge.driver.api import DriverFacts, DriverView, Reply
from gpugauge.driver.inventory import Inventory
from gpugauge.simulator.scenario.load import parse_scenario
from gpugauge.simulator.worker import service as simulated_service
from qa.soak.load import BOOTED, DEVICES, MIG_DEVICE, STEP, Happening, Load

_LOST = "gpu_is_lost"
_LIMITS: Any = dict.fromkeys(GROUPS, 2.0 * STEP + 5)
_SCENARIO = """
description: the two kinds of GPUs
gpus: [{model: h100, load: 0.5}, {model: a100, mig: [{profile: 1g.10gb}]}]
"""


def _templates() -> list[Reply]:
    """Return the complete answers of a GPU without MIG devices and of one with them."""
    moments = [0.0]
    service = simulated_service(lambda: moments[-1])
    made = parse_scenario(_SCENARIO, "soak.yaml", "soak")
    made._start |= {"monotonic": 0.0, "unix": 1.0}
    service.answer({"id": 0, "op": "open", "simulate": made.simulation()})
    for moment in (5.0, 30.0):
        moments.append(moment)
        replies = [service.answer({"id": 1, "op": "read", "index": i, "groups": list(GROUPS)}) for i in (0, 1)]
    service.close()
    return replies


class Driver:
    """The answers of a tick, and the view that the sampler receives with them."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._whole, self._divided = _templates()
        self._inventory = Inventory(_LIMITS)
        self._enumerated: list[int] = []  # GPUs by the worker's index
        self._starts = 0

    def answer(self, news: Happening) -> tuple[DriverView, tuple[Reply, ...]]:
        """Return the readings of all GPUs."""
        load, now = self._load, BOOTED + self._load.tick * STEP
        if news.restarted:
            self._starts += 1
            self._enumerated = [i for i in range(DEVICES) if load.up(i)]  # a lost GPU is not found again
            self._inventory.reset_indexes()
        replies = []
        for index, number in enumerate(self._enumerated):
            reply = self._read(index, number, news)
            self._inventory.apply(reply, now)
            replies.append(reply)
        for number, device in enumerate(load.devices):
            self._count(number, news)
            device.answered = load.up(number) and number in self._enumerated
        self._inventory.settle(len(self._enumerated), None)
        facts = DriverFacts(len(self._enumerated), "570.124.06", 12080)
        view = DriverView(
            True,
            "ok",
            facts,
            self._inventory.devices(now),
            worker_starts=self._starts,
            worker_restarts=self._starts - 1,
        )
        return view, tuple(replies)

    def _count(self, number: int, news: Happening) -> None:
        """Count the true busy and observed seconds."""
        load, device = self._load, self._load.devices[number]
        here = load.up(number) and number in self._enumerated
        if not here:
            return
        device.breaks += news.restarted or not device.answered
        if device.breaks > 1 or device.answered:
            # The ring of a GPU that was lost still has its last samples.
            samples = list(device.ring)[-STEP if device.answered else 0 :]
            device.busy += sum(percent for _, percent in samples) / 100
            device.observed += len(samples)

    def _read(self, index: int, number: int, news: Happening) -> Reply:
        load, device, now = self._load, self._load.devices[number], BOOTED + self._load.tick * STEP
        head: dict[str, Any] = {"id": 1, "op": "read", "index": index, "uuid": device.uuid, "received": now}
        head |= {"worker": self._starts}
        if not load.up(number):
            return Reply(**head, failed=_LOST, failed_call="nvmlDeviceGetUtilizationRates")
        template = self._divided if number == MIG_DEVICE else self._whole
        jobs = [job for job in load.jobs.values() if number in job.devices]
        values = {name: dict(group) for name, group in template.values.items()}
        values["static"] |= {"uuid": device.uuid, "index": index, "pci_bus_id": f"00000000:{16 + number:02X}:00.0"}
        values["static"] |= {"serial": str(number), "minor_number": number}
        values["processes"] = {
            "processes": [
                {"pid": j.pid, "kind": "compute", "used_memory_bytes": 1 << 30, "gpu_instance_id": j.instance}
                for j in jobs
            ]
        }
        samples: dict[str, list[list[int]]] = {}
        if number == MIG_DEVICE:
            shown = template.values["mig"]["mig_instances"][0]
            values["mig"] = {
                "mig_instances": [shown | {"uuid": u, "gpu_instance_id": i} for i, u in enumerate(load.instances)]
            }
        else:
            values["fast"]["utilization_percent"] = device.ring[-1][1]
            values["normal"]["energy_millijoules"] += round(1e6 * device.busy)
            fresh = list(device.ring) if news.restarted else list(device.ring)[-STEP:]
            samples = {"gpu": fresh, "memory": fresh}
            samples["process"] = [[fresh[-1][0], job.pid, job.percent, 0, 0, 0] for job in jobs]
        events = [{"type": "xid", "uuid": device.uuid, "xid": xid} for i, xid in news.xids if i == number]
        return Reply(**head, values=values, errors=template.errors, samples=samples, events=events)
