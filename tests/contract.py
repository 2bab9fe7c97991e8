"""The contract of the packages, packages.yaml: which there are, in which order, and which may import which."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = "gpugauge"
SOURCE = Path(__file__).parents[1] / "src" / ROOT
FILE = Path(__file__).with_name("packages.yaml")


@dataclass(frozen=True)
class Package:
    """A folder of `src/gpugauge`, or a module that stands beside the folders. `imports` are packages below it."""

    name: str
    purpose: str
    imports: frozenset[str]


def packages() -> tuple[Package, ...]:
    """Return the packages from the lowest to the highest. Raises ValueError if one may import another above it."""
    content: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    found: dict[str, Package] = {}
    for name, entry in content.items():
        imports = frozenset(entry.get("imports", "").split())
        if above := imports - found.keys():
            raise ValueError(f"{FILE.name}: {name} imports {', '.join(sorted(above))}, which does not stand above it")
        found[name] = Package(name, entry["purpose"], imports)
    return tuple(found.values())


def package_of(module: str) -> str:
    """Return the package of a module, both dotted and without the root: `web.page` for `web.page.draw`."""
    parts = module.split(".")
    folder = SOURCE.joinpath(*parts)
    return module if folder.is_dir() or len(parts) == 1 else ".".join(parts[:-1])


def packages_table() -> str:
    """Return the table of docs/architecture.md, highest package first."""
    lines = ["| package | purpose |", "|---|---|"]
    for package in reversed(packages()):
        path = package.name.replace(".", "/")
        name = f"{path}/" if SOURCE.joinpath(path).is_dir() else f"{path}.py"
        lines.append(f"| `{name}` | {package.purpose} |")
    return "\n".join(lines)
