"""`gpugauge rules`: the recording and alerting rules, with a flag for each parameter."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from gpugauge.artifacts.rules import explain, mixin, pack
from gpugauge.artifacts.rules.options import Parameters, UnknownAlertError, flag_of, read, validate
from gpugauge.base.duration import format_duration
from gpugauge.cli.common import fail
from gpugauge.report.prices import read as read_prices
from gpugauge.settings.kinds import ConfigError
from gpugauge.settings.yaml_text import Document

_SEVERITIES = "severities"
_IN_FILES = (_SEVERITIES, "thresholds")  # which other flags set
_FORMATS = pack.FORMATS | {"jsonnet": mixin.as_jsonnet}


def _option(name: str, annotation: object, description: str, default: object) -> click.Option:
    if annotation is bool:
        return click.Option([flag_of(name), name], is_flag=True, default=None, help=description)
    choices = [text for text in get_args(annotation) if isinstance(text, str)]
    shown = f"{description}  [default: {_shown(default)}]"
    kind = click.Choice(choices) if choices else None
    return click.Option([flag_of(name), name], default=None, type=kind, help=shown)


def _shown(default: object) -> str:
    if default is None or default == "":
        return "nothing"
    if isinstance(default, float) and default < 1:
        return f"{default:.0%}"
    return format_duration(default) if isinstance(default, int) else str(default)


@click.command(
    "rules",
    params=[
        _option(name, field.annotation, field.description or "", field.default)
        for name, field in Parameters.model_fields.items()
        if name not in _IN_FILES
    ],
)
@click.option(
    "--severity",
    multiple=True,
    metavar="ALERT=SEVERITY",
    help="Severity of one alert: info, warning or critical. May be repeated.",
)
@click.option(
    "--config.file",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="YAML file with the same parameters: threshold, patience and so on; severities: {ALERT: SEVERITY}, and engine "
    "for --for. Flags take precedence.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice([*_FORMATS]),
    default="prometheus",
    show_default=True,
    help="A rule file for Prometheus, a PrometheusRule for the Prometheus operator, or rules.libsonnet of the mixin.",
)
@click.option(
    "--cost", "of_cost", is_flag=True, help="Print the rules about GPU hours and energy by job and user, and no others."
)
@click.option(
    "--prices", type=click.Path(path_type=Path), metavar="FILE", help="As --cost, with cost by a YAML file of prices."
)
@click.option("--explain", "explained", is_flag=True, help="Print the alerts as a table for people, and no rules.")
def command(
    config_file: Path | None,
    form: str,
    severity: tuple[str, ...],
    prices: Path | None,
    *,
    of_cost: bool,
    explained: bool,
    **values: object,
) -> None:
    """Print the recording and alerting rules for Prometheus. Durations are written like 90s, 15m or 1h30m.

    `gpugauge rules --threshold 40% > rules.yaml` gives one alert for each training that uses less than 40 % of its GPU
    time.
    """
    if explained and (of_cost or prices):
        raise click.UsageError("--explain lists the alerts; with --cost or --prices there are none")
    flags = {name: value for name, value in values.items() if value is not None}
    try:
        document = read(config_file, flags | _severities(severity))
        parameters = validate(document, _unknown_alerts(document))
        if of_cost or prices:
            text = _cost(parameters, form, prices)
        else:
            text = explain.as_table(parameters) if explained else _FORMATS[form](parameters)
    except UnknownAlertError as error:
        fail(2, f"{document.place((_SEVERITIES, error.alert))}: {error}")
    except ConfigError as error:
        fail(2, error)
    click.echo(text.encode(), nl=False)  # in UTF-8 under every locale


def _cost(parameters: Parameters, form: str, prices: Path | None) -> str:
    if form not in pack.FORMATS:
        raise ConfigError(f"--format {form} has no rules about cost")
    found = read_prices(prices)
    known = {"prices": found.gpu_hour, "currency": found.currency, "pue": found.pue}
    tree = pack.cost_groups(parameters, **known, grams=found.co2e_grams_per_kilowatt_hour)
    return pack.FORMATS[form](parameters, tree)


def _unknown_alerts(document: Document) -> list[str]:
    """Return a sentence for each alert in `severities` that exists with no parameters."""
    named = document.tree.get(_SEVERITIES)
    known = [alert.name for alert in pack.alerts(Parameters(critical=0.1, per_cause=True))]
    unknown = [UnknownAlertError(name, known) for name in named if name not in known] if isinstance(named, dict) else []
    return [f"{document.place((_SEVERITIES, each.alert))}: {each}" for each in unknown]


def _severities(texts: tuple[str, ...]) -> dict[str, object]:
    """Return the parameter that `ALERT=SEVERITY` texts set. Raises ConfigError."""
    pairs = [text.partition("=") for text in texts]
    if not all(alert and equals for alert, equals, _ in pairs):
        raise ConfigError("--severity: a severity is written ALERT=info, ALERT=warning or ALERT=critical")
    return {_SEVERITIES: {alert: severity for alert, _, severity in pairs}} if pairs else {}
