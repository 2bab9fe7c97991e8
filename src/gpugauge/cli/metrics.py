"""`gpugauge metrics`: the reference of the metrics."""

from __future__ import annotations

import click

from gpugauge.artifacts.reference import FORMATS


@click.command("metrics")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "markdown", "json"]),
    default="text",
    show_default=True,
    help="Form of the list.",
)
def command(form: str) -> None:
    """Print every metric that gpugauge can export."""
    click.echo(FORMATS[form]().encode(), nl=False)
