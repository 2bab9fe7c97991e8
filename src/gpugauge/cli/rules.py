"""`gpugauge rules`: the recording and alerting rules, with a flag for each parameter."""

from __future__ import annotations

from pathlib import Path

import click

from gpugauge.artifacts.rules import pack
from gpugauge.artifacts.rules.options import Parameters, RulesError, UnknownAlertError, read, validate
from gpugauge.cli.common import fail
from gpugauge.duration import format_duration

_SEVERITIES = "severities"


def _options() -> list[click.Parameter]:
    """Return a flag for each parameter except the severities."""
    return [
        click.Option(
            [f"--{name.replace('_', '-')}", name],
            default=None,
            help=f"{field.description}  [default: {_shown(field.default) or 'nothing'}]",
        )
        for name, field in Parameters.model_fields.items()
        if name != _SEVERITIES
    ]


def _shown(default: object) -> str:
    return format_duration(default) if isinstance(default, int) else str(default)


@click.command("rules", params=_options())
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
    help="YAML file with the same parameters: info_below, patience, severities and so on. Flags take precedence.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["prometheus", "kubernetes"]),
    default="prometheus",
    show_default=True,
    help="A rule file for Prometheus, or a PrometheusRule for the Prometheus operator.",
)
def command(config_file: Path | None, form: str, severity: tuple[str, ...], **values: object) -> None:
    """Print the recording and alerting rules for Prometheus. Durations are written like 90s, 15m or 1h30m."""
    flags = {name: value for name, value in values.items() if value is not None}
    try:
        document = read(config_file, flags | _severities(severity))
        parameters = validate(document)
        text = pack.FORMATS[form](parameters)
    except UnknownAlertError as error:
        fail(2, f"{document.place((_SEVERITIES, error.alert))}: {error}")
    except RulesError as error:
        fail(2, error)
    click.echo(text, nl=False)


def _severities(texts: tuple[str, ...]) -> dict[str, object]:
    """Return the parameter that `ALERT=SEVERITY` texts set. Raises RulesError."""
    pairs = [text.partition("=") for text in texts]
    if not all(alert and equals for alert, equals, _ in pairs):
        raise RulesError("--severity: a severity is written ALERT=info, ALERT=warning or ALERT=critical")
    return {_SEVERITIES: {alert: severity for alert, _, severity in pairs}} if pairs else {}
