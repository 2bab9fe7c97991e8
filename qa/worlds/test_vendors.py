"""Drawn GPUs of a vendor that nothing above the driver knows: what is exported and shown of them is in its words."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tests.drawn import draws, seeds
from tests.simulation import status
from tests.test_imports import MODULES

from gpugauge.collectors.base import Tick
from gpugauge.collectors.device.device import DeviceCollector
from gpugauge.collectors.device.events import EventsCollector
from gpugauge.collectors.device.health import HealthCollector
from gpugauge.collectors.device.problems import FaultsCollector
from gpugauge.driver.api import CODES, DOWN_REASONS, Device, DeviceReading, DriverView, Failure
from gpugauge.driver.codes import RECOVERY_ACTIONS
from gpugauge.driver.failing import PARTS
from gpugauge.driver.vendors.nvidia import NVIDIA
from gpugauge.snapshot import Snapshot
from gpugauge.status.history import History

GENERATIONS = dict.fromkeys(("static", "normal", "slow"), 1)
FOREIGN = ("nvidia", "nvml", "nvrm", "xid")
ACME = replace(
    NVIDIA,
    name="Acme",
    events="acme",
    tool="acme-tool",
    words={name: f"<{name}{'{index}' if '{index}' in word else ''}>" for name, word in NVIDIA.words.items()},
    opening={},
    recovery={},
    error_classes=(),
    error_advice={},
)

# Modules above the driver whose texts name NVIDIA's library or its tool. What is known of a vendor is in `Vendor`. The
# functions in `source` of a metric are for the reference.
NAMING = {
    "collectors.device.device": "the help of gpu_down_reason, which is exported",
    "collectors.device.events": "the help of gpugauge_event_source_up, which is exported",
    "doctor.machine": "a Jetson, whose GPU that library does not know",
    "web.page.render": "the glossary: MIG is of NVIDIA",
}


def drawn(dice: random.Random, index: int) -> Device:
    reasons = sorted((CODES | set(DOWN_REASONS)) - {"released"})
    name = f"GPU-{index}"
    if dice.random() < 0.4:
        return Device(name, False, dice.choice(reasons), DeviceReading(index=index), GENERATIONS, vendor=ACME)
    facts: dict[str, Any] = {
        "recovery_action": dice.choice([*RECOVERY_ACTIONS, "recovery_action_9"]),
        "remapped_rows_failure": dice.random() < 0.3,
        "remapped_rows_pending": dice.random() < 0.3,
        "retired_pages": {"single_bit": dice.choice([0, 64])},
        "retired_pages_pending": dice.random() < 0.3,
        "ecc_errors": {"uncorrected_volatile": dice.choice([0, 1, 7])},
        "temperature_celsius": dice.choice([50, 95]),
        "temperature_slowdown_celsius": 90,
    }
    known = {key: value for key, value in facts.items() if dice.random() < 0.7}
    failures = tuple(Failure(part, dice.choice(reasons), 1e9) for part in sorted(PARTS) if dice.random() < 0.1)
    return Device(name, True, "ok", DeviceReading(index=index, **known), GENERATIONS, failures, ACME)


def texts(value: Any) -> Iterator[str]:
    """Yield the texts in a status, without its keys."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from texts(part)
    elif isinstance(value, str):
        yield value


@seeds(draws(10, 300))
def test_no_word_of_another_vendor_is_exported_or_shown(seed: int) -> None:
    dice = random.Random(seed)
    devices = tuple(drawn(dice, index) for index in range(dice.randint(0, 6)))
    reason = dice.choice(["ok", "ok", *sorted(CODES)])
    view = DriverView(reason == "ok", reason, devices=devices, vendor=ACME)
    tick = Tick(1.7e9, 100.0, view)
    tick.node.driver = view
    collectors = (DeviceCollector(), HealthCollector(), EventsCollector(None), FaultsCollector())
    sections = tuple(collector.collect(tick) for collector in collectors)

    samples = [(f.metric.name, labels) for s in sections for f in s.families for labels, _ in f.samples]
    shown = list(texts(status(Snapshot(1.7e9, 100.0, sections, node=tick.node), History())))

    exported = [" ".join(labels) for _, labels in samples]
    assert [text for text in [*exported, *shown] if any(word in text.lower() for word in FOREIGN)] == []
    assert not {name for name, _ in samples if name.startswith("gpu_xid")}
    for device in devices:
        if device.up and device.reading.remapped_rows_pending:
            # In a plan that reboots the node for another fault, no GPU is reset.
            steps = (f"<reset_one{device.reading.index}>", "<reset_all>", "systemctl reboot", "switch the machine off")
            assert any(step in text for step in steps for text in shown), device


def test_nothing_above_the_driver_names_the_library_of_a_vendor() -> None:
    naming = re.compile(r'^(?!.*(?:# |""")).*(?:nvml(?![A-Z])|NVML|nvidia-smi|nvrm|NVRM)', re.MULTILINE)
    above = [module for module in MODULES if not module.startswith(("driver", "simulator"))]

    assert {module for module in above if naming.search(MODULES[module].read_text())} == NAMING.keys()
