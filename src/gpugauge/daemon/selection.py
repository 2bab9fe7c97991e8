"""Which metrics are exported: patterns of names, checked against the catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from gpugauge.snapshot import Section


class SelectionError(Exception):
    """A pattern names no metric; one sentence with the pattern and the nearest name."""


class Selection:
    """Takes the families out of sections that `include` does not name or `exclude` names; patterns as in a shell.

    No `include` means all. Raises SelectionError for a pattern that fits none of `names`.
    """

    def __init__(self, names: Sequence[str], include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        for setting, patterns in (("metrics.include", include), ("metrics.exclude", exclude)):
            for pattern in patterns:
                _check(setting, pattern, names)
        self._all = not include and not exclude
        self._kept = {
            name
            for name in names
            if (not include or any(fnmatchcase(name, p) for p in include))
            and not any(fnmatchcase(name, p) for p in exclude)
        }
        # A section that is the same object as before stays the same object: its bytes are reused.
        self._before: dict[str, tuple[Section, Section]] = {}

    def of(self, section: Section) -> Section:
        """Return the section with the chosen families."""
        if self._all:
            return section
        before = self._before.get(section.collector)
        if before is None or before[0] is not section:
            kept = tuple(family for family in section.families if family.metric.name in self._kept)
            before = self._before[section.collector] = (section, Section(section.collector, kept))
        return before[1]


def _check(setting: str, pattern: str, names: Sequence[str]) -> None:
    if not any(fnmatchcase(name, pattern) for name in names):
        import difflib  # noqa: PLC0415  (for a mistake alone)

        near = difflib.get_close_matches(pattern, names, n=1, cutoff=0.0)
        raise SelectionError(
            f"{setting}: no metric is called {pattern!r}; the nearest is {near[0] if near else 'none'}"
        )
