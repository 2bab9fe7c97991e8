"""The problems of a node, the gravest first, each with what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from itertools import groupby

from gpugauge.status.details import last_use
from gpugauge.status.down import down_phrase
from gpugauge.status.owner import name, owner
from gpugauge.status.processes import Facts
from gpugauge.status.runbook import section_of_kind
from gpugauge.status.words import percent, plural

# Kinds of problems in the order in which they are shown.
KINDS = (
    *("driver", "no_gpu", "gpu_down", "gpu_health", "xid", "wasted", "on_cpu", "slowed", "gpu_slowed", "unused"),
    *("collector", "hook"),
)
_GRAVE = frozenset({"driver", "no_gpu", "gpu_down", "wasted", "on_cpu"})
_USED_LOAD = 0.01  # a GPU that is less busy over five minutes is not used


def problems(facts: Facts) -> list[Facts]:
    """Return the problems of a node, the gravest first; docs/http.md has their fields."""
    found = [*_driver(facts), *_exporter(facts), *_devices(facts["gpus"]), *_trainings(facts)]
    return sorted(found, key=_order)


def _order(problem: Facts) -> tuple[float, ...]:
    """Of a kind, those with most GPUs and the largest share are first."""
    kind, ratio = KINDS.index(problem["kind"]), problem["ratio"]
    return kind, not problem["grave"], -len(problem["gpus"]), -(1.0 if ratio is None else ratio)


def _problem(kind: str, subject: str, text: str, advice: str | None = None, **more: object) -> Facts:
    grave = kind in _GRAVE
    empty: Facts = {"detail": None, "gpus": [], "processes": [], "ratio": None, "runbook": section_of_kind(kind)}
    return {"kind": kind, "grave": grave, "subject": subject, "text": text, "advice": advice, **empty, **more}


def _driver(facts: Facts) -> Iterator[Facts]:
    driver = facts["driver"]
    if not driver["up"] and driver["reason"] not in {"off", "released", "starting"}:
        yield _problem("driver", "Driver", f"not available: {driver['reason']}", driver.get("advice"))
    if driver["up"] and not facts["gpus"]:
        advice = "check driver.devices, and the device request of the container"
        yield _problem("no_gpu", "Driver", "it lists no GPU, or the settings exclude all", advice)


def _exporter(facts: Facts) -> Iterator[Facts]:
    for collector, error in facts["failing_collectors"].items():
        yield _problem("collector", f"Collector {collector}", f"fails: {error}" if error else "fails")
    if facts["hook"]:
        yield _problem("hook", "Hook", facts["hook"])


def _devices(gpus: Sequence[Facts]) -> Iterator[Facts]:
    for gpu in gpus:
        subject, uuids = gpus_words([gpu]), [gpu["uuid"]]
        if not gpu["up"]:
            used = last_use(gpu) or None
            yield _problem("gpu_down", subject, down_phrase(gpu["down_reason"]), gpu["advice"], detail=used, gpus=uuids)
        for ailment in gpu["health"]:
            more = {"grave": ailment["grave"], "runbook": ailment["runbook"]}
            yield _problem("gpu_health", subject, ailment["text"], ailment["advice"], gpus=uuids, **more)
        for xid in gpu["xids"]:
            if xid["advice"]:
                at = datetime.fromtimestamp(xid["last"], timezone.utc)
                text = f"{xid['text']}, at {at:%H:%M:%S} UTC"
                yield _problem("xid", subject, text, xid["advice"], gpus=uuids, runbook=xid["runbook"])
        if gpu["slowed_by"]:
            advice = "check cooling and power supply (gpu_clocks_event_seconds_total)"
            yield _problem("gpu_slowed", subject, f"clocks lowered: {', '.join(gpu['slowed_by'])}", advice, gpus=uuids)
        for device in (gpu, *gpu["mig"]):
            if gpu["up"] and device["allocated_to"] and not in_use(gpu):
                holders = ", ".join(filter(None, map(owner, device["allocated_to"])))
                where = subject if device is gpu else f"{subject}, MIG {device['profile'] or device['uuid']}"
                text = f"allocated to {holders or 'a workload'}, but no process uses it"
                yield _problem("unused", where, text, gpus=uuids)


def _trainings(facts: Facts) -> Iterator[Facts]:
    """Yield a problem for each program and cause; ranks of one training are together."""
    gpus = {gpu["uuid"]: gpu for gpu in facts["gpus"]}
    processes: dict[str, Facts] = {}
    used: dict[str, list[str]] = {}
    for gpu in facts["gpus"]:
        # The processes of a GPU that is down may still run, stalled.
        for process in gpu["processes"] + [p for p in gpu.get("last_processes", ()) if p["alive"]]:
            processes[process["process"]] = process
            load = process.get("load_5m")
            if process["limited_by"] != "unused_gpus" or load is None or load < _USED_LOAD:
                used.setdefault(process["process"], []).append(gpu["uuid"])
    processes |= {process["process"]: process for process in facts["without_gpu"]}
    place = {uuid: number for number, uuid in enumerate(gpus)}
    failing = [process for process in processes.values() if process["level"] in {"bad", "poor"}]
    for (who, text, kind), group in groupby(sorted(failing, key=_group), key=_group):
        ranks = list(group)
        held = list(dict.fromkeys(uuid for rank in ranks for uuid in used.get(rank["process"], [])))
        held.sort(key=place.__getitem__)
        ratios = [rank["limited_by_ratio"] for rank in ranks if _costs_gpu_time(rank)]
        ratio = sum(ratios) / len(ratios) if ratios else None
        pids = [f"pid {ranks[0]['pid']}" if ranks[0]["pid"] is not None else "pid unknown"]
        pids += [f"and {plural(len(ranks) - 1, 'more process', 'es')}"] if len(ranks) > 1 else []
        lost = f"{percent(ratio)} of its GPU time is lost" if ratio is not None else ""
        where = gpus_words([gpus[uuid] for uuid in held]) if held else ""
        labels = [rank["process"] for rank in ranks]
        detail = ", ".join(filter(None, (lost, " ".join(pids), where)))
        more = {"processes": labels, "ratio": ratio, "runbook": ranks[0]["runbook"]}
        yield _problem(kind, who, text, ranks[0]["advice"], detail=detail, gpus=held, **more)


def _costs_gpu_time(process: Facts) -> bool:
    # Without a GPU in use no GPU time is lost.
    return process["limited_by_ratio"] is not None and process["state"] != "training_on_cpu"


def _group(process: Facts) -> tuple[str, str, str]:
    """Return name, what is wrong, and the kind of the problem."""
    state = process["state"]
    if state == "training_on_cpu":
        cause = process["limited_by"]
        reason = f": it {process['limited_by_words']}" if cause and cause != "model_on_cpu" else ""
        return name(process), f"trains on the CPU although there is a GPU{reason}", "on_cpu"
    text = {"stalled": "is stalled", "held_idle": "holds its GPU and does not use it"}.get(state or "")
    if text and process["limited_by"] not in {None, "unknown", "unused_gpus"}:
        text += f": it {process['limited_by_words']}"
    return name(process), text or process["limited_by_words"], "wasted" if process["level"] == "bad" else "slowed"


def in_use(gpu: Facts) -> bool:
    """Return whether a program other than that of a display uses a GPU."""
    return bool(gpu["processes_hidden"]) or any(process["role"] != "display" for process in gpu["processes"])


def used_well(gpu: Facts) -> bool:
    """Return whether a process works on a GPU that loses less than half of its time: then the GPU is not wasted,
    whatever the others do.
    """
    return any(process["level"] in {"good", "poor"} for process in gpu["processes"])


def gpus_words(gpus: Sequence[Facts]) -> str:
    """Return "GPU 3", or "GPUs 0-2, 5"; GPUs without an index by uuid."""
    numbers = sorted(gpu["index"] for gpu in gpus if gpu["index"] is not None)
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    words = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    words += [gpu["uuid"] for gpu in gpus if gpu["index"] is None]
    return ("GPU " if len(gpus) == 1 else "GPUs ") + ", ".join(words)
