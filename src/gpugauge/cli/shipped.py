"""`gpugauge metrics`, `dashboards`, `scenarios` and `export-hook`: what ships with gpugauge."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from gpugauge.artifacts import dashboards as shipped
from gpugauge.cli.common import fail


@click.command("metrics")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "markdown", "json"]),
    default="text",
    show_default=True,
    help="Form of the list.",
)
def metrics(form: str) -> None:
    """Print every metric that gpugauge can export."""
    from gpugauge.artifacts.reference import FORMATS

    click.echo(FORMATS[form]().encode(), nl=False)


@click.command("dashboards", epilog=f"NAME is one of {', '.join(shipped.NAMES)}.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write all dashboards into this folder, which is created if it does not exist.",
)
@click.option("--inputs", is_flag=True, help="In the form for grafana.com: the import asks for the data source.")
@click.argument("name", required=False)
def dashboards(name: str | None, output: Path | None, inputs: bool) -> None:
    """Print the Grafana dashboard NAME, or write all."""
    known = ", ".join(shipped.NAMES)
    if (name is None) == (output is None):
        raise click.UsageError(f"give either --output DIR or a NAME of {known}")
    if output is not None:
        try:
            for path in shipped.write(output, inputs=inputs):
                click.echo(path)
        except OSError as error:
            fail(1, f"{error.filename or output}: {error.strerror}")
        return
    if name not in shipped.NAMES:
        raise click.UsageError(f"there is no dashboard {name!r}: {known}")
    click.echo(shipped.read(name, inputs=inputs).encode(), nl=False)


@click.command("scenarios")
def scenarios() -> None:
    """List the machines that can be simulated.

    `gpugauge serve --simulate NAME` exports the metrics of one of them.
    """
    from gpugauge.simulator.scenario.load import list_scenarios

    for name, description in list_scenarios():
        click.echo(f"{name}  {description}")


@click.command("export-hook")
@click.argument("folder")
def export_hook(folder: str) -> None:
    """Copy the hook into FOLDER, for images without gpugauge.

    The hook is the part of gpugauge inside a training process. To load it, set PYTHONPATH to the value that this
    command prints; the line for a shell is on stderr.
    """
    from gpugauge.hook import launch

    if not folder or ":" in str(Path(folder).resolve()):
        fail(2, f"{folder!r}: PYTHONPATH cannot have this folder")
    try:
        value = launch.export(Path(folder).resolve())
        click.echo(value)
        click.echo(f'export PYTHONPATH={shlex.quote(value)}"${{PYTHONPATH:+:$PYTHONPATH}}"', err=True)
    except OSError as error:
        fail(1, f"{folder}: {error.strerror}")
