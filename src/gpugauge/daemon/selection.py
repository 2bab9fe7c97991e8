"""Selection of the exported metrics by name patterns, which are checked against the catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from gpugauge.settings.kinds import ConfigError
from gpugauge.snapshot import Section, Snapshot


class Selection:
    """Removes families from snapshots: keeps those that match `include` and not `exclude`, as shell patterns.

    An empty `include` matches all. Raises ConfigError for a pattern that matches none of `names`.
    """

    def __init__(self, names: Sequence[str], include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        for setting, patterns in (("metrics.include", include), ("metrics.exclude", exclude)):
            for pattern in patterns:
                _check(setting, pattern, names)
        self._all = not include and not exclude
        self._selected = {
            name
            for name in names
            if (not include or any(fnmatchcase(name, p) for p in include))
            and not any(fnmatchcase(name, p) for p in exclude)
        }
        # By collector, the last section and its result: an unchanged section gives the same object, so that the
        # exposition reuses its bytes.
        self._last: dict[str, tuple[Section, Section]] = {}

    def of(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the selected families only."""
        return snapshot if self._all else replace(snapshot, sections=tuple(map(self.of_section, snapshot.sections)))

    def of_section(self, section: Section) -> Section:
        """Return the section with the selected families only."""
        last = self._last.get(section.collector)
        if last is None or last[0] is not section:
            selected = tuple(family for family in section.families if family.metric.name in self._selected)
            last = self._last[section.collector] = (section, Section(section.collector, selected))
        return last[1]


def _check(setting: str, pattern: str, names: Sequence[str]) -> None:
    if not any(fnmatchcase(name, pattern) for name in names):
        from gpugauge.settings.yaml_model import nearest  # noqa: PLC0415  (needed only for this error)

        near = nearest(pattern, names, cutoff=0.0) or "none"
        raise ConfigError(f"{setting}: no metric matches {pattern!r}; the nearest name is {near}")
