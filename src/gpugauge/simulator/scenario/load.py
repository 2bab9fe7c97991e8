"""Scenarios by name, for those that ship, or by the path of a file."""

from __future__ import annotations

from pathlib import Path

from gpugauge.settings.kinds import ConfigError
from gpugauge.settings.yaml_model import YamlModel, hint
from gpugauge.settings.yaml_text import Document
from gpugauge.simulator.scenario.model import Scenario

__all__ = ["SHIPPED", "Scenario", "list_scenarios", "load_scenario", "parse_scenario"]

# The scenarios that ship with the package, those for beginners first.
SHIPPED = (
    *("node", "workstation", "healthy", "starved", "twins", "bottlenecks", "loaders"),
    *("lost-card", "hanging-card", "idle", "no-driver", "large"),
    *("a100-mig", "h200-gpm", "b200", "geforce", "mi300x", "mi300x-cpx", "amd-workstation", "absent-links"),
    *("failing-card", "gpu-reset", "bad-from-start", "bad-links", "misplaced", "card-lost-shift", "counters-reset"),
    *("foreign-events", "lost-before-start", "hung-before-start", "lost-in-restart", "garbage"),
    *("driver-470", "driver-r570", "driver-r575", "driver-r580", "bench-24", "bench-64"),
)
_FOLDERS = Path(__file__).parent.parent / "scenarios"
_FILE = YamlModel(Scenario, "scenario", null_is_unset=False)


def list_scenarios() -> list[tuple[str, str]]:
    """Return (name, description) of every scenario that ships, in the order of SHIPPED."""
    return [(name, load_scenario(name).description) for name in SHIPPED]


def load_scenario(name_or_path: str) -> Scenario:
    """Return the scenario of this name, or of a file if it has a slash or ends in .yaml. Raises ConfigError."""
    if "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        path = Path(name_or_path)
    elif name_or_path in SHIPPED:
        path = next(_FOLDERS.glob(f"*/{name_or_path}.yaml"), _FOLDERS / f"{name_or_path}.yaml")
    else:
        more = hint(name_or_path, SHIPPED) or "; `gpugauge scenarios` lists all"
        raise ConfigError(f"there is no scenario {name_or_path!r}{more}")
    return _scenario(_FILE.read(path), path.stem)


def parse_scenario(text: str, file: str, name: str) -> Scenario:
    """Return the scenario of a YAML text; `file` is for messages, `name` a default. Raises ConfigError."""
    return _scenario(_FILE.parse(text, file), name)


def _scenario(document: Document, name: str) -> Scenario:
    document.tree = {"name": name, **document.tree}
    return _FILE.validate(document)
