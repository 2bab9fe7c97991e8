"""The daemon's view of one process: the whole answer, before the checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urljoin

from gpugauge.doctor import reported
from gpugauge.doctor.case import Case
from gpugauge.doctor.process import not_visible, pid_of, process_label
from gpugauge.terminal import reply
from gpugauge.terminal.columns import wrap
from gpugauge.terminal.process import process_screen
from gpugauge.terminal.screen import Process, processes
from gpugauge.terminal.style import BOLD, RED, YELLOW, painter
from gpugauge.terminal.values import safe
from gpugauge.web.client import RequestError, request

_PATH = "api/v1/status"  # relative to the address of the metrics
# Kinds of problems because of which no program on the GPU works, or works as well as it could.
_OF_GPU = frozenset({"driver", "gpu_down", "gpu_health", "xid", "gpu_slowed", "narrow_link"})
_TIMEOUT_SECONDS = 5.0
_MAX_BODY_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class StatusReply:
    """A process in the status of the daemon; without one, what is missing and what to do about it."""

    process: Process | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    missing: str = ""
    advice: str = ""

    def plain(self) -> dict[str, Any]:
        """Return the answer ready for JSON."""
        if self.process is None:
            return {"process": None, "missing": self.missing, "advice": self.advice or None}
        uuids = [gpu["uuid"] for gpu in self.process.gpus]
        return {"process": self.process.facts, "gpus": uuids, "problems": self.gpu_problems()}

    def gpu_problems(self) -> list[dict[str, Any]]:
        """Return the problems of the driver and of the GPUs that the process uses or has used, the gravest first."""
        if self.process is None:
            return []
        uuids = {gpu["uuid"] for gpu in (*self.process.gpus, *self._lost())}
        return [
            problem
            for problem in self.facts.get("problems") or ()
            if problem["kind"] in _OF_GPU and (uuids.intersection(problem["gpus"]) or problem["kind"] == "driver")
        ]

    def _lost(self) -> Iterator[Mapping[str, Any]]:
        """Yield the GPUs that are down and that the process used when they answered last."""
        label = self.process.facts["process"] if self.process else None
        for gpu in self.facts["gpus"]:
            if any(process["process"] == label for process in gpu.get("last_processes") or ()):
                yield gpu

    def explains(self, cause: str | None) -> bool:
        """Return whether the answer names a cause as the limit of the process."""
        return self.process is not None and cause is not None and self.process.facts.get("limited_by") == cause


def answer(case: Case) -> StatusReply:
    """Return what the daemon says of the examined process. Never raises."""
    known = reported.daemon(case)
    label = process_label(case)
    absent = not_visible(case)
    unknown = f"{absent}, and {known.found if case.daemon.problem else 'the daemon knows of none'}"
    missing = StatusReply(missing=unknown if absent else known.found, advice=known.advice)
    if label is None and (case.daemon.problem or not absent):
        return missing
    try:
        url = urljoin(case.options.url, _PATH)
        facts = reply.read(request(url, timeout_seconds=_TIMEOUT_SECONDS, max_bytes=_MAX_BODY_BYTES)) or {}
        problem = "" if facts else f"{url} does not answer as gpugauge does"
    except RequestError as error:
        facts, problem = {}, str(error)
    if label is None:
        # The last process with this pid, if it was a training that has ended.
        gone = next((p for p in processes(facts) if p.facts["pid"] == pid_of(case)), None) if facts else None
        return StatusReply(gone, facts) if gone else missing
    found = (
        next((process for process in processes(facts) if process.facts["process"] == label), None) if facts else None
    )
    if found is None:
        return StatusReply(missing=problem or "the daemon does not report it any more")
    return StatusReply(found, facts)


def lines(case: Case, said: StatusReply, width: int, *, colour: bool) -> Iterator[str]:
    """Yield the answer as lines of at most `width` columns."""
    paint = painter(colour)
    if said.facts.get("simulated"):
        yield paint("SIMULATED: these GPUs do not exist.", YELLOW)
    for problem in said.gpu_problems():
        detail = f" ({safe(problem['detail'])})" if problem["detail"] else ""
        style = RED if problem["grave"] else YELLOW
        for line in wrap(f"{safe(problem['subject'])}: {safe(problem['text'])}{detail}", width, "", "  "):
            yield paint(line, style)
        if problem["advice"]:
            yield from wrap(f"→ {safe(problem['advice'])}", width, "     ", "       ")
    if said.process is not None:
        yield from process_screen(said.process, said.facts["timestamp"], width, colour=colour)
        return
    yield paint(f"Process {pid_of(case)}", BOLD)
    text = f"What it does, where its steps go and what limits it is not known: {safe(said.missing)}"
    yield from wrap(text, width, "  ")
    if said.advice:
        yield from wrap(f"→ {safe(said.advice)}", width, "     ", "       ")
