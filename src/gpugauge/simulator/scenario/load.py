"""Scenario files: the ones that ship, by name, and anybody's, by path."""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from gpugauge.settings.kinds import ConfigError
from gpugauge.settings.yaml_model import PlainLoader
from gpugauge.simulator.nvml.replay import check_recording
from gpugauge.simulator.scenario.loadspec import hint
from gpugauge.simulator.scenario.model import Scenario

__all__ = ["SHIPPED", "Scenario", "ScenarioError", "list_scenarios", "load_scenario", "parse_scenario"]

# What ships with the package, the best for a first look first.
SHIPPED = (
    "node",
    "workstation",
    "healthy",
    "starved",
    "twins",
    "bottlenecks",
    "lost-card",
    "hanging-card",
    "idle",
    "no-driver",
    "large",
    "a100-mig",
    "h200-gpm",
    "b200",
    "geforce",
    "failing-card",
    "card-lost-shift",
    "counters-reset",
    "garbage",
    "driver-470",
    "driver-r570",
    "driver-r575",
    "driver-r580",
    "bench-24",
    "bench-64",
)
_FOLDERS = Path(__file__).parent.parent / "scenarios"


class ScenarioError(ConfigError):
    """A scenario cannot be used; the message is one sentence that names file, line, key and what was expected."""


def list_scenarios() -> list[tuple[str, str]]:
    """Return (name, description) of every scenario that ships, the best for a first look first."""
    return [(name, load_scenario(name).description) for name in SHIPPED]


def load_scenario(name_or_path: str) -> Scenario:
    """Load a scenario that ships by its name, or a file by a path that has a slash or ends in .yaml; a recording of a
    real driver ends in .jsonl. Raises ScenarioError.
    """
    if name_or_path.endswith(".jsonl"):
        return _recorded(Path(name_or_path))
    if "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        path = Path(name_or_path)
    elif name_or_path in SHIPPED:
        path = next(_FOLDERS.glob(f"*/{name_or_path}.yaml"))
    else:
        raise ScenarioError(f"there is no scenario {name_or_path!r} {hint(name_or_path, SHIPPED)}")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ScenarioError(f"{path}: is not UTF-8 text") from None
    return parse_scenario(text, str(path), path.stem)


def _recorded(path: Path) -> Scenario:
    """The machine of a recording."""
    try:
        driver = check_recording(path)
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ScenarioError(f"{path}:1: {error}") from None
    return Scenario.model_validate(
        {
            "name": path.stem,
            "description": f"a recording of a machine with driver {driver}",
            "driver": {"version": driver},
            "replay": str(path.absolute()),
        }
    )


def parse_scenario(text: str, file: str, name: str) -> Scenario:
    """Read a scenario from YAML text; `file` is for messages, `name` unless the text has one. Raises ScenarioError."""
    try:
        root, plain = _read(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ScenarioError(f"{file}:{line}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number or date of impossible digits
        raise ScenarioError(f"{file}: not valid YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise ScenarioError(f"{file}: nested too deeply") from None
    if root is None or not isinstance(plain, dict):
        raise ScenarioError(f"{file}:1: a scenario is a mapping with the keys description, gpus, processes, faults")
    try:
        return Scenario.model_validate({"name": name, **plain})
    except ValidationError as error:
        raise ScenarioError(_sentence(file, root, error)) from None


def _read(text: str) -> tuple[yaml.Node | None, Any]:
    """Return a document with its lines, and what it says. Raises what PlainLoader raises."""
    loader = PlainLoader(text)
    try:
        root = loader.get_single_node()
        return root, None if root is None else loader.construct_document(root)
    finally:
        loader.dispose()


def _sentence(file: str, root: yaml.Node, error: ValidationError) -> str:
    """The first problem of a validation, with the line of the nearest key that is in the file."""
    problems = error.errors(include_url=False)
    first = problems[0]
    place: list[Any] = list(first.get("ctx", {}).get("at") or first["loc"])
    key, line = "", root.start_mark.line
    node: yaml.Node = root
    for part in place:
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            key, line = f"{key}[{part}]", node.start_mark.line
        elif isinstance(node, yaml.MappingNode):
            found = [(k, v) for k, v in node.value if k.value == part]
            if found:  # what is not in the file is a missing key, or pydantic's name for a kind of load
                line, node = found[0][0].start_mark.line, found[0][1]
            if found or first["type"] == "missing":
                key = f"{key}.{part}".lstrip(".")
    message = first["msg"][:1].lower() + first["msg"][1:]
    # Our own messages name what they complain about; pydantic's say only what should be.
    value = f", not {_short(first['input'])}" if message.startswith("input should") else ""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{file}:{line + 1}: {key + ': ' if key else ''}{message}{value}{more}"


def _short(value: object) -> str:
    """Return a value as it may stand in a message: lists of lists of the same list would be gigabytes."""
    text = reprlib.repr(value)
    return text if len(text) <= 80 else text[:80] + "…"
