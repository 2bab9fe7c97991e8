"""The results of mutation testing: survivors with their reasons, the table of the document, the verdict on both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from qa.bench.report import Report
from qa.mutants.mutant import TIME_LIMIT, Mutant, Outcome

SURVIVORS = Path(__file__).with_name("survivors.yaml")
FLOOR = 0.90
KINDS = {
    "equivalent": "no program can observe the difference",
    "cost": "only time or memory differ",
    "text": "a text for people differs",
    "other": "see its reason",
}


@dataclass(frozen=True)
class Survivor:
    """A mutant that is known to survive, and why."""

    mutant: str
    kind: str
    reason: str


def known_survivors(path: Path = SURVIVORS) -> dict[str, Survivor]:
    """Return the list of survivors by the mutant. Raises ValueError for an entry without kind or reason."""
    known: dict[str, Survivor] = {}
    for entry in yaml.safe_load(path.read_text(encoding="utf-8")) or []:
        survivor = Survivor(entry.get("mutant", ""), entry.get("kind", ""), entry.get("reason", ""))
        if survivor.kind not in KINDS or len(survivor.reason) < 10 or survivor.mutant in known:
            raise ValueError(f"{path}: an entry needs a mutant of its own, a kind of {list(KINDS)}, a reason: {entry}")
        known[survivor.mutant] = survivor
    return known


@dataclass
class Group:
    """The results of a group."""

    name: str
    mutants: int
    outcomes: list[Outcome]
    seconds: float
    known: Mapping[str, Survivor] = field(default_factory=dict)

    @property
    def survivors(self) -> list[Outcome]:
        """The mutants that no test noticed."""
        return [outcome for outcome in self.outcomes if not outcome.killed_by]

    def of_kind(self, kind: str) -> int:
        """Return the number of known survivors of a kind."""
        kinds = [self.known[o.mutant.name].kind for o in self.survivors if o.mutant.name in self.known]
        return kinds.count(kind)

    @property
    def killed(self) -> float:
        """The share of the drawn mutants that were killed; equivalent ones are no mutants."""
        drawn = len(self.outcomes) - self.of_kind("equivalent")
        return (len(self.outcomes) - len(self.survivors)) / drawn if drawn else 1.0

    def row(self) -> dict[str, Any]:
        """Return the row of the table."""
        killed = len(self.outcomes) - len(self.survivors)
        return {
            "group": self.name,
            "mutants": self.mutants,
            "drawn": len(self.outcomes),
            "equivalent": self.of_kind("equivalent"),
            "killed": killed,
            "by time limit": sum(outcome.killed_by == TIME_LIMIT for outcome in self.outcomes),
            "share": f"{self.killed:.1%}".replace("%", " %"),
            "survive, not equivalent": len(self.survivors) - self.of_kind("equivalent"),
        }


def faults(groups: Sequence[Group], existing: Mapping[str, Mutant], known: Mapping[str, Survivor]) -> list[str]:
    """Return in sentences why the run fails."""
    found = [
        f"{group.name}: {group.killed:.1%} of the mutants are killed, the floor is {FLOOR:.0%}"
        for group in groups
        if group.killed < FLOOR
    ]
    found += [
        f"survivors.yaml: there is no mutant {name!r}: remove the entry" for name in known if name not in existing
    ]
    killed = {o.mutant.name: o.killed_by for group in groups for o in group.outcomes if o.killed_by}
    found += [f"survivors.yaml: {name!r} is killed by {killed[name]}: remove it" for name in known if name in killed]
    unexplained = [o for group in groups for o in group.survivors if o.mutant.name not in known]
    found += [f"survivors.yaml lacks {o.mutant.name!r} (line {o.mutant.site.line})" for o in unexplained]
    return found


def table(rows: Sequence[dict[str, Any]]) -> Report:
    """Return the table of the document and the result file, one row for each group."""
    notes = (
        f"The floor is {FLOOR:.0%}. `share` is that of the drawn mutants that are not equivalent. `by time limit`: of"
        " the killed ones, those with which the tests hang.",
    )
    return Report("Mutants", list(rows), "python -m qa.mutants --write", notes, "groups")
