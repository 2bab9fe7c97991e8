from __future__ import annotations

import logging
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tests import drawn
from tests.drawn import cases, draws, seeds


def test_each_value_has_its_own_folder_and_patches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    @seeds(range(3))
    def test(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GPUGAUGE_TRIED", str(seed))
        seen.append((seed, tmp_path.name, tmp_path.is_dir()))

    test(tmp_path=tmp_path, monkeypatch=monkeypatch)

    assert seen == [(0, "0", True), (1, "1", True), (2, "2", True)]


def test_a_failure_names_its_seed() -> None:
    @seeds([4, 5])
    def test(seed: int) -> None:
        assert seed != 5

    with pytest.raises(AssertionError, match=r"seed 5 of test \(GPUGAUGE_SEED=5 repeats it\)") as raised:
        test()

    assert isinstance(raised.value.__cause__, AssertionError)


def test_one_value_is_chosen_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGAUGE_SEED", "17")
    seen = []

    @seeds(range(3), "number")
    def test(number: int) -> None:
        seen.append(number)

    test()

    assert seen == [17]


@pytest.mark.parametrize(("everything", "expected"), [(True, [*range(10)]), (False, [3, 8])])
def test_a_push_draws_a_part_of_many(everything: bool, expected: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn, "EVERYTHING", everything)
    monkeypatch.setattr(drawn, "_TODAY", 8)
    monkeypatch.delenv("GPUGAUGE_SEED", raising=False)
    seen = []

    @seeds(range(10))
    def test(seed: int) -> None:
        seen.append(seed)

    test()

    assert seen == expected


def test_each_row_of_a_table_is_a_case(caplog: pytest.LogCaptureFixture) -> None:
    seen = []

    @cases(("text", "number"), [("a", 1), ("b", 2)])
    @cases("more", [10, 20])
    def test(text: str, number: int, more: int, caplog: pytest.LogCaptureFixture) -> None:
        assert not caplog.records
        logging.getLogger().error("one")
        seen.append((text, number + more))

    test(caplog=caplog)

    assert seen == [("a", 11), ("a", 21), ("b", 12), ("b", 22)]


def test_a_row_that_fails_is_named() -> None:
    @cases("text", ["1", "x", "2"])
    def test(text: str) -> None:
        with pytest.raises(ValueError, match="invalid literal"):
            int(text.replace("1", "y"))

    with pytest.raises(AssertionError, match=r"text '2' of test: DID NOT RAISE"):
        test()


def test_a_push_draws_a_few_seeds_of_its_day_and_everything_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn, "EVERYTHING", False)
    day = datetime.now(timezone.utc).toordinal()

    assert draws(3, 40) == [(3 * day + number) % 40 for number in range(3)]
    monkeypatch.setattr(drawn, "EVERYTHING", True)
    assert draws(3, 40) == range(40)
