"""`gpugauge report`: what jobs used, lost and cost."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import click
from pydantic import TypeAdapter

from gpugauge.base.duration import parse_duration
from gpugauge.cli.common import fail
from gpugauge.report import build, jobs, page, prices, render
from gpugauge.report.model import Report
from gpugauge.report.source import Prometheus, Range
from gpugauge.settings.kinds import ConfigError
from gpugauge.web.client import RequestError

_FORMATS = ("text", "json", "markdown", "html")


def _seconds(_context: click.Context, _parameter: click.Parameter, text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("report")
@click.argument("job", metavar="JOB")
@click.option(
    "--prometheus.url",
    "url",
    envvar="PROMETHEUS_URL",
    default="http://127.0.0.1:9090",
    show_default=True,
    metavar="URL",
    help="Prometheus, or a server with its API.",
)
@click.option("--match", "matchers", default="", metavar="MATCHERS", help='Label matchers of the series: cluster="a".')
@click.option("--since", default="7d", show_default=True, callback=_seconds, help="How far back to look: 12h, 30d.")
@click.option("--prices", "file", type=click.Path(path_type=Path), metavar="FILE", help="YAML file with prices.")
@click.option("--format", "form", type=click.Choice(_FORMATS), default="text", show_default=True, help="The form.")
def command(job: str, url: str, matchers: str, since: float, file: Path | None, form: str) -> None:
    """Report what a job used, lost and cost: GPU hours by cause, and what to change first.

    JOB is the name of a job as alerts and views have it, or in full as slurm:1234 or jobset:team-a/llama. The numbers
    come from the counters that a Prometheus has of the job's processes.
    """
    now = time.time()
    source = Prometheus(url, matchers)
    try:
        known = prices.read(file)
        identity, found = jobs.of_job(source, job, Range(now - since, now))
        made = build.report(identity, found, now, known, [f"The server warns: {text}" for text in source.warnings])
    except ConfigError as error:
        fail(2, error)
    except (RequestError, jobs.ReportError) as error:
        fail(1, error)
    click.echo(written(made, form, now).encode(), nl=False)


def written(made: Report, form: str, now: float) -> str:
    """Return a report in one of the forms."""
    if form == "json":
        return TypeAdapter(Report).dump_json(made, indent=2).decode() + "\n"
    found = render.blocks(made)
    if form == "html":
        return page.of_job(made, found, now)
    if form == "markdown":
        return render.as_markdown(found)
    return render.as_text(found, max(60, min(110, shutil.get_terminal_size().columns)))
