"""The command `gpugauge doctor`. It imports what it needs when it is called, like its neighbours in cli/main.py."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from gpugauge.doctor import DEFAULT_URL

if TYPE_CHECKING:
    from gpugauge.doctor.table import Entry


@click.command()
@click.argument("pid", type=click.IntRange(min=1), required=False)
@click.option("--python", metavar="PATH", help="The Python that trains; by default that of the active environment.")
@click.option("--url", default=DEFAULT_URL, show_default=True, help="Metrics of the running daemon, for PID.")
@click.option("--timed/--no-timed", default=True, help="Measure a GPU that is free for some seconds.  [default: timed]")
@click.option("--force", is_flag=True, help="Measure also while others use the GPU.")
@click.option(
    "--timeout",
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="Longest time for each question to that Python.",
)
@click.option("--simulate", metavar="NAME", help="Look at the simulated GPUs of a scenario; they do not exist.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(
    pid: int | None,
    python: str | None,
    url: str,
    timed: bool,
    force: bool,
    timeout: float,
    simulate: str | None,
    as_json: bool,
) -> None:
    """Find out why PyTorch does not use the GPU of this machine, or why the process PID does not.

    Exits with 0 if nothing is wrong, 1 after a warning, 2 after a failure.
    """
    from dataclasses import replace

    from gpugauge.doctor import report
    from gpugauge.doctor.case import Case, Options
    from gpugauge.doctor.finding import exit_code
    from gpugauge.doctor.table import examine
    from gpugauge.simulator import WORKER
    from gpugauge.simulator.scenario.load import ScenarioError, load_scenario

    try:
        simulation = load_scenario(simulate).simulation() if simulate else None
    except ScenarioError as error:
        raise click.UsageError(str(error)) from None
    options = Options(pid, python, url, timed, force, timeout, simulation)
    case = Case(replace(options, worker=WORKER) if simulation else options)
    entries: list[Entry] = []
    if as_json:
        entries += examine(case)
        click.echo(report.document(case, entries))
    else:
        for line in report.lines(case, _kept(examine(case), entries), _colour()):
            click.echo(line, color=True)  # it has been decided whether there are colours
    sys.exit(exit_code(entry.finding for entry in entries))


def _kept(entries: Iterable[Entry], into: list[Entry]) -> Iterator[Entry]:
    """Pass each entry on as it comes, and keep it."""
    for entry in entries:
        into.append(entry)
        yield entry


def _colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
