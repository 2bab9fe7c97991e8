"""Each test that is left out is noticed in CI."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import needs
from tests.drawn import cases

TESTS = Path(__file__).parent
_SKIPS = {"skip", "skipif", "skipIf", "skipUnless", "SkipTest", "skipTest", "importorskip", "xfail"}
_OF = {"pytest", "mark", "unittest", "self"}  # another object may have a method of such a name


def skips(source: str) -> Iterator[int]:
    """Yield the lines with a way to skip a test."""
    for node in ast.walk(ast.parse(source)):
        names = set()
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).rpartition(".")[2] in _OF:
            names = {node.attr}
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
        if names & _SKIPS:
            yield getattr(node, "lineno", 0)


def test_no_test_is_skipped_in_another_way() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        if path != TESTS / "needs.py"
        for line in skips(path.read_text())
    ]
    assert not found, "use tests/needs.py, which fails in CI"


@cases(
    "source",
    [
        "pytest.skip('no')",
        "@pytest.mark.skip\ndef test(): ...",
        "@pytest.mark.skipif(True, reason='no')\ndef test(): ...",
        "torch = pytest.importorskip('torch')",
        "from pytest import skip",
        "raise unittest.SkipTest",
        "pytestmark = pytest.mark.xfail",
    ],
)
def test_each_way_is_noticed(source: str) -> None:
    assert list(skips(source))


@cases("given", ["1", "true"])
def test_in_ci_a_test_without_what_it_needs_fails(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", given)

    for without in (lambda: needs.need("no-such-program"), lambda: needs.require(met=False, reason="not here")):
        with pytest.raises(pytest.fail.Exception):
            without()


def test_elsewhere_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)

    with pytest.raises(needs.Skipped):
        needs.need("no-such-program")
    needs.require(met=True, reason="here")
    assert needs.need("sh").endswith("/sh")


def test_without_torch_ci_collects_nothing(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setenv("CI", "1")
    monkeypatch.setenv("TORCH", "none")
    item = request.node
    item.add_marker("torch")

    with pytest.raises(pytest.UsageError):
        needs.leave_out_torch([item])
