"""From the YAML that people write to a model, or to a sentence with file, line, key and what was expected."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, core_schema

from gpugauge.settings.kinds import PATTERNS, ConfigError
from gpugauge.settings.yaml_text import Document, KeyPath, parse, read_text

_MAX_SHOWN_CHARACTERS = 80
_MAX_LISTED_NAMES = 30
_MAX_ERRORS = 10
_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
_NOT_A_SECTION = ("dataclass_type", "model_type", "model_attributes_type", "dict_type", "mapping_type")
# By the first word of pydantic's kind of an error: what a value is in the words of docs/settings.md.
_EXPECTED = {
    "bool": "true or false",
    "date": "a date",
    "dict": "a mapping, key: value",
    "float": "a number",
    "int": "a whole number",
    "list": "a list, [a, b]",
    "path": "a path",
    "string": "text",
    "tuple": "a list, [a, b]",
}
_WRONG_KIND = re.compile(r"(\w+?)_(?:type|parsing|from_float)")
_OF_PYDANTIC = frozenset(get_args(core_schema.ErrorType)) - {"value_error"}

_T = TypeVar("_T")


def nearest(wrong: str, valid: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the valid name that is most similar to a wrong one, or None if none is similar."""
    return next(iter(difflib.get_close_matches(wrong, list(valid), 1, cutoff)), None)


def hint(wrong: str, valid: Iterable[str]) -> str:
    """Return `; did you mean NAME?`; if none is similar, all valid names, unless they are too many."""
    names = list(valid)
    if near := nearest(wrong, names):
        return f"; did you mean {near}?"
    return f"; valid: {', '.join(names)}" if len(names) <= _MAX_LISTED_NAMES else ""


@dataclass(frozen=True)
class YamlModel(Generic[_T]):
    """A kind of YAML file: the model of its content, a pydantic model or dataclass, and what its errors need."""

    model: type[_T]
    name: str
    """For sentences: `settings file`."""
    secrets: tuple[KeyPath, ...] = ()
    """Keys of which no value is ever shown, nor of any key below them."""
    null_is_unset: bool = True
    """Whether a key without a value is left to its default."""
    synonyms: Mapping[str, str] = field(default_factory=dict)
    """The key that is meant, by names that people write for it: such as that of its flag."""

    def read(self, file: Path) -> Document:
        """Return the content of a file. Raises ConfigError."""
        return self.parse(read_text(file, self.name), str(file))

    def parse(self, text: str, file: str) -> Document:
        """Return the content of a text; `file` is for sentences. Raises ConfigError."""
        document = parse(text, file)
        if not isinstance(document.tree, dict):
            keys = ", ".join(_fields(self.model))
            raise ConfigError(f"{document.place(())}: expected `key: value`; the keys of a {self.name} are {keys}")
        if self.null_is_unset:
            document.tree = _without_null(document.tree)
        return document

    def validate(self, document: Document, others: Sequence[str] = ()) -> _T:
        """Return the model of a document. Raises ConfigError with a line for each error, also for `others`."""
        sentences = [*others]
        try:
            found = TypeAdapter(self.model).validate_python(document.tree)
        except ValidationError as error:
            sentences += self._sentences(error, document)
        if (more := len(sentences) - _MAX_ERRORS) > 0:
            sentences[_MAX_ERRORS:] = [f"and {more} more"]
        if sentences:
            raise ConfigError("\n".join(sentences))
        return found

    def _sentences(self, error: ValidationError, document: Document) -> Iterator[str]:
        """Yield a sentence for each error, the unknown keys first, without those that another one explains."""
        found: dict[KeyPath, ErrorDetails] = {}
        for each in sorted(error.errors(include_url=False), key=lambda e: e["type"] not in _UNKNOWN_KEY):
            loc: KeyPath = tuple(each.get("ctx", {}).get("at") or each["loc"])
            path = _path_in_file(loc, document.tree, with_last=each["type"] == "missing")
            found.setdefault(path, {**each, "loc": loc})  # the others are of other kinds of a union
        unknown = [path for path, each in found.items() if each["type"] in _UNKNOWN_KEY]
        inside = {path[:n] for path in found for n in range(len(path))}  # another kind of a union goes further
        for path, each in found.items():
            beside = [str(other[-1]) for other in unknown if other[:-1] == path[:-1]]
            if path not in inside and not (each["type"] == "missing" and nearest(str(path[-1]), beside)):
                yield self._sentence(path, each, document)

    def _sentence(self, path: KeyPath, error: ErrorDetails, document: Document) -> str:
        if error["type"] in _UNKNOWN_KEY:
            reason = "unknown key" + self._hint(error["loc"], path)
        elif error["type"] in _NOT_A_SECTION:
            reason = "this is a section, its keys stand below it"
        else:
            secret = any(path[: len(s)] == s for s in self.secrets)
            reason = _reason(error) + ("" if secret else _value(error))
        place, key = document.place(path), _written(path)
        named = place.removeprefix("--").replace("-", "_") == key  # the flag is the key
        return ": ".join(filter(None, (place, "" if named else key, reason)))

    def _hint(self, loc: KeyPath, path: KeyPath) -> str:
        """Return the nearest valid key: beside the wrong one, else anywhere in the file; else the keys beside it."""
        wrong = str(path[-1])
        beside = [name for model in _models_at(self.model, loc[:-1]) for name in _fields(model)]
        if near := self.synonyms.get(wrong) or nearest(wrong, beside):
            return f"; did you mean {_written((*path[:-1], near))}?"
        # Elsewhere are other things with similar names: only the same name counts, or the whole one without its dots.
        everywhere = {key.rpartition(".")[2]: key for key in _keys(self.model)}
        near = (nearest(wrong, _keys(self.model), 0.7) if len(path) == 1 else None) or everywhere.get(wrong)
        return f"; did you mean {near}?" if near else f"; the keys here are {', '.join(dict.fromkeys(beside))}"


