"""The reference of the metrics, docs/metrics.md: `gpugauge metrics --format markdown`."""

from __future__ import annotations

import json
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from gpugauge.catalog import CATALOG
from gpugauge.driver.vendors import VENDORS

_INTRODUCTION = Path(__file__).with_suffix(".md")


def entries() -> list[dict[str, Any]]:
    """Return one entry for each row: name, type, unit, labels, help, source, devices, vendors, collector."""
    return [
        {
            "name": row.name,
            "type": row.kind,
            "unit": row.unit,
            "labels": list(row.labels),
            "help": row.help,
            "source": row.source,
            "devices": row.devices,
            "vendors": vendors(row.name),
            "collector": collector,
        }
        for collector, rows in CATALOG.items()
        for row in rows
    ]


def vendors(metric: str) -> list[str]:
    """Return the vendors whose GPUs can have a metric, none for one that is not about a GPU."""
    of_gpu = metric.startswith("gpu_")
    return [v.name for v in VENDORS if of_gpu and not any(fnmatchcase(metric, pattern) for pattern in v.lacks)]


def as_json() -> str:
    """Return the catalogue as a JSON list."""
    return json.dumps(entries(), indent=2) + "\n"


def as_text() -> str:
    """Return two lines for each metric, for a terminal."""
    lines = []
    for entry in entries():
        labels = "{" + ",".join(entry["labels"]) + "}" if entry["labels"] else ""
        lines.append(f"{entry['name']}{labels}  {entry['type']}, collector {entry['collector']}")
        lines.append("    " + " ".join([entry["help"], *(f"[{entry[k]}]" for k in ("source", "devices") if entry[k])]))
    return "\n".join(lines) + "\n"


def as_markdown() -> str:
    """Return docs/metrics.md."""
    parts = [_INTRODUCTION.read_text(encoding="utf-8")]
    for collector, rows in CATALOG.items():
        parts.append(
            f"\n## {collector}\n\n| metric | type | labels | meaning | source | GPUs | vendors |\n"
            "|---|---|---|---|---|---|---|\n"
        )
        for row in rows:
            labels, made = " ".join(f"`{label}`" for label in row.labels), ", ".join(vendors(row.name))
            parts.append(
                f"| `{row.name}` | {row.kind} | {labels} | {row.help} | {row.source} | {row.devices} | {made} |\n"
            )
    return "".join(parts)


FORMATS: dict[str, Callable[[], str]] = {"text": as_text, "markdown": as_markdown, "json": as_json}
