"""Selection of the exported metrics by name patterns, which are checked against the catalogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from types import MappingProxyType

from gpugauge.collectors.device import device, events, mig, problems, utilization
from gpugauge.collectors.exporter import exporter
from gpugauge.collectors.process import allocation, host, process
from gpugauge.collectors.training import advice, collective_rows, session_rows, verdict_rows
from gpugauge.metric import Family, Metric
from gpugauge.settings.kinds import ConfigError
from gpugauge.snapshot import Section, Snapshot

# What the alert rules read, but gains and figures in their texts, and the basic values of each GPU, by the values of a
# label that are kept, or that series are left out until they are more than 0.
_LEAN: Mapping[str, Sequence[Metric]] = {
    "": (
        *(device.UP, device.INFO, device.DOWN_REASON, device.MEMORY_USED, device.MEMORY_TOTAL),
        *(problems.PROBLEM, problems.PROBLEM_INFO, problems.PROBLEMS, problems.SINCE),
        *(allocation.INFO, allocation.SOURCE_UP, process.INFO, process.MEMORY, process.START, host.INFO),
        *(session_rows.INFO, session_rows.OOMS, session_rows.START, session_rows.END, session_rows.LOCAL_WORK),
        *(collective_rows.RANK_POSITION, verdict_rows.SECONDS, verdict_rows.HELD, verdict_rows.LIMITED_BY, advice.TEXT),
        *(exporter.BUILD, exporter.SNAPSHOT, exporter.DRIVER_UP, exporter.DRIVER_RELEASED, exporter.RELEASED_UNTIL),
        *(exporter.SUCCESS, device.POWER, utilization.UTILIZATION, mig.INFO, events.UNREPAIRED),
    ),
    "engine=gpu": (utilization.BUSY, utilization.OBSERVED),
    "sensor=gpu": (device.TEMPERATURE,),
    "part=process": (host.CPU,),
    "state=training|unknown|held_idle|stalled": (verdict_rows.STATE,),
    ">0": (verdict_rows.LOST,),
}
LEAN = {row.name: part for part, rows in _LEAN.items() for row in rows}
"""By metric of the preset `lean`: which of its series are kept; "" for all."""


class Selection:
    """Keeps the families that match `include` and not `exclude`. Raises ConfigError with a line for each pattern that
    matches none; `places` are those of the settings.
    """

    def __init__(
        self,
        names: Sequence[str],
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        preset: str = "full",
        places: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        patterns = [("metrics.include", pattern) for pattern in include]
        patterns += [("metrics.exclude", pattern) for pattern in exclude]
        wrong = [each for each in patterns if not any(fnmatchcase(name, each[1]) for name in names)]
        if wrong:
            raise ConfigError("\n".join(_sentence(*each, names, places) for each in wrong))
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


def _sentence(setting: str, pattern: str, names: Sequence[str], places: Mapping[str, str]) -> str:
    from gpugauge.settings.yaml_model import nearest  # noqa: PLC0415  (needed only for this error)

    place = places.get(setting, "").removeprefix(f"--{setting}")
    near = nearest(pattern, names, cutoff=0.0) or "none"
    return f"{f'{place}: ' if place else ''}{setting}: no metric matches {pattern!r}; the nearest name is {near}"
