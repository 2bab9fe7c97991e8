"""`gpugauge scenarios`: the simulated machines that ship."""

from __future__ import annotations

import click

from gpugauge.simulator.scenario.load import list_scenarios


@click.command("scenarios")
def command() -> None:
    """List the machines that can be simulated.

    `gpugauge serve --simulate NAME` exports the metrics of one of them.
    """
    for name, description in list_scenarios():
        click.echo(f"{name}  {description}")
