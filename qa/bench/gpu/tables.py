"""The tables of the runs on real GPUs, from the raw values in qa/bench/gpu: `python -m qa.bench.gpu.tables`.

It writes qa/bench/results/gpu.json and the documents. The table has every attempt, also those that went wrong.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qa.bench import figures
from qa.bench.report import Report

_FOLDER = Path(__file__).parent
_DAY = "2026-11-27"
_CHECK = f"gpu-check-{_DAY}-580.159.04.json"
_NOTES = (
    "Runs 1 and 2 are of an earlier version of the program: it profiled with CUPTI before the fault was removed, which "
    "slows the host, so that their measured gains are too low where the host limits. They have no kernel time.",
    "Run 2 was before the mend of `transfer`, whose constant was chosen from it; run 3 was after it.",
    "`held`: `held_idle`, `unused_gpus` was in the next scrape, 22 s after the program began. `no_visible_device`: the "
    "program of the bench had an error. `memory_pressure` and `underfilled` prove nothing: the trainings were not "
    "faster without what was planted. A kernel time above 100 % is of other steps than the rate.",
)
_HOOK_NOTE = (
    "Blocks of steps with and without the functions of the hook, alternating; 12 "
    "pairs on the H100, 40 to 60 on the H200. Spread is the median distance of the differences from their median: only "
    "the first row of the H200 differs from 0 by more than it."
)


def row(found: dict[str, Any], gpu: str) -> dict[str, object]:
    """Return the row of a training in the table."""
    shown, busy = found["shown"], found.get("busy")
    cause, gain = shown.get("cause"), found.get("speedup")
    expected = shown.get("gain", {}).get(cause)
    bounds = f"{shown['lower'][cause]:.2f} to {shown['upper'][cause]:.2f}" if expected else ""
    if isinstance(busy, list):  # of the earlier program: without the time of the kernels alone
        busy = {"counter": busy[0]["counter"]} if busy and found["run"] == 2 else {}
    known = {name: (busy or {}).get(name) for name in ("counter", "kernels")}
    shares = {name: "" if value is None else f"{value:.1%}" for name, value in known.items()}
    return {
        "planted": f"`{found['name']}`",
        **({"run": found["run"]} if "run" in found else {}),
        "GPU": gpu,
        "stated": ", ".join(f"`{word}`" for word in (shown.get("state"), cause) if word),
        "lost to it": f"{shown['lost'][cause]:.0%}" if cause else "",
        "expected gain": f"{expected:.2f} ({bounds})" if expected else "",
        "measured gain": "" if gain is None else f"{gain:.2f}",
        "busy by the counter": shares["counter"],
        "kernels by CUPTI": shares["kernels"],
    }


def hook_rows() -> list[dict[str, object]]:
    """Return the rows of the cost of the hook."""
    return [
        {"step": f"{cost['without'] / 1000:.2f} ms", "GPU": one["card"]}
        | {f"{name}, µs": f"{cost[name]:.0f}" for name in ("without", "with", "added", "spread")}
        for one in _raw(f"hookcheck-{_DAY}.json")
        for cost in one["printed"].values()
    ]


def _raw(name: str) -> Any:
    return json.loads((_FOLDER / name).read_text())


def main() -> None:
    """Write the result, and its tables and figures into the documents."""
    check, hook = _raw(_CHECK), _raw(f"hookcheck-{_DAY}.json")
    (samples,) = [gpu["samples"] for gpu in check["gpus"]]
    stated = {
        "samples": str(samples["samples"]),
        "period": f"{samples['period_seconds']:.2f}",
        "behind": f"{samples['behind_seconds']:.2f}",
        "true": f"{check['load']['true_seconds']:.2f}",
        "busy": f"{check['load']['busy_seconds']:.2f}",
        "record": f"{max(one['us']['event record'] for one in hook):.1f}",
        "query": f"{max(one['us']['event query'] for one in hook):.1f}",
    }
    planted = [row(found, found["card"]) for found in _raw(f"planted-{_DAY}.json")]
    command = "python -m qa.bench.gpu.tables"
    made = Report("Planted faults on a GPU", planted, command, _NOTES, "planted", stated)
    facts = {"date": _DAY, "processor": "not recorded", "cores": 16, "python": "3.12.3", "torch": "2.11.0+cu130"}
    facts |= {"kernel": "6.18.44", "load average before": 0.2, "stolen by other machines": "not recorded"}
    figures.keep("gpu", [made, Report("The hook on a GPU", hook_rows(), command, (_HOOK_NOTE,), "hook")], facts)


if __name__ == "__main__":
    main()
