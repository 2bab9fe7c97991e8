"""`gpugauge export-hook`: a copy of the hook for images without gpugauge."""

from __future__ import annotations

from pathlib import Path

import click

from gpugauge.cli.common import fail
from gpugauge.hook import launch


@click.command("export-hook")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def command(folder: Path) -> None:
    """Copy the hook into FOLDER, for images without gpugauge.

    The hook is the part of gpugauge inside a training process. To load it, set PYTHONPATH to the value that this
    command prints.
    """
    try:
        click.echo(launch.export(folder))
    except OSError as error:
        fail(1, f"{folder}: {error.strerror}")
