"""Each exception from a rule of mypy or ruff has its reason."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
_EXCEPTION = re.compile(r"(type: ignore|noqa)(?:\[[\w, -]+\]|: [A-Z0-9, ]+)?")


def without_reason(source: str) -> list[int]:
    """Return the lines with an exception that is the end of its line, and that no comment precedes."""
    lines = ["", *source.splitlines()]
    return [
        number
        for number, line in enumerate(lines)
        if (found := list(_EXCEPTION.finditer(line.partition(" # ")[2])))
        and found[-1].end() == len(line.partition(" # ")[2].rstrip())
        and not any(before.lstrip().startswith("#") for before in lines[max(0, number - 3) : number])
    ]


def test_each_exception_has_its_reason() -> None:
    paths = sorted(path for folder in ("src", "tests", "qa") for path in (ROOT / folder).rglob("*.py"))
    found = [f"{path.relative_to(ROOT)}:{number}" for path in paths for number in without_reason(path.read_text())]

    assert not found


def test_one_without_a_reason_is_noticed() -> None:
    assert without_reason("a = b  # type: ignore[misc]\n\n\nc = d  # noqa: E731") == [1, 4]
    assert without_reason("a = b  # noqa: E731 - short") == without_reason("# short\na = b  # noqa: E731") == []
