"""Code objects of a module: with a mutant, or with functions that report their calls."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from types import CodeType

from qa.mutants.sites import first_line, sites


def parsed(source: str, filename: str, name: str | None = None) -> ast.Module:
    """Return a module with the mutant of that name. Raises KeyError if the module has none."""
    tree = ast.parse(source, filename)
    if name is not None:
        {site.name: site for site in sites(tree, elements="-> deleted" in name)}[name].apply()
        ast.fix_missing_locations(tree)
    return tree


def compiled(source: str, filename: str, name: str | None = None) -> CodeType:
    """Return its code. Raises KeyError."""
    return compile(parsed(source, filename, name), filename, "exec", dont_inherit=True)


def pairs(code: CodeType, mutated: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Return the code objects that differ, each with its mutated counterpart, from the outside to the inside."""
    if code == mutated:
        return
    yield code, mutated
    others = _nested(mutated)
    for key, inner in _nested(code).items():
        if key in others:
            yield from pairs(inner, others[key])


def _nested(code: CodeType) -> dict[tuple[str, int, int], CodeType]:
    """Return the code objects inside another by their names, first lines and order among equals."""
    seen: Counter[tuple[str, int]] = Counter()
    found: dict[tuple[str, int, int], CodeType] = {}
    for const in code.co_consts:
        if isinstance(const, CodeType):
            name, line = const.co_name, const.co_firstlineno
            seen[name, line] += 1
            found[name, line, seen[name, line]] = const
    return found


# How a started process reports: `__reached__` of the module hides the builtin of the process that runs the tests.
_REPORT = """
def __reached__(file, line, seen=set()):
    if line not in seen:
        seen.add(line)
        try:
            with open({report!r}, "a") as report:
                report.write(f"{{line}} {{file}}\\n")
        except Exception:
            pass  # of another user, or at the end of the interpreter
"""


class _Reporting(ast.NodeTransformer):
    """Lets each function report its call: `__reached__(file, first line)`, a builtin while the tests are observed."""

    def __init__(self, filename: str) -> None:
        self._filename = filename

    def _call(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> ast.expr:
        arguments: list[ast.expr] = [ast.Constant(self._filename), ast.Constant(first_line(node))]
        name = ast.Name("__reached__", ast.Load())
        return ast.BoolOp(ast.And(), [name, ast.Call(name, arguments, [])])  # None when the interpreter ends

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self.generic_visit(node)
        place = 1 if ast.get_docstring(node, clean=False) is not None else 0
        node.body.insert(place, ast.copy_location(ast.Expr(self._call(node)), node.body[-1]))
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self.generic_visit(node)
        body = ast.BoolOp(ast.Or(), [self._call(node), node.body])
        node.body = ast.copy_location(body, node.body)
        return node


def reporting(source: str, filename: str, report: str = "") -> CodeType:
    """Return the code of a module whose functions call the builtin `__reached__` with the file and their first line, or
    a function of its own which appends both to the file `report`.
    """
    tree = _Reporting(filename).visit(ast.parse(source, filename))
    if report:
        imports = [n for n, node in enumerate(tree.body) if getattr(node, "module", "") == "__future__"]
        place = max(imports, default=-1) + 1
        tree.body[place:place] = ast.parse(_REPORT.format(report=report)).body
    return compile(ast.fix_missing_locations(tree), filename, "exec", dont_inherit=True)
