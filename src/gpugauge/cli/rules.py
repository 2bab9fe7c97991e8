"""The flags of `gpugauge rules`, made from the model of its parameters."""

from __future__ import annotations

import click

from gpugauge.artifacts.rules.options import Parameters, RulesError, duration

_MAPPING = "severities"


def options() -> list[click.Parameter]:
    """Return a flag for each parameter, and one that may be repeated for the severities."""
    plain: list[click.Parameter] = [
        click.Option(
            [f"--{name.replace('_', '-')}", name],
            default=None,
            help=f"{field.description}  [default: {_shown(field.default) or 'nothing'}]",
        )
        for name, field in Parameters.model_fields.items()
        if name != _MAPPING
    ]
    return [*plain, click.Option(["--severity"], multiple=True, metavar="ALERT=SEVERITY", help="May be repeated.")]


def _shown(default: object) -> str:
    return duration(default) if isinstance(default, int) else str(default)


def given(values: dict[str, object], severity: tuple[str, ...]) -> dict[str, object]:
    """Return the parameters that flags set; raises RulesError for a severity without an alert."""
    flags = {name: value for name, value in values.items() if value is not None}
    if severity:
        pairs = [text.partition("=") for text in severity]
        if not all(alert and equals for alert, equals, _ in pairs):
            raise RulesError("a severity is written ALERT=info, ALERT=warning or ALERT=critical")
        flags[_MAPPING] = {alert: level for alert, _, level in pairs}
    return flags
