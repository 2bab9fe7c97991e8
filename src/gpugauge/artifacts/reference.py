"""The reference of the metrics, docs/metrics.md: `gpugauge metrics --format markdown`."""

from __future__ import annotations

import json
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from gpugauge.catalog import CATALOG
from gpugauge.driver.vendors import VENDORS

_INTRODUCTION = """\
# Metrics

<!-- Generated: make generate -->

Every metric that gpugauge can export, by collector. `--no-collector.NAME` disables a collector, `--metrics.exclude`
drops single metrics. A value that the GPU or the driver does not support has no series. It is never exported as NaN or
as 0.

Device series carry the label `uuid`, process series the label `process`. The describing labels (index, name, pid,
pod …) are in `gpu_info`, `gpu_process_info` and `torch_process_info`, for joins. MIG devices have metrics of their own,
because the driver returns no utilization for a GPU in MIG mode. For such a GPU `gpu_utilization_ratio` is absent;
`gpu_mig_sm_active_ratio` reports the activity of its instances.

The label `workload_job_source` says whose word a job is: the kernel's, the cluster's, or that of the process
([attribution.md](attribution.md#whose-word-a-job-is)). A job that a process can name itself has the user in its name.
"""


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
    parts = [_INTRODUCTION]
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
