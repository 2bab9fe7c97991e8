"""`gpugauge export-hook`: a copy of the hook for images without gpugauge."""

from __future__ import annotations

from pathlib import Path

import click

from gpugauge.cli.common import fail
from gpugauge.hook import launch


@click.command("export-hook")
@click.argument("folder")
def command(folder: str) -> None:
    """Copy the hook into FOLDER, for images without gpugauge.

    The hook is the part of gpugauge inside a training process. To load it, set PYTHONPATH to the value that this
    command prints.
    """
    if not folder or ":" in str(Path(folder).resolve()):
        fail(2, f"{folder!r}: PYTHONPATH cannot have this folder")
    try:
        click.echo(launch.export(Path(folder).resolve()))
    except OSError as error:
        fail(1, f"{folder}: {error.strerror}")
