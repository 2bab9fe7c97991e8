from __future__ import annotations

from pathlib import Path

from qa.differential import LEFT_OUT, differences, scenarios


def test_each_difference_is_named(tmp_path: Path) -> None:
    for tree, values in {"before": "12", "after": "13"}.items():
        (tmp_path / tree).mkdir()
        for number, value in enumerate(values):
            (tmp_path / tree / f"node-{number}.metrics").write_text(f"gpu_up {value}\n")
    (tmp_path / "after" / "node-2.metrics").write_text("")

    found = differences(tmp_path / "before", tmp_path / "after")

    assert found[0] == "only one tree wrote node-2.metrics"
    assert len(found) == 2
    assert "-gpu_up 2\n+gpu_up 3" in found[1]


def test_most_scenarios_are_compared() -> None:
    assert not LEFT_OUT & set(scenarios())
    assert len(scenarios()) > 25
