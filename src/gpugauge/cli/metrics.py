"""`gpugauge metrics`: the reference of the metrics."""

from __future__ import annotations

import click

from gpugauge.artifacts.reference import FORMATS
from gpugauge.cli.common import write_document


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
    write_document(FORMATS[form]())
