"""The daemon's view of one process: the whole answer, before the checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpugauge.doctor import DEFAULT_URL
from gpugauge.doctor.case import Case, problems_of
from gpugauge.doctor.finding import Finding
from gpugauge.doctor.process import daemon as check_daemon
from gpugauge.doctor.process import not_visible, pid_of
from gpugauge.status.model import Problem, Status, as_json
from gpugauge.status.owner import names
from gpugauge.status.words import SIMULATED, runs
from gpugauge.terminal.columns import Writer
from gpugauge.terminal.process import process_screen
from gpugauge.terminal.rows import Process, problem_words, processes, safe, to_do
from gpugauge.terminal.style import BOLD, RED, YELLOW


@dataclass(frozen=True, slots=True)
class StatusReply:
    """A process in the status of the daemon; without one, what is missing and what to do about it."""

    process: Process | None = None
    status: Status | None = None
    missing: str = ""
    advice: str = ""
    nowhere: bool = False  # neither here nor in what the daemon knows: there is nothing to check

    def plain(self) -> dict[str, Any]:
        """Return the answer ready for JSON."""
        if self.process is None:
            return {"process": None, "missing": self.missing, "advice": self.advice or None}
        uuids = [gpu.uuid for gpu in self.process.gpus]
        return {"process": as_json(self.process.facts), "gpus": uuids, "problems": as_json(self.gpu_problems())}

    def gpu_problems(self) -> list[Problem]:
        """Return the problems of the driver and of the GPUs that the process uses or used last; the gravest first."""
        return problems_of(self.process, self.status) if self.process and self.status else []

    def has(self, finding: Finding) -> bool:
        """Return whether the answer names the problem of a finding, or its cause as the limit of the process."""
        limit = self.process and self.process.facts.limited_by
        return bool(limit and limit == finding.cause) or finding.found in map(problem_words, self.gpu_problems())


def answer(case: Case) -> StatusReply:
    """Return what the daemon says of the examined process. Never raises."""
    status, problem = case.daemon
    absent, daemon = not_visible(case), check_daemon(case)
    # A training with this pid that has ended.
    gone = next(iter(case.known), None) if absent else None
    if process := case.process or gone:
        return StatusReply(process, status)
    unknown = f"{absent}, and {daemon.found if problem else 'the daemon knows of none'}"
    nowhere = bool(absent) and not problem
    if status and (pids := [p.facts.pid for p in processes(status) if str(pid_of(case)) in names(p.facts)]):
        unknown += f"; the job of that name has pid {', '.join(runs(filter(None, pids)))}"
    return StatusReply(missing=unknown if absent else daemon.found, advice=daemon.advice, nowhere=nowhere)


def lines(case: Case, said: StatusReply, width: int, *, colour: bool) -> Iterator[str]:
    """Yield the answer as lines of at most `width` columns."""
    writer = Writer(width, colour=colour)
    if said.status and said.status.simulated:
        yield writer.paint(SIMULATED, YELLOW)
    for problem in said.gpu_problems():
        yield from writer.text(problem_words(problem), "", RED if problem.grave else YELLOW, hanging=2)
        yield from (line for text in to_do(problem) for line in writer.text(text, "     ", hanging=2))
    if said.process is not None and said.status is not None:
        yield from process_screen(said.process, said.status.timestamp, width, colour=colour)
        return
    yield writer.paint(f"Process {pid_of(case)}", BOLD)
    what = "" if said.nowhere else "What it does, where its steps go and what limits it is not known: "
    yield from writer.text(f"{what}{safe(said.missing)}", "  ")
    if said.nowhere:
        at = "" if case.options.url == DEFAULT_URL else f" --url {case.options.url}"
        text = f"→ the programs that it knows: gpugauge status{at}; the machine: gpugauge doctor{at}"
        yield from writer.text(text, "  ", hanging=2)
    elif said.advice:
        yield from writer.text(f"→ {safe(said.advice)}", "     ", hanging=2)