def _reason(error: ErrorDetails) -> str:
    """Return what was expected. Our own validators say so in full, pydantic's words continue the key."""
    message = error["msg"].removeprefix("Value error, ")
    context = error.get("ctx", {})
    if error["type"] == "missing":
        return "must be set"
    if error["type"] == "union_tag_not_found":
        return f"{context['discriminator']} must be set"
    if error["type"] == "union_tag_invalid":
        return f"{context['discriminator']} must be one of {context['expected_tags']}, not {context['tag']!r}"
    if (kind := _WRONG_KIND.fullmatch(error["type"])) and kind[1] in _EXPECTED:
        return f"must be {_EXPECTED[kind[1]]}"
    if (pattern := context.get("pattern")) in PATTERNS:
        return f"must be {PATTERNS[pattern]}"
    if error["type"] in _OF_PYDANTIC:
        message = message.replace("Input is not", "Input should be", 1).partition(", unable to ")[0]
        message = re.sub(r"^\w+ should ", "must ", message)
        return message[:1].lower() + message[1:]
    return message


def _value(error: ErrorDetails) -> str:
    """Return `, not VALUE` for the errors of pydantic; our own sentences name the value where it helps."""
    silent = error["type"] in {"missing", "union_tag_not_found", "union_tag_invalid"} or ", not " in error["msg"]
    if error["type"] not in _OF_PYDANTIC or silent:
        return ""
    shown = repr(error["input"])
    return f", not {shown if len(shown) <= _MAX_SHOWN_CHARACTERS else shown[:_MAX_SHOWN_CHARACTERS] + '…'}"


def _written(path: KeyPath) -> str:
    """Return a path as it is written in sentences: `gpus[0].model`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def _path_in_file(loc: KeyPath, tree: Any, *, with_last: bool) -> KeyPath:
    """Return the parts of pydantic's path that are in the file, which the kind of a union is not."""
    path = []
    for position, part in enumerate(loc):
        inside = (isinstance(tree, dict) and part in tree) or (
            isinstance(tree, (list, tuple)) and isinstance(part, int) and part < len(tree)
        )
        if inside:
            tree = tree[part]
        elif not with_last or position < len(loc) - 1:
            continue
        path.append(part)
    return tuple(path)


def _without_null(tree: dict[str, Any]) -> dict[str, Any]:
    pairs = ((key, _without_null(value) if isinstance(value, dict) else value) for key, value in tree.items())
    return {key: value for key, value in pairs if value is not None}


def _fields(model: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(model):
        hints = get_type_hints(model)
        return {row.name: hints[row.name] for row in dataclasses.fields(model) if row.init}
    return {row.alias or name: row.annotation for name, row in model.model_fields.items()}


def _models(annotation: Any) -> Iterator[Any]:
    """Yield the models in an annotation, also those in a list, a mapping or a union."""
    if arguments := get_args(annotation):
        for argument in arguments:
            yield from _models(argument)
    elif isinstance(annotation, type) and (dataclasses.is_dataclass(annotation) or issubclass(annotation, BaseModel)):
        yield annotation


def _models_at(model: Any, path: KeyPath) -> list[Any]:
    """Return the models that may stand at a path, of which a part may be the kind of a union."""
    models = [model]
    for part in (part for part in path if isinstance(part, str)):
        rows = [_fields(model) for model in models]
        if any(part in row for row in rows):
            models = [inner for row in rows if part in row for inner in _models(row[part])]
        else:
            kinds = [m for m, row in zip(models, rows, strict=True) if any(part in get_args(a) for a in row.values())]
            models = kinds or models
    return models


def _keys(model: Any, prefix: str = "") -> Iterator[str]:
    """Yield all keys of a model, `web` and `web.listen_address`."""
    for name, annotation in _fields(model).items():
        yield prefix + name
        for inner in _models(annotation):
            yield from _keys(inner, f"{prefix}{name}.")
