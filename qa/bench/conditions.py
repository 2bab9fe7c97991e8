"""The verdict compared with the oracle under the conditions of real trainings: a row for each of them.

`python -m qa.bench.conditions` prints the statements that are right, those about healthy runs, the runs without a
statement, and the exact causes, by row and number of faults. `--write` keeps them for docs/proof/verdict.md. With
`--tuning` the seeds are those with which the constants of the verdict are chosen, `--wrong ROW` lists its mistakes.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpugauge.node.node import Verdict
from gpugauge.verdict.judge import judge
from qa.bench import figures
from qa.bench.report import report, reported
from qa.worlds.conditions import PUBLISHED_SEEDS, ROWS, TUNING_SEEDS, Case, cases
from qa.worlds.oracle import FAULTS
from qa.worlds.trainings import saves_as_much
from qa.worlds.truth import MIN_SPEEDUP

CASES = 40  # of each seed, row and number of faults
_BEFORE = Verdict("training", "inside")
NO_CAUSE = "(none)"


def statement(case: Case) -> str | None:
    """Return the named cause of a case, None without one."""
    named = judge(case.evidence, _BEFORE).limited_by
    return None if named == "unknown" else named


@dataclass
class Score:
    """Numbers of runs, and pairs of true and named cause."""

    runs: int = 0
    caused: int = 0  # with a cause
    named: int = 0
    right: int = 0
    exact: int = 0
    any_cause: int = 0  # named is a cause, not always the largest
    blamed: int = 0  # named without a cause
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)

    def count(self, case: Case, named: str | None) -> None:
        """Count a run and the cause that is named for it."""
        true = case.true_cause
        self.runs += 1
        self.caused += true is not None
        self.pairs[true or NO_CAUSE, named or NO_CAUSE] += 1
        if named is None:
            return
        self.named += 1
        self.right += saves_as_much(case.gains, named)
        self.exact += named == true
        self.any_cause += case.gains.get(named, 1.0) >= MIN_SPEEDUP
        self.blamed += true is None

    @property
    def right_share(self) -> float:
        """Share of the statements that are right, 1 without one."""
        return self.right / self.named if self.named else 1.0

    @property
    def blamed_share(self) -> float:
        """Share of the runs without a cause for which one is named."""
        healthy = self.runs - self.caused
        return self.blamed / healthy if healthy else 0.0

    def row(self) -> dict[str, Any]:
        """Return the cells of a table."""
        healthy, silent = self.runs - self.caused, self.caused - (self.named - self.blamed)
        return {
            "with a cause": self.caused,
            "statements": self.named,
            "right": _share(self.right, self.named),
            "exact": _share(self.exact, self.named),
            "any cause": _share(self.any_cause, self.named),
            "silent": _share(silent, self.caused),
            "healthy": healthy,
            "wrongly named": _share(self.blamed, healthy),
        }


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def scores(name: str, seeds: range, number: int) -> dict[int, Score]:
    """Return the scores of a row by number of faults."""
    found = {faults: Score() for faults in FAULTS}
    for case in drawn(name, seeds, number):
        found[case.faults].count(case, statement(case))
    return found


def drawn(name: str, seeds: range, number: int) -> Iterator[Case]:
    """Yield the runs of a row."""
    for seed in seeds:
        yield from cases(name, seed, number)


def wrong(name: str, seeds: range, number: int) -> None:
    """Print the pairs of true and named cause of a row that are wrong, the most frequent first."""
    for faults in FAULTS[:3]:
        pairs: Counter[tuple[str, str]] = Counter()
        for case in drawn(name, seeds, number):
            named = statement(case) if case.faults == faults else None
            if named and not saves_as_much(case.gains, named):
                pairs[case.true_cause or NO_CAUSE, named] += 1
        found = ", ".join(f"{true} as {named} {n}" for (true, named), n in pairs.most_common(12))
        print(f"{name}, {faults} faults: {found}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the tables")
    parser.add_argument("--tuning", action="store_true", help="draw with the seeds of tuning")
    parser.add_argument("--cases", type=int, default=CASES, help="of each seed, row and number of faults")
    parser.add_argument("--rows", nargs="*", default=list(ROWS))
    parser.add_argument("--wrong", nargs="*", default=[], help="rows")
    options = parser.parse_args()
    seeds = TUNING_SEEDS if options.tuning else PUBLISHED_SEEDS
    for name in options.wrong:
        wrong(name, seeds, options.cases)
    if options.wrong:
        return
    found = {name: scores(name, seeds, options.cases) for name in options.rows}
    command = f"python -m qa.bench.conditions --cases {options.cases}"
    for faults in FAULTS:
        rows = [{"conditions": name, **by_faults[faults].row()} for name, by_faults in found.items()]
        report(f"Runs with {faults} faults", rows, command, name=f"faults-{faults}")
    if options.write:
        figures.keep("conditions", reported)


if __name__ == "__main__":
    main()
