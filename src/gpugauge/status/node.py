"""Status of a node as plain data: the answer, the problems, GPUs, the processes that use them, states and causes."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from gpugauge.snapshot import Snapshot
from gpugauge.status.answer import answer
from gpugauge.status.driver_advice import ADVICE
from gpugauge.status.gpu_state import gpu_state
from gpugauge.status.gpus import gpus
from gpugauge.status.history import History, by_labels, by_name
from gpugauge.status.problems import problems
from gpugauge.status.processes import Facts, Families, processes_of, rows
from gpugauge.status.totals import totals

_HOOK_TROUBLE_SECONDS = 300.0  # a replaced receiver is shown for this long
_MAX_ERROR_CHARACTERS = 200  # the log has the whole error


def status(snapshot: Snapshot, history: History) -> Facts:
    """Return the status, ready for JSON. Unknown values are None or absent, never 0."""
    found = by_name(snapshot)
    build = rows(found.get("gpugauge_build_info"))
    alive = processes_of(found, history)
    facts: Facts = {
        "host": socket.gethostname(),
        "timestamp": snapshot.timestamp,
        "version": build[0].get("version") if build else None,
        "simulated": bool(build) and build[0].get("simulated") == "true",
        "driver": _driver(found),
        "failing_collectors": _failing(snapshot),
        "hook": _hook(found, snapshot.timestamp),
        "gpus": gpus(found, history, alive, snapshot.timestamp),
        "without_gpu": [p for p in alive if not p["devices"]],
    }
    found_problems = problems(facts)
    for gpu in facts["gpus"]:
        gpu.update(gpu_state(gpu, found_problems))
    return {
        "answer": answer(facts, found_problems),
        "problems": found_problems,
        "totals": totals(facts["gpus"]),
        **facts,
    }


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


def _failing(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the errors of the failing collectors, by collector."""
    return {
        name: " ".join(health.error.split())[:_MAX_ERROR_CHARACTERS]
        for name, health in sorted(snapshot.health.items())
        if not health.success
    }
