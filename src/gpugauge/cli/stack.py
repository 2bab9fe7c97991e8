"""`gpugauge stack`: where the ranks of a training are that makes no progress."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from gpugauge.cli.common import fail, url_option
from gpugauge.cli.status import fetch
from gpugauge.status.model import ProcessStatus
from gpugauge.status.owner import job_key, name
from gpugauge.status.standstill import roll_call, stack_lines
from gpugauge.status.words import duration
from gpugauge.terminal.rows import processes, safe
from gpugauge.web.client import RequestError


@click.command("stack")
@click.argument("subject", metavar="PID|JOB")
@url_option
def command(subject: str, url: str) -> None:
    """Show where a training is that makes no progress.

    The subject is the process id of a rank, or the job as `gpugauge status` names it. Prints a roll call of the ranks
    of the job on this node, and the last stack of each that has made no step, taken no batch and changed no phase for
    10 s. Only ranks of distributed trainings with the hook answer. Exits with 1 if nothing stands still, with 2 without
    an answer of the daemon or such a process.
    """
    try:
        status = fetch(url).status
    except RequestError as error:
        fail(2, error)
    found = [process.facts for process in processes(status) if process.facts.ended is None]
    chosen = [p for p in found if subject in _names(p)]
    if not chosen:
        fail(2, f"the daemon knows of no process or job {subject}")
    jobs = {job_key(process.workload) for process in chosen}
    ranks = [p for p in found if p in chosen or (any(job_key(p.workload)) and job_key(p.workload) in jobs)]
    shown = chosen if subject.isdecimal() and str(chosen[0].pid) == subject else ranks
    if not any(process.standstill for process in ranks):
        fail(1, f"no rank of {subject} stands still, or none of them answers (distributed trainings with the hook do)")
    for line in _lines(ranks, shown, status.timestamp):
        click.echo(safe(line))


def _names(process: ProcessStatus) -> set[str]:
    """Return what a user may call a process, or its job."""
    known = (process.workload.get(key) for key in ("job", "job_id", "run_id"))
    return {str(process.pid), *(value for value in known if value)}


def _lines(ranks: Sequence[ProcessStatus], shown: Sequence[ProcessStatus], now: float) -> Iterator[str]:
    yield from roll_call(ranks)
    for process in sorted(shown, key=lambda process: process.rank or 0):
        if process.standstill:
            still = duration(max(0.0, now - process.standstill.since))
            yield ""
            yield f"rank {process.rank}, {name(process)}, pid {process.pid}: no progress for {still}"
            yield from stack_lines(process.standstill)
