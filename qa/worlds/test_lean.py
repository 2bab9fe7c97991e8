"""The preset `lean`: all that the alert rules read, and few series."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.drawn import seeds
from tests.virtual import VirtualDaemon

from gpugauge import catalog
from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.daemon.selection import LEAN, Selection
from gpugauge.simulator.scenario.load import load_scenario

NAMES = [row.name for row in catalog.metrics()]
# The gains in the texts of alerts are left out, as the setting says.
# Of the texts of alerts alone: without them they have no gain, no figures, no phase of a rank, and general advice.
GAINS = {
    name for name in NAMES if name.startswith(("training_expected_speedup", "training_loader_", "torch_loader_info"))
}
GAINS |= {"training_batch_headroom_ratio", "torch_phase", "gpu_temperature_limit_celsius", "gpu_pcie_width"}
GAINS |= {"gpu_ecc_errors_total", "gpu_nvlink_errors_total", "gpu_clocks_event_seconds_total"}
GAINS |= {"gpu_clock_hertz", "gpu_clock_max_hertz"}
SCENARIOS = ("node", "bottlenecks", "failing-card", "a100-mig", "loaders", "workstation")
MOST = {"uuid": 25, "process": 21}


def expressions() -> Iterator[str]:
    """Yield the expressions of the shipped rules, and the queries in their texts."""
    for group in rules.groups(Parameters())["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]
            for text in rule.get("annotations", {}).values():
                yield from re.findall(r"printf `([^`]*)`", text)


def test_the_rules_read_nothing_else() -> None:
    read = {name for text in expressions() for name in re.findall(r"[a-z_0-9]+", text)} & set(NAMES)

    assert read - LEAN.keys() == GAINS & read
    assert GAINS & read
    assert LEAN.keys() <= set(NAMES)


def test_the_rules_read_no_other_series_of_what_is_kept_in_part() -> None:
    for name, part in LEAN.items():
        label, _, values = part.partition("=")
        for text in expressions() if values else ():
            for selector in re.findall(rf"\b{name}\b(?:{{([^}}]*)}})?", text):
                (read,) = re.findall(rf'\b{label}=~?"([^"]*)"', selector)
                assert set(read.split("|")) <= set(values.split("|")), (name, selector)


@seeds(range(len(SCENARIOS)))
def test_a_gpu_and_a_process_have_few_series(tmp_path: Path, seed: int) -> None:
    daemon = VirtualDaemon(load_scenario(SCENARIOS[seed]), tmp_path)
    snapshot = [daemon.second() for _ in range(150)][-1]
    daemon.close()
    full, lean = (
        [
            (f.metric, labels)
            for section in Selection(NAMES, preset=preset).of(snapshot).sections
            for f in section.families
            for labels, _ in f.samples
        ]
        for preset in ("full", "lean")
    )

    for label, most in MOST.items():
        # What is of a process on a GPU counts as that of the process.
        found = Counter(
            labels[metric.labels.index(label)]
            for metric, labels in lean
            if label in metric.labels and (label == "process" or "process" not in metric.labels)
        )
        assert found
        assert found.most_common(1)[0][1] <= most, (SCENARIOS[seed], found.most_common(1))
    assert len(lean) < len(full) / 3
