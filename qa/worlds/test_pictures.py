"""The pictures in the documents show the present layout."""

import json

from qa.pictures import DOCS, TAKEN, layouts


def test_no_picture_is_older_than_the_layout() -> None:
    taken = json.loads(TAKEN.read_text(encoding="utf-8"))
    old = [name for name, layout in layouts().items() if taken.get(name) != layout]

    assert old == [], f"`make pictures` takes {', '.join(old)} again"
    assert all((DOCS / name).stat().st_size > 0 for name in taken)


def test_a_picture_of_the_terminal_loads_nothing() -> None:
    text = (DOCS / "top.svg").read_text(encoding="utf-8")

    assert "SIMULATED" in text
    assert "url(http" not in text
    assert "<script" not in text
