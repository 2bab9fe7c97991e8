"""`gpugauge run`: a training program with the hook."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import NoReturn

import click

from gpugauge.cli.common import fail, with_scheme
from gpugauge.doctor import DEFAULT_URL
from gpugauge.hook import launch
from gpugauge.hook.watching import Watch
from gpugauge.wire import messages as wire

_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)  # which it sends to the program, too
_SETTLED_SECONDS = 8.0  # after the end, for which its reason may take


@click.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--quiet", is_flag=True, help="Do not print the lines at the start and at the end of the training.")
@click.option(
    "--report",
    "file",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE",
    help="Write at the end what the training used and lost: .html, .md, .json, or text.",
)
@click.option("--url", default=DEFAULT_URL, show_default=True, metavar="ADDRESS", help="With --report: the daemon.")
@click.argument("words", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(quiet: bool, file: Path | None, url: str, words: tuple[str, ...]) -> NoReturn:
    """Run a training program that reports to the daemon.

    Example: gpugauge run -- python train.py. The program runs as it does without gpugauge. Inside it,
    the hook (a part of gpugauge) records steps, waits and memory, and sends them to the daemon on this machine.
    One line on stderr states at the start whether a daemon was found. Another one states at the end of the training:
    steps, mean step, and what the time was lost to.
    """
    if obstacle := launch.obstacle(words):
        click.echo(f"gpugauge: {obstacle}", err=True)
    if not quiet:
        Watch().print()
    try:
        code = (
            launch.run(words, recap=not quiet)
            if file is None
            else _with_report(words, not quiet, file, with_scheme(url))
        )
    except launch.LaunchError as error:
        fail(error.exit_code, error)
    sys.exit(code)


def _with_report(words: tuple[str, ...], recap: bool, file: Path, url: str) -> int:
    """Run the program as a child, and write the report; return its exit code. Raises LaunchError."""
    run = os.environ[wire.RUN_VARIABLE] = uuid.uuid4().hex
    children: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: object) -> None:
        for child in children if number in _FORWARDED else ():
            child.send_signal(number)

    for number in (*_FORWARDED, *_FROM_TERMINAL):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, forward)
    children.append(launch.run(words, recap, lambda command, environ: subprocess.Popen(command, env=environ)))
    code = children[0].wait()
    if recap:
        click.echo(f"gpugauge: writing {file} as soon as the daemon has seen the end: some seconds", err=True)
    try:
        file.write_text(_report(url, run, file.suffix), encoding="utf-8")
    except Exception as error:  # noqa: BLE001  (the exit code is that of the program, whatever happens here)
        click.echo(f"gpugauge: no report in {file} (--url has the address of the daemon): {error}", err=True)
    return code if code >= 0 else 128 - code


def _report(url: str, run: str, suffix: str) -> str:
    """Return the report on the processes of a run. Raises RequestError, and ReportError if the daemon has seen none."""
    # Not loaded by the start of a training.
    from gpugauge.cli.report import written
    from gpugauge.report import kept, render
    from gpugauge.report.jobs import ReportError
    from gpugauge.report.model import Report

    deadline = time.monotonic() + _SETTLED_SECONDS
    while not ((made := kept.of(kept.Kept(url, run=run))) and all(use.end_words for use in made.processes)):
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    if made is None:
        raise ReportError("the daemon has not seen a training in it")
    form = {".html": "html", ".md": "markdown", ".json": "json"}.get(suffix, "text")
    return written(made, Report, render.blocks(made), form, time.time())
