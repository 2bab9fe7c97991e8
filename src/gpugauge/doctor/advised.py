"""The advice on a cause of a process, from the daemon's metrics: the same as on its other views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpugauge.doctor.case import Case
from gpugauge.doctor.daemon import Daemon
from gpugauge.status.advice import Labels, Subject, advice_of


@dataclass(frozen=True, slots=True)
class _Scraped:
    daemon: Daemon

    def rows(self, name: str, process: str) -> Sequence[tuple[Labels, float]]:
        return list(self.daemon.rows(name, **({"process": process} if process else {})))


def advice_on(case: Case, process: str, cause: str) -> str:
    """Return what to change about a cause: as if it were the main one, where the daemon names none."""
    scraped = _Scraped(case.daemon)
    loader = next((labels for labels, _ in scraped.rows("torch_loader_info", process)), {})
    used = (scraped.rows(f"gpu_process_{name}", process) for name in ("memory_used_bytes", "busy_seconds_total"))
    ranks = next((labels.get("world_size", "") for labels, _ in scraped.rows("torch_process_info", process)), "")
    facts = {
        "state": case.daemon.current("training_state", "state", process),
        "limited_by": cause,
        "loader": loader,
        "hook": True,
        "devices": list(dict.fromkeys(labels["uuid"] for rows in used for labels, _ in rows)),
        "world_size": int(ranks) if ranks.isdecimal() else None,
    }
    return next((a.change for a in advice_of(Subject(process, scraped, facts)) if a.cause == cause), "")
