"""The reference of the metrics, docs/metrics.md: `gpugauge metrics --format markdown`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from gpugauge.catalog import CATALOG
from gpugauge.metric import Metric

_INTRODUCTION = """\
# Metrics

<!-- Generated: make generate -->

Every metric that gpugauge can export, by the collector that makes it (`--no-collector.NAME` leaves one out,
`--metrics.exclude` single metrics). What a GPU or a driver does not support has no series: never NaN, never 0 for
unknown.

Device series carry `uuid`, process series `process`; what describes them (index, name, pid, pod …) is in `gpu_info`,
`gpu_process_info` and `torch_process_info`, to be joined. MIG devices have families of their own: the driver gives no
utilization for a GPU that is divided by MIG, so `gpu_utilization_ratio` is absent there, and
`gpu_mig_sm_active_ratio` tells how busy its parts are.
"""


def entries() -> list[dict[str, Any]]:
    """Return one entry a row: name, type, unit, labels, meaning, source, GPUs, collector."""
    return [_entry(row, collector) for collector, rows in CATALOG.items() for row in rows]


def _entry(row: Metric, collector: str) -> dict[str, Any]:
    return {
        "name": row.name,
        "type": row.kind,
        "unit": row.unit,
        "labels": list(row.labels),
        "help": row.help,
        "source": row.source,
        "devices": row.devices,
        "collector": collector,
    }


def as_json() -> str:
    """Return the catalogue as a JSON list."""
    return json.dumps(entries(), indent=2) + "\n"


def as_text() -> str:
    """Return two lines a metric, for a terminal."""
    lines = []
    for entry in entries():
        labels = "{" + ",".join(entry["labels"]) + "}" if entry["labels"] else ""
        lines.append(f"{entry['name']}{labels}  {entry['type']}, collector {entry['collector']}")
        lines.append("    " + " ".join([entry["help"], *(f"[{entry[k]}]" for k in ("source", "devices") if entry[k])]))
    return "\n".join(lines) + "\n"


def as_markdown() -> str:
    """Return docs/metrics.md."""
    parts = [_INTRODUCTION]
    for collector, rows in CATALOG.items():
        parts.append(
            f"\n## {collector}\n\n| metric | type | labels | meaning | source | GPUs |\n|---|---|---|---|---|---|\n"
        )
        parts.extend(map(_markdown_row, rows))
    return "".join(parts)


def _markdown_row(row: Metric) -> str:
    labels = " ".join(f"`{label}`" for label in row.labels)
    return f"| `{row.name}` | {row.kind} | {labels} | {row.help} | {row.source} | {row.devices} |\n"


FORMATS: dict[str, Callable[[], str]] = {"text": as_text, "markdown": as_markdown, "json": as_json}
