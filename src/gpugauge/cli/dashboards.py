"""`gpugauge dashboards`: the Grafana dashboards."""

from __future__ import annotations

from pathlib import Path

import click

from gpugauge.artifacts import dashboards
from gpugauge.cli.common import fail


@click.command("dashboards", epilog=f"NAME is one of {', '.join(dashboards.NAMES)}.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write all dashboards into this folder, which is created if it does not exist.",
)
@click.option("--inputs", is_flag=True, help="In the form for grafana.com: the import asks for the data source.")
@click.argument("name", required=False)
def command(name: str | None, output: Path | None, inputs: bool) -> None:
    """Print the Grafana dashboard NAME, or write all."""
    known = ", ".join(dashboards.NAMES)
    if (name is None) == (output is None):
        raise click.UsageError(f"give either --output DIR or a NAME of {known}")
    if output is not None:
        try:
            for path in dashboards.write(output, inputs=inputs):
                click.echo(path)
        except OSError as error:
            fail(1, f"{error.filename or output}: {error.strerror}")
        return
    if name not in dashboards.NAMES:
        raise click.UsageError(f"there is no dashboard {name!r}: {known}")
    click.echo(dashboards.read(name, inputs=inputs).encode(), nl=False)
