"""YAML that people write, with the line of each key. Scalars are those of YAML 1.2's core schema: only `true` and
`false` are booleans (`off` is a mode of the driver), and there are no dates. Tags, anchors and aliases are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from gpugauge.settings.files import FileError, read_file
from gpugauge.settings.kinds import ConfigError

_INTEGER = re.compile(r"[-+]?(0|[1-9](_?[0-9])*|0x[0-9a-fA-F]+)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"([-+]?)\.(inf|nan)", re.IGNORECASE)
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
# What PyYAML quotes from the text, except single characters and its own words such as '<stream end>'.
_QUOTED_TEXT = re.compile(r" '(?!<)[^']{2,}'")

KeyPath: TypeAlias = tuple[str | int, ...]


@dataclass
class Document:
    """Nested keys and values, and for each key its place: `FILE:LINE`, a flag or an environment variable."""

    tree: Any = field(default_factory=dict)
    places: dict[KeyPath, str] = field(default_factory=dict)

    def place(self, path: KeyPath) -> str:
        """Return the place of a key, or of the nearest one around it; empty if there is none."""
        return next((self.places[path[:n]] for n in range(len(path), -1, -1) if path[:n] in self.places), "")

    def put(self, path: tuple[str, ...], value: object, place: str) -> None:
        """Set a value. A section that is none in the file is left for the validation to refuse."""
        tree = self.tree
        for section in path[:-1]:
            tree = tree.setdefault(section, {})
            if not isinstance(tree, dict):
                return
        tree[path[-1]] = value
        self.places[path] = place


def read_text(file: Path, name: str) -> str:
    """Return the content of a file. Raises ConfigError; `name` is what the file should be."""
    try:
        content = read_file(file, name)
    except FileError as error:
        raise ConfigError(f"{file}: {error}") from None
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}:{line}: this is not UTF-8 text") from None


def parse(text: str, file: str) -> Document:
    """Return the document of a YAML text; an empty text has no keys. Raises ConfigError with file and line."""
    try:
        loader = _Loader(text, file)
        try:
            root = loader.get_single_node()
        finally:
            loader.dispose()
        if root is None:
            return Document(places={(): f"{file}:1"})
        return Document(loader.value(root, ()), loader.places)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{file}:{line}: not valid YAML: a control character is not allowed") from None
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{file}:{_line(error.problem_mark)}: not valid YAML: {_problem(error)}") from None
    except RecursionError:
        raise ConfigError(f"{file}: nested too deeply") from None


def _problem(error: yaml.MarkedYAMLError) -> str:
    """Return the problem without quotations: the text may be a password."""
    problem = str(error.problem)
    if problem.startswith("found character '\\t'"):
        return "a tab, where spaces are needed"
    # `expected a single document in the stream` is the context of `but found another document`.
    return _QUOTED_TEXT.sub("", f"{error.context}, {problem}" if problem.startswith("but ") else problem)


def _line(mark: yaml.Mark | None) -> int:
    return mark.line + 1 if mark else 1


class _Loader(yaml.SafeLoader):
    """A loader of which only the composer is used, and which records the places of the keys. It refuses tags, anchors
    and aliases without naming them: a password that begins with `!`, `&` or `*` is one for YAML.
    """

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text)
        self.yaml_implicit_resolvers = {}  # each scalar stays text
        self._file = file
        self.places: dict[KeyPath, str] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next node. Raises ConfigError for an anchor, an alias or a tag."""
        event = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML
        place = self._place(event)
        if getattr(event, "anchor", None) is not None:  # also of an alias
            raise ConfigError(
                f"{place}: anchors and aliases are not used; put a value that begins with & or * in quotes"
            )
        if getattr(event, "tag", None) is not None:
            raise ConfigError(f"{place}: tags are not used; put a value that begins with ! in quotes")
        return super().compose_node(parent, index)

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        """Return the value of a node. Raises ConfigError."""
        self.places.setdefault(path, self._place(node))
        if isinstance(node, yaml.MappingNode):
            return {key: self.value(value, (*path, key)) for key, value in self._pairs(node, path)}
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        try:
            node.value.encode()
            quoted = isinstance(node, yaml.ScalarNode) and node.style
            return node.value if quoted else _scalar(node.value)
        except UnicodeEncodeError:
            raise ConfigError(f"{self._place(node)}: \\ud800 to \\udfff alone are no characters") from None
        except ValueError:  # Python's limit
            raise ConfigError(f"{self._place(node)}: a number has too many digits") from None

    def _pairs(self, node: yaml.MappingNode, path: KeyPath) -> Iterator[tuple[str, yaml.Node]]:
        for key_node, value_node in node.value:
            place, key = self._place(key_node), key_node.value
            if not isinstance(key_node, yaml.ScalarNode) or not key.isprintable():
                raise ConfigError(f"{place}: a key must be plain text")
            inner = (*path, key)
            if first := self.places.get(inner):
                raise ConfigError(f"{place}: {'.'.join(map(str, inner))} is set twice, first in {first}")
            self.places[inner] = place
            yield key, value_node

    def _place(self, at: yaml.Node) -> str:
        return f"{self._file}:{_line(at.start_mark)}"


def _scalar(text: str) -> object:
    """Return the value of text without quotes. Raises ValueError for a number that is too long."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if found := _NOT_FINITE.fullmatch(text):
        return float(found[1] + found[2])
    return text
