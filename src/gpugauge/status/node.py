"""Status of a node as plain data: GPUs, the processes that use them, their states and causes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpugauge.metric import Family
from gpugauge.snapshot import Snapshot
from gpugauge.status.driver_advice import ADVICE
from gpugauge.status.history import History, by_labels, by_name

_LOAD_WINDOW_SECONDS = 300.0
# Fields of a GPU that hold one number, and their families.
_FIGURES = {
    "load": "gpu_utilization_ratio",
    "memory_used_bytes": "gpu_memory_used_bytes",
    "memory_total_bytes": "gpu_memory_total_bytes",
    "power_watts": "gpu_power_watts",
    "power_limit_watts": "gpu_power_limit_watts",
}
_WORKLOAD_PREFIX = "workload_"
_HOOK_TROUBLE_SECONDS = 300.0  # a replaced receiver is shown for this long
_MAX_ERROR_CHARACTERS = 200  # the log has the whole error

Families = Mapping[str, Family]
Facts = dict[str, Any]


def status(snapshot: Snapshot, history: History) -> Facts:
    """Return the status, ready for JSON. Unknown values are None or absent, never 0."""
    found = by_name(snapshot)
    build = _facts(found.get("gpugauge_build_info"))
    processes = _processes(found, history)
    return {
        "timestamp": snapshot.timestamp,
        "version": build[0].get("version") if build else None,
        "simulated": bool(build) and build[0].get("simulated") == "true",
        "driver": _driver(found),
        "failing_collectors": _failing(snapshot),
        "hook": _hook(found, snapshot.timestamp),
        "gpus": _gpus(found, history, processes),
        "without_gpu": [p for p in processes if not p["devices"]],
    }


def _facts(family: Family | None) -> list[dict[str, str]]:
    """Return the labels of each sample of an info family, without empty ones."""
    if family is None:
        return []
    return [{k: v for k, v in zip(family.metric.labels, values, strict=True) if v} for values, _ in family.samples]


def _driver(found: Families) -> Facts:
    released = by_labels(found.get("gpugauge_driver_released_until_timestamp_seconds"))
    for (reason,), up in by_labels(found.get("gpugauge_driver_up"), "reason").items():
        advice = {"advice": ADVICE[reason]} if not up and reason in ADVICE else {}
        return {"up": bool(up), "reason": reason} | ({"released_until": released[()]} if released else advice)
    return {"up": False, "reason": "unknown"}


def _hook(found: Families, now: float) -> str | None:
    """Return a sentence about recent trouble with the hook's socket, None without."""
    (replaced_at,) = by_labels(found.get("gpugauge_hook_receiver_replaced_timestamp_seconds")).values() or (None,)
    if replaced_at is not None and now - replaced_at < _HOOK_TROUBLE_SECONDS:
        return "the process that receives from trainings hung or ended and was replaced: see the log"
    (bans,) = by_labels(found.get("gpugauge_hook_bans")).values() or (0.0,)
    return f"connections of {bans:.0f} users are refused for some minutes: see the log" if bans else None


def _failing(snapshot: Snapshot) -> dict[str, str]:
    """Return the errors of the failing collectors, by collector."""
    return {
        name: " ".join(health.error.split())[:_MAX_ERROR_CHARACTERS]
        for name, health in sorted(snapshot.health.items())
        if not health.success
    }


def _gpus(found: Families, history: History, processes: list[Facts]) -> list[Facts]:
    identity = {facts["uuid"]: facts for facts in _facts(found.get("gpu_info"))}
    figures = {name: by_labels(found.get(metric), "uuid") for name, metric in _FIGURES.items()}
    temperatures = by_labels(found.get("gpu_temperature_celsius"), "uuid", "sensor")
    states = _current(found.get("gpu_allocation_state"), "uuid")
    hidden = by_labels(found.get("gpu_process_hidden"), "uuid")
    holders: dict[str, list[Facts]] = {}
    for facts in _facts(found.get("gpu_allocation_info")):
        holders.setdefault(facts["uuid"], []).append(_workload(facts))
    gpus = []
    down = {labels[0]: labels[1] for labels in by_labels(found.get("gpu_down_reason"), "uuid", "reason")}
    for (uuid,), up in by_labels(found.get("gpu_up"), "uuid").items():
        index = identity.get(uuid, {}).get("index", "")
        gpus.append(
            {
                "index": int(index) if index.isdigit() else None,
                "uuid": uuid,
                "name": identity.get(uuid, {}).get("name"),
                "pci_bus_id": identity.get(uuid, {}).get("pci_bus_id"),
                "up": bool(up),
                "down_reason": down.get(uuid),
                **{name: values.get((uuid,)) for name, values in figures.items()},
                "load_5m": history.load(uuid, _LOAD_WINDOW_SECONDS),
                "load_10m": [[round(ago, 1), _rounded(share)] for ago, share in history.loads(uuid)],
                "temperature_celsius": temperatures.get((uuid, "gpu")),
                "allocation": states.get(uuid),
                "allocated_to": holders.get(uuid, []),
                "processes": [_on_device(p, uuid) for p in processes if uuid in p["devices"]],
                "processes_hidden": int(hidden.get((uuid,), 0)),
            }
        )
    return sorted(gpus, key=lambda gpu: (gpu["index"] is None, gpu["index"], gpu["uuid"]))


