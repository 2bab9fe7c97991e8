"""`gpugauge run`: a training program with the hook."""

from __future__ import annotations

from typing import NoReturn

import click

from gpugauge.cli.common import fail
from gpugauge.hook import launch
from gpugauge.hook.watching import Watch


@click.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--quiet", is_flag=True, help="Do not print the lines at the start and at the end of the training.")
@click.argument("words", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(quiet: bool, words: tuple[str, ...]) -> NoReturn:
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
        launch.run(words, recap=not quiet)
    except launch.LaunchError as error:
        fail(error.exit_code, error)
