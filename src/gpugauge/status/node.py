"""Status of a node: the answer, the problems, GPUs, the processes that use them, states and causes."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace

from gpugauge.driver.advice import WITHOUT_GPU, known_advice
from gpugauge.driver.advice import words as driver_words
from gpugauge.faults.judged import faults_of
from gpugauge.faults.repair import ANY_SITE, Site
from gpugauge.node.node import Node
from gpugauge.snapshot import Snapshot
from gpugauge.status.answer import answer
from gpugauge.status.gpus import gpus, needed, remembered
from gpugauge.status.history import History
from gpugauge.status.model import DriverStatus, Status
from gpugauge.status.problems import level, problems, with_state
from gpugauge.status.processes import processes_of
from gpugauge.status.use import totals

_HOOK_TROUBLE_SECONDS = 300.0  # a replaced receiver is shown for this long
_MAX_ERROR_CHARACTERS = 200  # the log has the whole error


def build(
    snapshot: Snapshot, history: History, may_have_gpu: Callable[[], bool] = lambda: True, site: Site = ANY_SITE
) -> Status:
    """Return the status. `may_have_gpu` is called if the driver is missing; `site` is the place of the daemon."""
    version, simulated = snapshot.node.build or (None, False)
    processes = processes_of(snapshot.node, history, snapshot.timestamp, site=site)
    without_gpu = [process for process in processes if not process.devices]
    driver = _driver(snapshot.node, history, may_have_gpu)
    faults = faults_of(snapshot)
    of_gpus = gpus(snapshot.node, history, processes, faults, site)
    facts = Status(
        answer="",
        host=socket.gethostname(),
        timestamp=snapshot.timestamp,
        version=version,
        simulated=simulated,
        driver=driver,
        failing_collectors={
            name: " ".join(health.error.split())[:_MAX_ERROR_CHARACTERS]
            for name, health in sorted(snapshot.health.items())
            if not health.success
        },
        hook=_hook(snapshot.node),
        gpus=tuple(gpu if driver.needed else remembered(gpu, site) for gpu in of_gpus),
        # Trainings with the hook come first.
        without_gpu=tuple(sorted((p for p in without_gpu if p.ended is None), key=lambda p: not p.hook)),
        ended=tuple(sorted((p for p in without_gpu if p.ended is not None), key=lambda p: -(p.ended or 0.0))),
    )
    found_problems = problems(facts, site, list(needed(snapshot.node, faults)))
    return replace(
        facts,
        answer=answer(facts, found_problems),
        level=level(found_problems, facts),
        problems=tuple(found_problems),
        totals=totals(facts.gpus),
        gpus=tuple(with_state(gpu, found_problems) for gpu in facts.gpus),
    )


def _driver(node: Node, history: History, may_have_gpu: Callable[[], bool]) -> DriverStatus:
    up, reason, released_until = node.driver.up, node.driver.reason, node.driver.released_until
    # GPUs that answered this daemon were there, those from the state file may have been removed since.
    gone = not up and reason in WITHOUT_GPU and not any(history.last_use(device.uuid) for device in node.shown())
    needed = not gone or may_have_gpu()
    advised = not up and needed and released_until is None
    return DriverStatus(
        up=up,
        reason=reason,
        needed=needed,
        state_words="up" if up else driver_words(reason, needed=needed),
        released_until=released_until,
        advice=known_advice(reason, node.driver.vendor) if advised else None,
    )


def _hook(node: Node) -> str | None:
    """Return a sentence about recent trouble with the hook's socket, None without."""
    replaced_at, bans = (node.hook.replaced_at, node.hook.banned) if node.hook else (None, 0)
    if replaced_at is not None and node.timestamp - replaced_at < _HOOK_TROUBLE_SECONDS:
        return "the process that receives from trainings hung or ended and was replaced: see the log"
    return f"connections of {bans} users are refused for some minutes: see the log" if bans else None
