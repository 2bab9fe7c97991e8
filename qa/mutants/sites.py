"""The mutants of a module: each is one small change of its syntax tree."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LOG_CALLS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
_UNDRAWN_NAMES = {"__all__", "__slots__"}
_LONGEST_CONTEXT = 100


@dataclass(frozen=True)
class Site:
    """A mutant: `name` identifies it as long as its function and its text stay. `function` is the first line of the
    innermost function or lambda around it, or None for code that runs when the module is imported.
    """

    name: str
    line: int
    function: int | None
    apply: Callable[[], None]


@dataclass(frozen=True)
class _Place:
    """The functions and classes around a node, and the expression that a constant is shown in."""

    qualified: tuple[str, ...] = ()
    function: int | None = None
    parent: ast.AST | None = None


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())


_LEAST_ELEMENTS = 3  # of a list or table


class _Finder:
    """Collects the mutants of a tree in a fixed order: deletions of an element of a list or table, or all others."""

    def __init__(self, elements: bool) -> None:
        self._elements = elements
        self.found: list[Site] = []
        self._names: Counter[str] = Counter()

    def _add(
        self, place: _Place, node: ast.stmt | ast.expr, before: str, after: str, apply: Callable[[], None]
    ) -> None:
        if self._elements != (after == _DELETED):
            return
        name = f"{'.'.join(place.qualified) or 'module'}: {before} -> {after}"
        self._names[name] += 1
        if self._names[name] > 1:
            name += f" ({self._names[name]})"
        self.found.append(Site(name, node.lineno, place.function, apply))

    def statements(self, body: list[ast.stmt], place: _Place) -> None:
        for index, statement in enumerate(body):
            if _declares(statement):
                continue
            self._statement(body, index, place)
            self._inside(statement, place)

    def _statement(self, body: list[ast.stmt], index: int, place: _Place) -> None:
        statement = body[index]

        def put(other: ast.stmt) -> Callable[[], None]:
            return lambda: body.__setitem__(index, ast.copy_location(other, statement))

        text = _text(statement) if not isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.With | ast.If) else ""
        called = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call | ast.Await)
        kept = isinstance(statement, ast.Assign) and not any(isinstance(t, ast.Name) for t in statement.targets)
        if called or kept or isinstance(statement, ast.AugAssign | ast.Raise | ast.Delete):
            self._add(place, statement, text, "pass", put(ast.Pass()))
        elif isinstance(statement, ast.Return) and not (_is_none(statement.value) or _is_bool(statement.value)):
            self._add(place, statement, text, "return None", put(ast.Return(ast.Constant(None))))
        elif isinstance(statement, ast.Continue):
            self._add(place, statement, text, "break", put(ast.Break()))
        elif isinstance(statement, ast.Break):
            self._add(place, statement, text, "continue", put(ast.Continue()))
        if isinstance(statement, ast.If | ast.While) and not _for_types(statement):
            condition = _text(statement.test)
            negated = ast.copy_location(ast.UnaryOp(ast.Not(), statement.test), statement.test)
            self._add(place, statement, f"if {condition}", "negated", lambda: setattr(statement, "test", negated))
        if isinstance(statement, ast.AugAssign) and type(statement.op) in _ARITHMETIC:
            self._operator(place, statement, statement, _ARITHMETIC[type(statement.op)]())

    def _operator(self, place: _Place, shown: ast.stmt | ast.expr, holder: Any, other: ast.operator) -> None:
        changed = copy.copy(holder)
        changed.op = other
        self._add(place, shown, _text(holder), _text(changed), lambda: setattr(holder, "op", other))

    def _inside(self, node: ast.AST, place: _Place) -> None:
        """Collect the mutants of what the node contains."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            qualified = (*place.qualified, node.name)
            function = place.function
            if not isinstance(node, ast.ClassDef):
                for default in (*node.args.defaults, *(d for d in node.args.kw_defaults if d)):
                    self._expression_fields(node.args, default, _Place(qualified, None, node))
                function = first_line(node)
            self.statements(node.body, _Place(qualified, function))
            return
        for field, value in ast.iter_fields(node):
            if field in {"annotation", "returns", "decorator_list"} or (field == "type" and value):
                continue
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                self.statements(value, place)
                continue
            for index, child in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(child, ast.expr):
                    self._expression(child, _setter(node, field, index), _Place(place.qualified, place.function, node))
                elif isinstance(child, ast.AST):
                    self._inside(child, place)

    def _expression_fields(self, holder: ast.arguments, default: ast.expr, place: _Place) -> None:
        for field in ("defaults", "kw_defaults"):
            for index, child in enumerate(getattr(holder, field)):
                if child is default:
                    self._expression(child, _setter(holder, field, index), place)

    def _expression(self, node: ast.expr, put: Callable[[ast.expr], None], place: _Place) -> None:
        if isinstance(node, ast.JoinedStr):
            return
        if isinstance(node, ast.Constant):
            self._constant(node, put, place)
            return
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LOG_CALLS:
            return  # the text of a log line
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"cast", "TypeVar"}:
            return
        if isinstance(node, ast.Lambda):
            place = _Place(place.qualified, node.lineno, place.parent)
        self._operations(node, put, place)
        self._deletions(node, place)
        self._inside(node, place)

    def _deletions(self, node: ast.expr, place: _Place) -> None:
        """Collect the deletions of each element of a literal tuple, list, set or dictionary that is a value."""
        if isinstance(getattr(node, "ctx", None), ast.Store):
            return  # an assignment to fewer names fails wherever it runs
        shown = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
        for index, element in enumerate(shown if len(shown) >= _LEAST_ELEMENTS else []):
            if element is not None:
                text = _text(element)[:_LONGEST_CONTEXT]
                self._add(place, element, text, _DELETED, partial(_delete, node, index))

    def _operations(self, node: ast.expr, put: Callable[[ast.expr], None], place: _Place) -> None:
        def replace(other: ast.expr) -> None:
            located = ast.copy_location(other, node)
            self._add(place, node, _text(node), _text(other), lambda: put(located))

        if isinstance(node, ast.Compare):
            for index, operator in enumerate(node.ops):
                for other in _COMPARISONS[type(operator)]:
                    ops = [*node.ops[:index], other(), *node.ops[index + 1 :]]
                    replace(ast.Compare(node.left, ops, node.comparators))
        elif isinstance(node, ast.BoolOp):
            replace(ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            replace(node.operand)
        elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            replace(ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right))
        elif isinstance(node, ast.IfExp):
            replace(ast.IfExp(node.test, node.orelse, node.body))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
            replace(
                ast.Call(
                    ast.copy_location(ast.Name(_FUNCTIONS[node.func.id], ast.Load()), node), node.args, node.keywords
                )
            )

    def _constant(self, node: ast.Constant, put: Callable[[ast.expr], None], place: _Place) -> None:
        value = node.value
        other: bool | float | str | None = None
        if isinstance(value, bool):
            other = not value
        elif isinstance(value, int | float):
            # A limit is doubled: by how little it may be off is no contract. An index or a count is off by one.
            other = value + 1 if value == 0 or (isinstance(value, int) and abs(value) < 5) else value * 2
        elif isinstance(value, str) and not any(mark in value for mark in " {%"):
            other = f"x{value}"  # a name or a key; a text for people has spaces
        if other is None:
            return
        located = ast.copy_location(ast.Constant(other), node)
        before, after = _text(node), _text(located)
        parent = place.parent
        if isinstance(parent, ast.expr | ast.keyword | ast.Assign | ast.AnnAssign | ast.Return):
            context = _text(parent)
            if len(context) <= _LONGEST_CONTEXT:
                before = f"{context}: {before}"
        self._add(place, node, before, after, lambda: put(located))


