"""`gpugauge doctor`: checks of this machine or of one process."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace

import click

from gpugauge.cli.common import wants_colour
from gpugauge.doctor import DEFAULT_URL, report
from gpugauge.doctor.case import Case, Options
from gpugauge.doctor.finding import exit_code
from gpugauge.doctor.table import Entry, examine
from gpugauge.simulator import WORKER
from gpugauge.simulator.scenario.load import ScenarioError, load_scenario


@click.command("doctor")
@click.argument("pid", type=click.IntRange(min=1), required=False)
@click.option(
    "--python",
    metavar="PATH",
    help="The Python interpreter that the training uses; by default that of the active environment.",
)
@click.option(
    "--url", default=DEFAULT_URL, show_default=True, help="Address of the running daemon's metrics; used with PID."
)
@click.option(
    "--timed/--no-timed",
    default=True,
    help="Run a short measurement on the GPU, if no other process uses it.  [default: timed]",
)
@click.option("--force", is_flag=True, help="Run the measurement even while other processes use the GPU.")
@click.option(
    "--timeout",
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="Time limit for each program that the doctor runs with this Python interpreter.",
)
@click.option(
    "--simulate",
    metavar="NAME",
    help="Check the simulated GPUs of a scenario instead of real ones; `gpugauge scenarios` lists the names.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(
    pid: int | None,
    python: str | None,
    url: str,
    timed: bool,
    force: bool,
    timeout: float,
    simulate: str | None,
    as_json: bool,
) -> None:
    """Find out why PyTorch does not use the GPU.

    Checks this machine, or, if PID is given, the process with this id. Exits with 0 if nothing is wrong, with 1 after a
    warning, with 2 after a failure.
    """
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
        for line in report.lines(case, _collected(examine(case), entries), wants_colour(sys.stdout)):
            click.echo(line, color=True)  # wants_colour() has decided whether the line has colours
    sys.exit(exit_code(entry.finding for entry in entries))


def _collected(entries: Iterable[Entry], into: list[Entry]) -> Iterator[Entry]:
    """Yield each entry as soon as it is there, and append it to a list."""
    for entry in entries:
        into.append(entry)
        yield entry