def _processes(found: Families, history: History) -> list[Facts]:
    """Return the processes that the driver, the host or the hook reports and that are alive."""
    memory = by_labels(found.get("gpu_process_memory_used_bytes"), "process", "uuid")
    busy = by_labels(found.get("gpu_process_busy_seconds_total"), "process", "uuid")
    started = by_labels(found.get("gpu_process_start_timestamp_seconds"), "process")
    ended = by_labels(found.get("training_end_timestamp_seconds"), "process")
    states, causes = (_current(found.get(name), "process") for name in ("training_state", "training_limited_by"))
    shares = by_labels(found.get("training_limited_by_ratio"), "process", "cause")
    steps: dict[str, dict[str, float]] = {}
    for (process, part), share in by_labels(found.get("training_step_share_ratio"), "process", "part").items():
        steps.setdefault(process, {})[part] = round(share, 3)
    undecidable = {f["process"]: f.get("undecidable", "") for f in _facts(found.get("training_verdict_info"))}
    known: dict[str, dict[str, str]] = {}
    for name in ("torch_process_info", "gpu_process_host_info", "gpu_process_info"):
        for facts in _facts(found.get(name)):
            known[facts["process"]] = known.get(facts["process"], {}) | facts
    alive = {process for process, _ in memory} | {f["process"] for f in _facts(found.get("gpu_process_host_info"))}
    alive |= {f["process"] for f in _facts(found.get("torch_process_info")) if (f["process"],) not in ended}
    devices: dict[str, dict[str, Facts]] = {}
    for process, uuid in dict.fromkeys((*memory, *busy)):
        use = {
            "memory_used_bytes": memory.get((process, uuid)),
            "load_5m": history.process_load(process, uuid, _LOAD_WINDOW_SECONDS),
        }
        if process in alive:
            devices.setdefault(process, {})[uuid] = use
    return [
        {
            "process": process,
            "pid": int(facts["pid"]) if facts.get("pid", "").isdigit() else None,
            "kind": facts.get("kind"),
            "command": facts.get("workload_command") or facts.get("command"),
            "workload": _workload(facts),
            "torch_build": facts.get("torch_build"),
            "started": started.get((process,)),
            "state": states.get(process),
            "limited_by": causes.get(process),
            "limited_by_ratio": shares.get((process, causes.get(process, ""))),
            "undecidable": list(filter(None, undecidable.get(process, "").split(","))),
            "step_shares": steps.get(process, {}),
            "devices": devices.get(process, {}),
        }
        for process, facts in known.items()
        if process in alive
    ]


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 3)


def _on_device(process: Facts, uuid: str) -> Facts:
    """Return a process with its use of one GPU."""
    return {**{key: value for key, value in process.items() if key != "devices"}, **process["devices"][uuid]}


def _workload(facts: Mapping[str, str]) -> dict[str, str]:
    return {
        key.removeprefix(_WORKLOAD_PREFIX): value for key, value in facts.items() if key.startswith(_WORKLOAD_PREFIX)
    }


def _current(family: Family | None, subject: str) -> dict[str, str]:
    """Return the state whose sample is 1, by subject. The states are the values of the family's other label."""
    if family is None:
        return {}
    other = next(label for label in family.metric.labels if label != subject)
    return {labels[0]: labels[1] for labels, value in by_labels(family, subject, other).items() if value == 1}
