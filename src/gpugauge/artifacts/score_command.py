"""`gpugauge rules score`: the rules, with the parameters that are given, over labelled stories."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import click

from gpugauge.artifacts import rules as made
from gpugauge.artifacts.rules_settings import Parameters
from gpugauge.artifacts.score import Rules, naive, score_all
from gpugauge.artifacts.score_report import by_story, failures, summary
from gpugauge.artifacts.score_story import SHIPPED, StoryError, read_all


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path, file_okay=False))
@click.option("--promtool", default="promtool", show_default=True, help="The program; it comes with Prometheus.")
@click.option("--stories/--no-stories", "each", default=False, help="A row for each story, too.")
@click.pass_obj
def score(parameters: Parameters, folder: Path | None, promtool: str, *, each: bool) -> None:
    """Score the rules beside naive ones over the labelled stories of FOLDER, or over those that ship.

    A story is hours of recorded series, and whom somebody should have been told about (docs/alerts-score.md).
    Parameters of the rules go before the word score: gpugauge rules --patience 30m score.
    """
    program = shutil.which(promtool)
    if program is None:
        raise click.ClickException(f"{promtool} is not there: it comes with Prometheus; --promtool says where it is")
    try:
        stories = read_all(folder or SHIPPED)
        ours = Rules("gpugauge", made.groups(parameters), names_jobs=True)
        scored = score_all(stories, [ours, *naive()], program, workers=os.cpu_count() or 1)
    except StoryError as error:
        raise click.ClickException(str(error)) from None
    click.echo(summary(stories, scored))
    if each:
        click.echo("\n" + by_story(stories, scored))
    for line in failures(scored[0][1]["all"]):
        click.echo(line)
