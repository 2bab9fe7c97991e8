"""Status of a node as plain data: the answer, the problems, GPUs, the processes that use them, states and causes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

from gpugauge.driver.advice import ADVICE, WITHOUT_GPU
from gpugauge.driver.advice import words as driver_words
from gpugauge.faults.judged import faults_of
from gpugauge.snapshot import Snapshot
from gpugauge.status.answer import answer
from gpugauge.status.gpus import gpus, mark_remembered
from gpugauge.status.history import History, by_labels, by_name
from gpugauge.status.problems import gpu_state, level, problems
from gpugauge.status.processes import Entry, Families, processes_of, rows
from gpugauge.status.use import totals

_HOOK_TROUBLE_SECONDS = 300.0  # a replaced receiver is shown for this long
_MAX_ERROR_CHARACTERS = 200  # the log has the whole error


def status(snapshot: Snapshot, history: History, may_have_gpu: Callable[[], bool] = lambda: True) -> Entry:
    """Return the status, ready for JSON. Unknown values are None or absent, never 0. `may_have_gpu` returns whether the
    machine may have a GPU; it is called only if the driver is missing.
    """
    found = by_name(snapshot)
    build = rows(found.get("gpugauge_build_info"))
    processes = processes_of(found, history, snapshot.timestamp)
    without_gpu = [p for p in processes if not p["devices"]]
    facts: Entry = {
        "host": socket.gethostname(),
        "timestamp": snapshot.timestamp,
        "version": build[0].get("version") if build else None,
        "simulated": bool(build) and build[0].get("simulated") == "true",
        "driver": _driver(found, history, may_have_gpu),
        "failing_collectors": _failing(snapshot),
        "hook": _hook(found, snapshot.timestamp),
        "gpus": gpus(found, history, processes, faults_of(snapshot), snapshot.timestamp),
        # Trainings with the hook come first.
        "without_gpu": sorted((p for p in without_gpu if p["ended"] is None), key=lambda p: not p["hook"]),
        "ended": sorted((p for p in without_gpu if p["ended"] is not None), key=lambda p: -p["ended"]),
    }
    if not facts["driver"]["needed"]:
        mark_remembered(facts["gpus"])
    found_problems = problems(facts)
    for gpu in facts["gpus"]:
        gpu.update(gpu_state(gpu, found_problems))
    return {
        "answer": answer(facts, found_problems),
        "level": level(found_problems, facts),
        "problems": found_problems,
        "totals": totals(facts["gpus"]),
        **facts,
    }


def _driver(found: Families, history: History, may_have_gpu: Callable[[], bool]) -> Entry:
    released = by_labels(found.get("gpugauge_driver_released_until_timestamp_seconds"))
    known = {reason: bool(up) for (reason,), up in by_labels(found.get("gpugauge_driver_up"), "reason").items()}
    reason, up = next(iter(known.items()), ("unknown", False))
    # GPUs that answered this daemon were there, those from the state file may have been removed since.
    gone = not up and reason in WITHOUT_GPU
    gone = gone and not any(history.last_use(uuid) for (uuid,) in by_labels(found.get("gpu_up"), "uuid"))
    needed = not gone or may_have_gpu()
    facts: Entry = {"up": up, "reason": reason, "needed": needed}
    facts["state_words"] = "up" if up else driver_words(reason, needed=needed)
    if released:
        return facts | {"released_until": released[()]}
    return facts | ({"advice": ADVICE[reason]} if known and not up and needed and reason in ADVICE else {})


def _hook(found: Families, now: float) -> str | None:
    """Return a sentence about recent trouble with the hook's socket, None without."""
    (replaced_at,) = by_labels(found.get("gpugauge_hook_receiver_replaced_timestamp_seconds")).values() or (None,)
    if replaced_at is not None and now - replaced_at < _HOOK_TROUBLE_SECONDS:
        return "the process that receives from trainings hung or ended and was replaced: see the log"
    (bans,) = by_labels(found.get("gpugauge_hook_bans")).values() or (0.0,)
    return f"connections of {bans:.0f} users are refused for some minutes: see the log" if bans else None


def _failing(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the errors of the failing collectors, by collector."""
    return {
        name: " ".join(health.error.split())[:_MAX_ERROR_CHARACTERS]
        for name, health in sorted(snapshot.health.items())
        if not health.success
    }
