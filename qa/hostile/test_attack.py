"""Drawn attacks: their text form, and the part that is found when one fails."""

from __future__ import annotations

from random import Random

import pytest

from qa.hostile.attack import Act, Attack, Round, draw, parse, smaller, text
from qa.hostile.client import KINDS


@pytest.mark.parametrize("seed", range(20))
def test_a_drawn_round_is_repeated_from_its_text(seed: int) -> None:
    chance = Random(seed)
    drawn = tuple(draw(chance, kind, KINDS[kind]) for kind in chance.sample(list(KINDS), chance.randint(1, 3)))

    assert parse(text(drawn), KINDS) == drawn
    assert all(attack.acts for attack in drawn)


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ("", "'' is no kind of attack: expected one of hook, port, http"),
        ("hook connect:1, gate open:1", "'gate' is no kind of attack"),
        ("hook open:1", "'open:1' is no act of hook: expected ACT:SEED with one of connect, crowd"),
        ("port connect", "'connect' is no act of port"),
        ("port connect:x", "'connect:x' is no act of port"),
    ],
)
def test_a_wrong_text_is_refused(form: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse(form, KINDS)


def acts(attacks: Round) -> set[Act]:
    return {act for attack in attacks for act in attack.acts}


@pytest.mark.parametrize("seed", range(30))
def test_the_smallest_part_that_fails_is_found(seed: int) -> None:
    """The truth is drawn: the acts without which there is no failure."""
    chance = Random(seed)
    numbers = list(range(chance.randint(1, 60)))
    guilty = {Act("connect", n) for n in chance.sample(numbers, chance.randint(1, min(3, len(numbers))))}
    middle = chance.randrange(len(numbers) + 1)
    attacks = tuple(
        Attack(kind, tuple(Act("connect", n) for n in part), holds)
        for kind, part, holds in (("hook", numbers[:middle], True), ("port", numbers[middle:], False))
    )

    found = smaller(attacks, lambda part: guilty <= acts(part))

    assert acts(found) == guilty
    assert all(attack.acts for attack in found)
    assert {attack.kind: attack.holds for attack in found}.items() <= {"hook": True, "port": False}.items()


def test_the_search_ends_when_no_more_may_be_tried() -> None:
    attack = (Attack("port", tuple(Act("connect", n) for n in range(8))),)
    tried: list[Round] = []

    def fails(part: Round) -> bool | None:
        tried.append(part)
        return len(tried) == 1 or None

    assert len(acts(smaller(attack, fails))) == 4
    assert len(tried) == 2
