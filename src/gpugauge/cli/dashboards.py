"""`gpugauge dashboards`."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command()
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder to write the files into; made if it is not there.",
)
@click.argument("name", required=False)
def dashboards(name: str | None, output: Path | None) -> None:
    """Print the Grafana dashboard NAME, or write all of them into a folder."""
    from gpugauge.artifacts.dashboards import build as made  # `gpugauge run` must start fast

    known = ", ".join(made.DASHBOARDS)
    if (name is None) == (output is None):
        raise click.UsageError(f"say one of: --output DIR, or a NAME of {known}")
    if output is not None:
        try:
            for path in made.write(output):
                click.echo(path)
        except OSError as error:
            click.echo(f"gpugauge: {error.filename or output}: {error.strerror}", err=True)
            sys.exit(1)
        return
    if name not in made.DASHBOARDS:
        raise click.UsageError(f"there is no dashboard {name!r}: {known}")
    click.echo(made.as_json(name), nl=False)
