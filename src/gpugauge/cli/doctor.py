"""`gpugauge doctor`: checks of this machine or of one process."""

from __future__ import annotations

import itertools
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import click

from gpugauge.cli.common import fail, url_option, wants_colour
from gpugauge.doctor import report
from gpugauge.doctor.answer import StatusReply
from gpugauge.doctor.answer import answer as ask
from gpugauge.doctor.answer import lines as answer_lines
from gpugauge.doctor.case import Case, Options
from gpugauge.doctor.table import Entry, examine, exit_code
from gpugauge.settings.kinds import ConfigError
from gpugauge.simulator import WORKER
from gpugauge.simulator.scenario.load import load_scenario

_HERE = {"127.0.0.1", "::1", "localhost", socket.gethostname(), ""}


def _pid(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    if value is not None and not (value.isdecimal() and int(value)):
        raise click.BadParameter(f"{value!r} is no process id; gpugauge status lists them")
    return None if value is None else int(value)


@click.command("doctor")
@click.argument("pid", callback=_pid, required=False)
@click.option(
    "--python",
    metavar="PATH",
    help="The Python interpreter that the training uses; by default that of the active environment.",
)
@url_option
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
@click.option("--checks", is_flag=True, help="With PID: print all checks, not only what they found.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer and the findings as JSON.")
def command(simulate: str | None, checks: bool, as_json: bool, **given: Any) -> None:
    """Find out why PyTorch does not use the GPU.

    Checks this machine. If PID is given: shows what the running daemon knows of the process with this id (what it does,
    where its steps go, what limits it, what to change and the expected gain), and then what the checks found. Exits as
    gpugauge status: with 0 if all is well, with 1 after a fault of a GPU or if PyTorch cannot use it, with 2 if no
    daemon knows PID, with 3 after another warning or if only programs have problems.
    """
    try:
        simulation = load_scenario(simulate).simulation() if simulate else None
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    options = Options(simulation=simulation, **given)
    case = Case(replace(options, worker=WORKER) if simulation else options)
    if urlsplit(options.url).hostname not in _HERE and case.daemon[0] is None:
        fail(2, f"{case.daemon[1]}; the checks are of the machine on which they run, without a daemon: gpugauge doctor")
    entries, kept = itertools.tee(examine(case))
    said = ask(case) if options.pid is not None else None
    if as_json:
        click.echo(report.document(case, list(entries), said).encode())
    else:
        for line in _lines(case, said, entries, checks=checks):
            print(line, flush=True)  # noqa: T201  (click writes UTF-8 to an ASCII terminal)
    if said is not None and said.nowhere:
        sys.exit(2)
    sys.exit(exit_code(kept, answered=said is None or said.process is not None, wasted=case.wasted))


def _lines(case: Case, said: StatusReply | None, entries: Iterable[Entry], *, checks: bool) -> Iterator[str]:
    """Yield the lines of the report as they arrive; the answer about a process stands first."""
    colour = wants_colour(sys.stdout)
    if said is not None:
        yield from answer_lines(case, said, shutil.get_terminal_size().columns, colour=colour)
        if said.process is not None and not checks:
            yield from report.below(case, said, entries, colour)
        if (said.process is not None or said.nowhere) and not checks:
            return
        yield ""
    yield from report.lines(case, entries, colour, answered=said is None or said.process is not None)
