"""The problems of training processes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby

from gpugauge.status.gpu_problems import clocks_words
from gpugauge.status.owner import job_key, name, owner_words
from gpugauge.status.problem import Entry, problem
from gpugauge.status.use import gpus_words
from gpugauge.status.words import percent, plural

_USED_LOAD = 0.01  # a GPU that is less busy over five minutes is not used


def training_problems(facts: Entry) -> Iterator[Entry]:
    """Yield a problem for each program of an owner and cause; ranks of one training are together."""
    gpus = {gpu["uuid"]: gpu for gpu in facts["gpus"]}
    processes: dict[str, Entry] = {}
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
    group_of = partial(_group, there="a simulated GPU" if facts["simulated"] else "a GPU")
    for (who, text, kind, *_), group in groupby(sorted(failing, key=group_of), key=group_of):
        ranks = list(group)
        held = list(dict.fromkeys(uuid for rank in ranks for uuid in used.get(rank["process"], [])))
        held.sort(key=place.__getitem__)
        yield _problem(who, text, kind, ranks, [gpus[uuid] for uuid in held])


def _problem(who: str, text: str, kind: str, ranks: list[Entry], held: list[Entry]) -> Entry:
    first = ranks[0]
    ratios = [rank["limited_by_ratio"] for rank in ranks if _costs_gpu_time(rank)]
    ratio = sum(ratios) / len(ratios) if ratios else None
    if kind == "waits":
        waits = [rank["data_wait_ratio"] for rank in ranks]
        text = f"{text} {percent(sum(waits) / len(waits))} of its time"
    pid = f"pid {first['pid']}" if first["pid"] is not None else "pid unknown"
    pid += f" and {plural(len(ranks) - 1, 'more process', 'es')}" if len(ranks) > 1 else ""
    lost = f"{percent(ratio)} of its GPU time is lost" if ratio is not None else ""
    clocks = [clocks_words(gpu) for gpu in held if gpu["slowed_by"]] if first["limited_by"] == "throttled" else []
    where = gpus_words(held) if held else ""
    owner = owner_words(first["workload"])
    return problem(
        kind,
        who,
        text,
        first["advice"],
        detail=", ".join(filter(None, (lost, pid, owner, where, *dict.fromkeys(clocks)))),
        gain_words=first["gain_words"],
        gpus=[gpu["uuid"] for gpu in held],
        processes=[rank["process"] for rank in ranks],
        ratio=ratio,
        runbook=first["runbook"],
    )


def _costs_gpu_time(process: Entry) -> bool:
    # Without a GPU in use no GPU time is lost.
    return process["limited_by_ratio"] is not None and process["state"] != "training_on_cpu"


def _group(process: Entry, there: str) -> tuple[str, ...]:
    """Return name, what is wrong, the kind of the problem, and what identifies the job."""
    return (name(process), *_trouble(process, there), *job_key(process["workload"]))


def _trouble(process: Entry, there: str) -> tuple[str, str]:
    """Return what is wrong, and the kind of the problem."""
    state, cause = process["state"], process["limited_by"]
    if state == "training_on_cpu" and not cause:
        return "waits for data", "waits"
    if state == "training_on_cpu":
        reason = f", it {process['limited_by_words']}" if cause != "model_on_cpu" else ""
        return f"trains on the CPU although there is {there}{reason}", "on_cpu"
    text = {"stalled": "is stalled", "held_idle": "holds its GPU and does not use it"}.get(state or "")
    if text and cause not in {None, "unknown", "unused_gpus"}:
        text += f", it {process['limited_by_words']}"
    return text or process["limited_by_words"], "wasted" if process["level"] == "bad" else "slowed"
