"""`gpugauge status`: the view of the running daemon as a table or as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import sys
import time
from operator import itemgetter
from typing import NoReturn, TextIO

import click

from gpugauge.cli.common import OfDaemon, fail, url_option, wants_colour
from gpugauge.cli.lifecycle import started
from gpugauge.faults.table import FAULTS, REASONED, order
from gpugauge.status.model import WASTE, FaultStatus, Status
from gpugauge.status.model import as_json as as_document
from gpugauge.status.problem import BROKEN
from gpugauge.status.use import gpus_words
from gpugauge.terminal import reply
from gpugauge.terminal.rows import safe
from gpugauge.terminal.screen import of_users
from gpugauge.terminal.table import table
from gpugauge.web.client import RequestError

FAIL_ON = ("repair", "health", "waste")
_WATCH_INTERVAL_SECONDS = 2.0
_CLEAR_SCREEN = "\x1b[H\x1b[2J"


mine_option = click.option("--mine", is_flag=True, help="Only your own processes, and the GPUs on which they are.")
"""An option of the commands that show the status."""


@click.command("status", cls=OfDaemon, short_help="Show what the GPUs do, and what to change.")
@url_option
@click.option("--verbose", "-v", is_flag=True, help="Print each process below its GPU, with all that is known of it.")
@mine_option
@click.option("--json", "as_json", is_flag=True, help="Print all facts as JSON.")
@click.option("--watch", is_flag=True, help="Print the text again every two seconds until interrupted.")
@click.option(
    "--fail-on",
    type=click.Choice(FAIL_ON),
    default="waste",
    show_default=True,
    help="The least grave kind of problem that changes the exit status.",
)
@click.option(
    "--reason",
    is_flag=True,
    help="Print only the faults with an action (drain, reset), the gravest first, on one line.",
)
def command(url: str, verbose: bool, mine: bool, as_json: bool, watch: bool, fail_on: str, reason: bool) -> NoReturn:
    """Show whether the GPUs do useful work, what to change, and a line for each GPU and process.

    The values come from the running daemon. The first line is the answer, and the last one, too, if the terminal is
    lower than the text. The problems follow: in red what must be repaired at once, in orange other faults and wasted
    GPU time.
    BUSY is the share of the time in which a kernel ran, LOST the share of its GPU time that a process does not use.
    The lines fit the terminal, or COLUMNS; NO_COLOR switches colours off.

    Exits with 0 if it lists no problem, with 1 after a fault of a GPU or of the node, such as a missing driver, with 3
    if only programs have problems: they waste GPU time, or wait on a machine without a GPU; with 2 if no daemon answers
    that reads the driver. --fail-on health ignores the problems of programs, and repair also the faults with which jobs
    can go on. With --mine, what others do does not count.
    """
    try:
        status = fetched(url, mine).status if reason else show(url, as_json, watch, verbose=verbose, mine=mine)
    except RequestError as error:
        fail(2, error)
    if reason and (found := repairs(status)):
        click.echo("; ".join(found))
    sys.exit(exit_status(status, fail_on))


def show(
    url: str, as_json: bool, watch: bool, out: TextIO | None = None, *, verbose: bool = False, mine: bool = False
) -> Status:
    """Print the status, with `watch` until interrupted; return the last one. Raises RequestError without a first."""
    out, found = out or sys.stdout, None
    while True:
        try:
            found = fetched(url, mine)
            text = _text(found, as_json, verbose, out)
        except RequestError as error:
            if found is None:
                raise
            text = f"gpugauge: {error}\n"
        out.write((_CLEAR_SCREEN if watch and not as_json and out.isatty() else "") + text)
        out.flush()
        if not watch:
            return found.status
        try:
            time.sleep(_WATCH_INTERVAL_SECONDS)
        except KeyboardInterrupt:
            return found.status


def fetched(url: str, mine: bool) -> reply.Reply:
    """Return the status of a daemon, or the part of it that is about this user. Raises RequestError."""
    found = fetch(url)
    if not mine:
        return found
    names = [str(os.getuid())]  # all that is known of a user in a container
    with contextlib.suppress(KeyError):
        names.insert(0, pwd.getpwuid(os.getuid()).pw_name)
    status = of_users(found.status, names)
    return reply.Reply(status, as_document(status))


def _text(found: reply.Reply, as_json: bool, verbose: bool, out: TextIO) -> str:
    if as_json:
        return json.dumps(found.document, indent=2) + "\n"
    size = shutil.get_terminal_size()
    height = size.lines if out.isatty() else None
    return table(found.status, wants_colour(out), time.time(), size.columns, height, verbose=verbose)


def exit_status(status: Status, fail_on: str = "waste") -> int:
    """Return 1 after a fault of a GPU or of the node, 3 if only programs have problems, 0 without those of FAIL_ON."""
    if status.driver.reason in {"starting", "released"}:
        return 2  # nothing is known of the GPUs
    kinds = {problem.kind for problem in status.problems}
    if repairs(status) or (kinds - WASTE and fail_on != "repair"):
        return 1
    return 3 if kinds and fail_on == "waste" else 0


def repairs(status: Status) -> list[str]:
    """Return what needs a reset or a repair, the gravest first, each in words that say most at their begin."""
    broken = [problem for problem in status.problems if problem.kind in BROKEN]
    words = [f"{problem.subject} {problem.text}" for problem in broken]
    found = list[tuple[int, str]]()
    for gpu in status.gpus:
        explained = {name for each in gpu.faults if each.runbook in FAULTS for name in FAULTS[each.runbook].explains}
        for each in gpu.faults:
            if each.action and each.kind != "gpu_down" and each.runbook not in explained:
                found.append((order(each.runbook or ""), f"{gpus_words([gpu])} {_said(each)}"))
    return list(dict.fromkeys(map(safe, [*words, *(text for _, text in sorted(found, key=itemgetter(0)))])))


def _said(fault: FaultStatus) -> str:
    if fault.kind == "xid" or fault.runbook not in FAULTS:
        return fault.text
    return FAULTS[fault.runbook].summary + (f": {fault.text}" if fault.runbook in REASONED else "")


def fetch(url: str) -> reply.Reply:
    """Return the status as the daemon at `url` sends it. Raises RequestError."""
    with started():
        return reply.fetch(url)
