"""GPUs that the kernel suspends and resumes, as drawn: no reading wakes one, and none is reported as a fault."""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path

from tests.drawn import draws, seeds
from tests.driver.fakeworker import FakeWorker, Node

from gpugauge.base.forecast import ScrapeForecast
from gpugauge.collectors.device.device import IDENTITY
from gpugauge.driver.api import Reply
from gpugauge.driver.bus import is_suspended
from gpugauge.driver.client import Worker
from gpugauge.driver.inventory import Inventory
from gpugauge.driver.reader import Reader, ReadingIntervals
from gpugauge.status.gpu_problems import gpu_problems
from gpugauge.status.model import GpuStatus
from gpugauge.status.problems import with_state

INTERVALS = ReadingIntervals({"fast": 1.0, "normal": 5.0})
UP, DOWN_REASON, *_ = IDENTITY


def receive(worker: Worker, number: int, deadline: float) -> Reply:
    reply = worker.receive(number, deadline)
    if "static" in reply.values:
        reply.values["static"]["pci_bus_id"] = f"00000000:{reply.index:02X}:00.0"
    return reply


@seeds(draws(20, 2000))
def test_no_reading_wakes_a_gpu_that_is_suspended(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    uuids = [f"GPU-{number}" for number in range(dice.randint(1, 12))]
    files = {uuid: tmp_path / f"bus/pci/devices/0000:{n:02x}:00.0/power/runtime_status" for n, uuid in enumerate(uuids)}
    managed = {uuid for uuid in uuids if dice.random() < 0.7}
    for uuid in managed:
        files[uuid].parent.mkdir(parents=True)
        files[uuid].write_text("active\n")
    inventory = Inventory(INTERVALS.limits)
    inventory.is_suspended = partial(is_suspended, tmp_path)
    reader, worker = Reader(inventory, ScrapeForecast(), receive), FakeWorker(Node(*uuids))
    reader.begin(1, same_devices=True)
    asleep = set[str]()
    for turn in range(dice.randint(3, 30)):
        worker.requests.clear()
        assert (
            reader.read(worker, len(uuids), INTERVALS, frozenset(), 10.0 * turn, on_demand=dice.random() < 0.2) is None
        )
        assert {uuids[arguments["index"]] for _, arguments in worker.requests} == {*uuids} - asleep
        inventory.settle(len(uuids), None)
        for device in inventory.devices(time.monotonic()):
            expected = (None, {"suspended": 1}) if device.uuid in asleep else (1, None)
            assert (UP.read(device), DOWN_REASON.read(device)) == expected
            gpu = GpuStatus(uuid=device.uuid, up=device.up, down_reason=None if device.up else device.reason)
            problems = [*gpu_problems([gpu], None)]
            assert (with_state(gpu, problems).state_words, problems) == (
                "suspended" if device.uuid in asleep else "free",
                [],
            )
        asleep = {uuid for uuid in managed if dice.random() < 0.4}
        for uuid in managed:
            files[uuid].write_text("suspended\n" if uuid in asleep else dice.choice(("active\n", "resuming\n")))
