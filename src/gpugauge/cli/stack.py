"""`gpugauge stack`: where the ranks of a training are that makes no progress."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from gpugauge.cli.common import fail, url_option
from gpugauge.cli.status import fetch
from gpugauge.report.model import JobId
from gpugauge.status.model import ProcessStatus
from gpugauge.status.owner import job_key, name, names, owner_words
from gpugauge.status.standstill import roll_call, stack_lines
from gpugauge.status.words import duration
from gpugauge.terminal.rows import processes, safe
from gpugauge.web.client import RequestError


@click.command("stack")
@click.argument("subject", metavar="PID|JOB")
@url_option
def command(subject: str, url: str) -> None:
    """Show where a training is that makes no progress.

    The subject is the process id of a rank, or the job as alerts and views name it. Prints a roll call of the ranks
    of the job on this node, and the last stack of each that has made no step, taken no batch and changed no phase for
    10 s. Only ranks of distributed trainings with the hook answer. Exits with 1 if nothing stands still, with 2 without
    an answer of the daemon or such a process.
    """
    try:
        status = fetch(url).status
    except RequestError as error:
        fail(2, error)
    every = [process.facts for process in processes(status)]
    found = [process for process in every if process.ended is None or process.standstill]
    of_job = ("job_kind", "namespace", "job")
    in_full = [p for p in found if JobId(*(p.workload.get(key, "") for key in of_job)).text == subject]
    chosen = in_full or [p for p in found if subject in names(p)]
    if not chosen:
        ended = any(subject in names(process) for process in every)
        fail(2, f"{subject} has ended" if ended else f"the daemon knows of no process or job {subject}")
    one = [process for process in chosen if subject == str(process.pid)]
    jobs = {job_key(process.workload): process for process in one or chosen}
    lines: list[str] = []
    for job, first in jobs.items():
        ranks = [p for p in found if p is first or (any(job[:-1]) and job_key(p.workload) == job)]
        if any(process.standstill for process in ranks):
            who = ", ".join(filter(None, (name(first), owner_words(first.workload))))
            lines += ["", *([f"{who}:"] if len(jobs) > 1 else [])]
            lines += _lines(ranks, one or ranks, status.timestamp)
    if not lines:
        ranked, last = any((p.world_size or 1) > 1 for p in chosen), max(p.last_step or 0.0 for p in chosen)
        now = f" (last step {duration(max(0.0, status.timestamp - last))} ago)" if last else ""
        why = "its ranks make progress" if ranked else "only ranks of a distributed training send theirs"
        other = "" if chosen[0].pid is None else f"; to see it: py-spy dump --pid {chosen[0].pid}"
        fail(1, f"{subject} has no stack: {why}{now}{other}")
    for line in lines[1:]:
        click.echo(safe(line))


def _lines(ranks: Sequence[ProcessStatus], shown: Sequence[ProcessStatus], now: float) -> Iterator[str]:
    yield from roll_call(ranks)
    for process in sorted(shown, key=lambda process: process.rank or 0):
        if process.standstill:
            still = duration(max(0.0, now - process.standstill.since))
            yield ""
            yield f"rank {process.rank}, {name(process)}, pid {process.pid}: no progress for {still}"
            yield from stack_lines(process.standstill)
