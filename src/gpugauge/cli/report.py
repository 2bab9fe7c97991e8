"""`gpugauge report`: what jobs used, lost and cost."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from pathlib import Path
from shlex import quote
from typing import Any

import click
from pydantic import TypeAdapter

from gpugauge.cli.common import duration, fail, with_scheme
from gpugauge.doctor import DEFAULT_URL
from gpugauge.report import build, compare, jobs, jobstats, page, prices, render, top
from gpugauge.report.kept import Kept
from gpugauge.report.model import Report
from gpugauge.report.render import Block
from gpugauge.report.source import Prometheus, Range
from gpugauge.settings.kinds import ConfigError
from gpugauge.web.client import RequestError, UnreachableError

_PROMETHEUS = "http://127.0.0.1:9090"
_JOBSTATS = "jobstats"
_MATCHER = r'\s*([a-zA-Z_]\w*)\s*(=|!=|=~|!~)\s*"([^"\\]|\\.)*"\s*'
_MATCHERS = re.compile(f"({_MATCHER}(,{_MATCHER})*)?", re.ASCII)
_FORMATS = ("text", "json", "markdown", "html", _JOBSTATS)


def _matchers(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    if not _MATCHERS.fullmatch(text):
        raise click.BadParameter(f'write label matchers, such as cluster="a",env!="test", not {text}')
    from gpugauge import catalog

    own = {label for metric in catalog.metrics() for label in metric.labels}
    for name in (found[1] for found in re.finditer(_MATCHER, text, re.ASCII)):
        if name in own:  # the series of a report do not all have it
            raise click.BadParameter(f"{name} is no label of a scrape target, as cluster and instance are")
    return text


@click.command("report", short_help="Report what a job used, lost and cost.")
@click.argument("job", metavar="[JOB]", required=False)
@click.option("--top", "of_all", is_flag=True, help="In place of a JOB: who lost most.")
@click.option("--by", type=click.Choice([*top.BY]), default="job", show_default=True, help="With --top: by what.")
@click.option("--most", type=click.IntRange(min=1), default=20, show_default=True, help="With --top: how many.")
@click.option("--compare", "pair", nargs=2, metavar="A B", help="In place of a JOB: what differs between two.")
@click.option("--slurm", metavar="ID", help="In place of a JOB: a job of Slurm.")
@click.option(
    "--prometheus.url",
    "prometheus",
    envvar="PROMETHEUS_URL",
    metavar="URL",
    help=f"Prometheus, or a server with its API; {_PROMETHEUS}, or the daemon of this machine, if not set.",
)
@click.option("--url", metavar="ADDRESS", help="In place of a Prometheus: a daemon, for the trainings that it keeps.")
@click.option(
    "--match",
    "matchers",
    default="",
    callback=_matchers,
    metavar="MATCHERS",
    help='Matchers of labels of the scrape targets: cluster="a".',
)
@click.option("--since", default="7d", show_default=True, metavar="DURATION", callback=duration, help="How far back.")
@click.option("--prices", "file", type=click.Path(path_type=Path), metavar="FILE", help="YAML file with prices.")
@click.option("--format", "form", type=click.Choice(_FORMATS), default="text", show_default=True, help="The output.")
def command(
    job: str | None,
    of_all: bool,
    by: str,
    most: int,
    pair: tuple[str, str] | None,
    slurm: str | None,
    prometheus: str | None,
    url: str | None,
    matchers: str,
    since: float,
    file: Path | None,
    form: str,
) -> None:
    """Report what a job used, lost and cost: GPU hours by cause, and what to change first.

    JOB is the name of a job as alerts and views have it, or in full as slurm:1234 or jobset:team-a/llama. The numbers
    come from the counters that a Prometheus has of the job's processes, or else from what a daemon keeps of them.
    """
    names = [name for name in (job, f"slurm:{slurm}" if slurm else None) if name]
    if len(names) + of_all + bool(pair) != 1:
        raise click.UsageError("give one JOB, --slurm ID, --top or --compare A B")
    if form == _JOBSTATS and not names:
        raise click.UsageError(f"--format {_JOBSTATS} is for one job")
    now = time.time()
    span = Range(now - since, now)
    try:
        known = prices.read(file)
        source = _source(prometheus, url, matchers, now)
        if of_all:
            found = top.read(source, span, by, known)
            text = written(found, top.Top, top.blocks(found, most), form, now)
        else:
            once = pair and pair[0] == pair[1]
            of = [jobs.of_job(source, name, span) for name in ([] if once else names or pair or [])]
            if pair:
                of = build.last_runs(source, pair[0], span) if once else [(j, build.run_of(f, -1)) for j, f in of]
            elif of[0][0].kind == "launch" and len((last := build.run_of(of[0][1], -1)).facts) < len(of[0][1].facts):
                # What is started from one shell, one after the other, is not one job.
                two = f"gpugauge report --compare {quote(names[0])} {quote(names[0])}"
                source.warnings.add(f"Earlier runs are not in it; the last two: {two}")
                of = [(of[0][0], last)]
            reports = [build.report(*each, now, known, source) for each in of]
            text = _of_jobs(reports, of[0][1], form, now)
    except ConfigError as error:
        fail(2, error)
    except jobs.NoJobError as error:
        if form != _JOBSTATS:
            fail(1, error)
        text = jobstats.NONE
    except (RequestError, jobs.ReportError) as error:
        fail(1, error)
    click.echo(text.encode(), nl=False)


def _source(prometheus: str | None, url: str | None, matchers: str, now: float) -> Prometheus:
    if url is None:
        server = Prometheus(prometheus or _PROMETHEUS, matchers)
        if prometheus or matchers:
            return server
        with contextlib.suppress(UnreachableError):
            server.instant("vector(0)", now)
            return server
    return Kept(with_scheme(url or DEFAULT_URL))


def _of_jobs(reports: list[Report], found: jobs.Found, form: str, now: float) -> str:
    if form == _JOBSTATS:
        return jobstats.comment(reports[0], found)
    if len(reports) == 1:
        return written(reports[0], Report, render.blocks(reports[0]), form, now)
    both = compare.compare(*reports)
    return written(both, compare.Comparison, compare.blocks(both), form, now)


def written(made: object, model: Any, found: list[Block], form: str, now: float) -> str:
    """Return what was found in one of the forms."""
    if form == "json":
        return TypeAdapter(model).dump_json(made, indent=2).decode() + "\n"
    if form == "html":
        return page.as_html(found, now, made.curves if isinstance(made, Report) else None)
    if form == "markdown":
        return render.as_markdown(found)
    return render.as_text(found, max(60, min(110, shutil.get_terminal_size().columns)))
