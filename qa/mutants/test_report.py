"""The floor and the list of survivors."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from qa.bench import figures
from qa.mutants.__main__ import mutants_of
from qa.mutants.mutant import TIME_LIMIT, Mutant, Outcome
from qa.mutants.report import FLOOR, Group, Survivor, faults, known_survivors, table
from qa.mutants.sites import Site


def outcomes(killed: int, *survive: str) -> list[Outcome]:
    def mutant(name: str) -> Mutant:
        return Mutant("src/gpugauge/a.py", Site(name, 1, 1, lambda: None))

    dead = [Outcome(mutant(f"killed {number}"), "tests/test_a.py::test") for number in range(killed)]
    return dead + [Outcome(mutant(name)) for name in survive]


def fails(group: Group, known: dict[str, Survivor]) -> list[str]:
    return faults([group], {outcome.mutant.name: outcome.mutant for outcome in group.outcomes}, known)


def listed(name: str, kind: str = "cost") -> dict[str, Survivor]:
    return {f"a.py {name}": Survivor(f"a.py {name}", kind, "the result is the same")}


def test_the_floor_is_a_share_of_the_mutants_that_are_not_equivalent() -> None:
    known = listed("same", "equivalent") | listed("slow")

    assert Group("a", 99, outcomes(9, "same", "slow"), 1.0, known).killed == pytest.approx(0.9)
    assert fails(Group("a", 99, outcomes(9, "same", "slow"), 1.0, known), known) == []
    assert (
        "a: 88.9% of the mutants are killed" in fails(Group("a", 99, outcomes(8, "same", "slow"), 1.0, known), known)[0]
    )


def test_each_survivor_needs_an_entry() -> None:
    (fault,) = fails(Group("a", 99, outcomes(99, "new"), 1.0, {}), {})

    assert "survivors.yaml lacks 'a.py new'" in fault


def test_an_entry_is_stale_if_its_mutant_is_killed_or_gone() -> None:
    known = listed("killed 0") | listed("gone")
    found = fails(Group("a", 99, outcomes(99), 1.0, known), known)

    assert [("gone" in fault, "killed by tests/test_a.py::test" in fault) for fault in found] == [
        (True, False),
        (False, True),
    ]


@pytest.mark.parametrize(
    "entry",
    [
        "{mutant: a, kind: cost}",
        "{mutant: a, kind: never, reason: the result is the same}",
        "{mutant: a, kind: cost, reason: it is slower}\n- {mutant: a, kind: cost, reason: it is slower}",
    ],
)
def test_an_entry_needs_a_kind_and_a_reason(entry: str, tmp_path: Path) -> None:
    path = tmp_path / "survivors.yaml"
    path.write_text(f"- {entry}\n")

    with pytest.raises(ValueError, match=r"survivors\.yaml: an entry needs"):
        known_survivors(path)


def test_table() -> None:
    found = outcomes(8, "same", "slow")
    found[0].killed_by = TIME_LIMIT
    row = Group("a", 99, found, 1.0, listed("same", "equivalent")).row()

    assert "| a | 99 | 10 | 1 | 8 | 1 | 88.9 % | 1 |" in table([row]).markdown()


def test_the_committed_result_has_each_group_above_the_floor_and_a_reason_for_each_survivor() -> None:
    result, known = figures.read("mutants"), known_survivors()
    rows = {row["group"]: row for row in result["tables"][0]["rows"]}

    groups = yaml.safe_load(Path(__file__).with_name("groups.yaml").read_text())
    assert rows.keys() == {name for name, group in groups.items() if not group.get("unpublished")}
    for row in rows.values():
        assert row["killed"] >= FLOOR * (row["drawn"] - row["equivalent"]), row["group"]
    existing = {
        mutant.name for group in groups.values() if not group.get("unpublished") for mutant in mutants_of(group)
    }
    survivors = {name for names in result["survivors"].values() for name in names}
    assert survivors & existing <= known.keys()
