"""Mutants and the code that they make, on modules of a few lines."""

from __future__ import annotations

import ast
import builtins
from textwrap import dedent
from types import FunctionType
from typing import Any

import pytest

from qa.mutants.codes import compiled, pairs, reporting
from qa.mutants.sites import sites


def names(source: str) -> set[str]:
    return {site.name for site in sites(ast.parse(dedent(source)))}


@pytest.mark.parametrize(
    ("source", "mutant"),
    [
        ("a = b < c", "module: b < c -> b <= c"),
        ("a = b < c", "module: b < c -> b >= c"),
        ("a = b < c < d", "module: b < c < d -> b < c <= d"),
        ("a = b and c", "module: b and c -> b or c"),
        ("a = not b", "module: not b -> b"),
        ("a = b + c", "module: b + c -> b - c"),
        ("a = min(b, c)", "module: min(b, c) -> max(b, c)"),
        ("a = b if c else d", "module: b if c else d -> d if c else b"),
        ("a = 300.0", "module: a = 300.0: 300.0 -> 600.0"),
        ("a = 1", "module: a = 1: 1 -> 2"),
        ("a = True", "module: a = True: True -> False"),
        ("a = 'name'", "module: a = 'name': 'name' -> 'xname'"),
        ("f(b)", "module: f(b) -> pass"),
        ("a.b = c", "module: a.b = c -> pass"),
        ("a += b", "module: a += b -> a -= b"),
        ("a += b", "module: a += b -> pass"),
        ("if a: b()", "module: if a -> negated"),
        ("for a in b: continue", "module: continue -> break"),
        ("raise A", "module: raise A -> pass"),
        ("def f(): return a", "f: return a -> return None"),
        ("class A:\n  def f(self): return a", "A.f: return a -> return None"),
        ("def f(a=1): pass", "f: 1 -> 2"),
        ("a = [b for b in c if b > 0]", "module: b > 0 -> b >= 0"),
    ],
)
def test_a_mutant_is_found(source: str, mutant: str) -> None:
    assert mutant in names(source)


def test_an_element_of_a_list_or_table_is_deleted() -> None:
    source = "a = ('b', c, 3)\nd = {'e': 1, 'f': 2, **g}\nh = [1, 2]\nfor i in {j(), k, l}: pass"
    found = sites(ast.parse(source), elements=True)

    assert [site.name for site in found] == [
        f"module: {element} -> deleted" for element in ("'b'", "c", "3", "'e'", "'f'", "j()", "k", "l")
    ]
    assert not any("deleted" in site.name for site in sites(ast.parse(source)))
    made: dict[str, Any] = {"c": 2, "g": {}, "j": int, "k": 1, "l": 2}
    exec(compiled(source, "x", "module: 'e' -> deleted"), made)
    assert made["d"] == {"f": 2}


@pytest.mark.parametrize(
    "source",
    [
        "'A docstring.'",
        "__all__ = ['a']",
        "import a",
        "a: int | None",
        "def f(a: 'str') -> 'str': ...",
        "assert a < 1",
        "A: TypeAlias = dict['B', 'C']",
        "A = Literal['B', 'C', 'D']",
        "a = 'a text for people'",
        "a = f'{b + 1}'",
        "if TYPE_CHECKING: a = 1",
        "@f(1)\ndef g(): ...",
        "def f(): return None",
    ],
)
def test_nothing_is_drawn_from_declarations_and_texts(source: str) -> None:
    assert names(source) == set()


def test_of_a_log_line_only_its_absence_is_a_mutant() -> None:
    assert names("log.warning('text', seconds=1 + 2)") == {"module: log.warning('text', seconds=1 + 2) -> pass"}


def test_mutants_of_the_same_text_have_names_of_their_own() -> None:
    assert {"module: a + b -> a - b", "module: a + b -> a - b (2)"} <= names("c = a + b\nd = a + b")


def test_a_mutant_of_a_function_is_applied_to_the_live_function() -> None:
    source = "def outer(limit):\n    return lambda value: value < limit\n"
    namespace: dict[str, Any] = {}
    exec(compiled(source, "a.py"), namespace)  # the module under test
    below = namespace["outer"](3)

    (name,) = (site.name for site in sites(ast.parse(source)) if "<=" in site.name)
    changed = dict(pairs(compiled(source, "a.py"), compiled(source, "a.py", name)))
    live = (namespace["outer"], below)
    for function in live:
        assert isinstance(function, FunctionType)
        function.__code__ = changed[function.__code__]

    assert (below(3), namespace["outer"](3)(3)) == (True, True)


def test_each_site_changes_the_code() -> None:
    source = "def f(a, b=2):\n    while a < b:\n        a += 1\n    return not a\n"

    for site in sites(ast.parse(source)):
        assert compiled(source, "a.py", site.name) != compiled(source, "a.py"), site.name


def test_functions_report_their_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "def f(a):\n    'Text.'\n    return g(a)\n\ng = lambda a: a + 1\n\ndef never():\n    pass\n"
    reached: set[tuple[str, int]] = set()
    monkeypatch.setattr(builtins, "__reached__", lambda *place: reached.add(place), raising=False)
    namespace: dict[str, Any] = {}
    exec(reporting(source, "a.py"), namespace)  # the module under test

    assert namespace["f"](1) == 2
    assert reached == {("a.py", 1), ("a.py", 5)}
    assert namespace["f"].__doc__ == "Text."