def _setter(node: ast.AST, field: str, index: int) -> Callable[[ast.expr], None]:
    def put(other: ast.expr) -> None:
        value = getattr(node, field)
        if isinstance(value, list):
            value[index] = other
        else:
            setattr(node, field, other)

    return put


_DELETED = "deleted"
# Of a name that stands for a type: no test sees it.
_TYPES = frozenset({"Literal", "tuple", "dict", "Callable", "Mapping"})


def _delete(node: Any, index: int) -> None:
    for field in ("elts", "keys", "values"):
        if hasattr(node, field):
            del getattr(node, field)[index]


def _is_none(node: ast.expr | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value is None)


def _is_bool(node: ast.expr | None) -> bool:
    """Return whether this is true or false: the other one is another mutant, and None is as good as false."""
    return isinstance(node, ast.Constant) and isinstance(node.value, bool)


def _for_types(node: ast.If | ast.While) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _declares(node: ast.stmt) -> bool:
    """Return whether no mutants are drawn from a statement: docstrings, imports, `__all__`, assertions, types."""
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.AnnAssign):
        return "TypeAlias" in ast.unparse(node.annotation)
    if isinstance(node, ast.Assign):
        if isinstance(node.value, ast.Subscript) and _text(node.value.value) in _TYPES:
            return True
        return any(isinstance(target, ast.Name) and target.id in _UNDRAWN_NAMES for target in node.targets)
    return isinstance(node, ast.If) and _for_types(node)


def sites(tree: ast.Module, *, elements: bool = False) -> list[Site]:
    """Return the mutants of a module in a fixed order. Only one of them may be applied to a tree. With `elements` each
    deletes one element of a list or table: a name, a row, a key.
    """
    finder = _Finder(elements)
    finder.statements(tree.body, _Place())
    return finder.found


def first_line(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> int:
    """Return the first line of the function's code object: that of its first decorator, if it has one."""
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])
