"""Selection of the exported metrics by name patterns, which are checked against the catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from gpugauge.metric import Family
from gpugauge.settings.kinds import ConfigError
from gpugauge.snapshot import Section, Snapshot

# What the alert rules read, but gains and figures in their texts, and the basic values of each GPU. In braces: the
# values of a label that are kept, or that series are left out until they are more than 0.
_LEAN = """
gpu_up gpu_info gpu_down_reason gpu_problem gpu_problem_info gpu_problems gpu_problem_since_timestamp_seconds
gpu_allocation_info gpu_xid_unrepaired_timestamp_seconds
gpu_busy_seconds_total{engine=gpu} gpu_observed_seconds_total{engine=gpu}
gpu_utilization_ratio gpu_memory_used_bytes gpu_memory_total_bytes gpu_power_watts gpu_temperature_celsius{sensor=gpu}
gpu_mig_info gpu_process_info gpu_process_host_info gpu_process_memory_used_bytes gpu_process_start_timestamp_seconds
gpu_process_cpu_seconds_total{part=process} torch_process_info torch_memory_ooms_total
training_start_timestamp_seconds training_state{state=training|unknown|held_idle|stalled} training_seconds_total
training_gpu_held_seconds_total training_lost_seconds_total{>0} training_limited_by training_advice_info
training_rank_position training_end_timestamp_seconds torch_local_work_seconds_total
gpugauge_build_info gpugauge_snapshot_timestamp_seconds gpugauge_driver_up gpugauge_driver_released
gpugauge_driver_released_until_timestamp_seconds gpugauge_collector_success gpugauge_attribution_source_up
"""
LEAN = {name: part.rstrip("}") for name, _, part in (word.partition("{") for word in _LEAN.split())}
"""By metric of the preset `lean`: which of its series are kept; "" for all."""


class Selection:
    """Keeps the families that match `include` and not `exclude`. Raises ConfigError if a pattern matches none."""

    def __init__(
        self, names: Sequence[str], include: Sequence[str] = (), exclude: Sequence[str] = (), preset: str = "full"
    ) -> None:
        for setting, patterns in (("metrics.include", include), ("metrics.exclude", exclude)):
            for pattern in patterns:
                _check(setting, pattern, names)
        self._all = not include and not exclude and preset == "full"
        chosen = {name for name in names if any(fnmatchcase(name, p) for p in include)}
        chosen |= {name for name in names if not include and preset == "full"}
        lean = LEAN if preset == "lean" else {}
        self._selected = {
            name: "" if name in chosen else lean[name]
            for name in names
            if (name in chosen or name in lean) and not any(fnmatchcase(name, p) for p in exclude)
        }
        # By collector, the last section and its result: the same object for an unchanged one, whose bytes are reused.
        self._last: dict[str, tuple[Section, Section]] = {}

    def of(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the selected families only."""
        return snapshot if self._all else replace(snapshot, sections=tuple(map(self.of_section, snapshot.sections)))

    def of_section(self, section: Section) -> Section:
        """Return the section with the selected families only."""
        last = self._last.get(section.collector)
        if last is None or last[0] is not section:
            families = (self._part(family) for family in section.families if family.metric.name in self._selected)
            selected = tuple(family for family in families if family.samples)
            last = self._last[section.collector] = (section, Section(section.collector, selected))
        return last[1]

    def _part(self, family: Family) -> Family:
        part = self._selected[family.metric.name]
        if not part:
            return family
        label, _, values = part.partition("=")
        if not values:  # ">0"
            return family._replace(samples=tuple(sample for sample in family.samples if sample[1]))
        place, kept = family.metric.labels.index(label), values.split("|")
        return family._replace(samples=tuple(sample for sample in family.samples if sample[0][place] in kept))


def _check(setting: str, pattern: str, names: Sequence[str]) -> None:
    if not any(fnmatchcase(name, pattern) for name in names):
        from gpugauge.settings.yaml_model import nearest  # noqa: PLC0415  (needed only for this error)

        near = nearest(pattern, names, cutoff=0.0) or "none"
        raise ConfigError(f"{setting}: no metric matches {pattern!r}; the nearest name is {near}")
