"""The pictures in the documents show the present layout."""

import json
from pathlib import Path

from qa.pictures import DOCS, TAKEN, layouts, of_unit


def test_no_picture_is_older_than_the_layout() -> None:
    taken = json.loads(TAKEN.read_text(encoding="utf-8"))
    old = [name for name, layout in layouts().items() if taken.get(name) != layout]

    assert old == [], f"`make pictures` takes {', '.join(old)} again"
    assert all((DOCS / name).stat().st_size > 0 for name in taken)


def test_the_repair_in_a_picture_is_that_of_a_node_with_the_unit(tmp_path: Path) -> None:
    place = of_unit(tmp_path)

    assert place.stop == "systemctl stop gpugauge.socket gpugauge"
    assert "gpugauge status --fail-on health" in place.check
    assert not place.managers


def test_a_picture_of_the_terminal_loads_nothing() -> None:
    text = (DOCS / "top.svg").read_text(encoding="utf-8")

    assert "SIMULATED" in text
    assert "url(http" not in text
    assert "<script" not in text
