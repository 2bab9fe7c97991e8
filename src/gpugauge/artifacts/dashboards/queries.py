"""PromQL for the dashboards: every name and label is looked up in the catalogue, and the unit follows from the name."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpugauge import catalog
from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.artifacts.rules.recording import UnknownMetricError
from gpugauge.metric import BYTES, CELSIUS, HERTZ, JOULES, NONE, RATIO, SECONDS, TIMESTAMP, WATTS, Metric

# Grafana's names for our units, for a value and for its rise in a second.
COUNT, SHARE = "short", "percentunit"
_UNITS = {BYTES: "bytes", CELSIUS: "celsius", HERTZ: "hertz", JOULES: "joule", NONE: COUNT}
_UNITS |= {RATIO: SHARE, SECONDS: "s", TIMESTAMP: "dateTimeAsIso", WATTS: "watt"}
_RATES = {BYTES: "Bps", JOULES: "watt", NONE: "suffix:/s", SECONDS: SHARE}
# What the rules record has its unit as the last word of its name.
_RECORDED_UNITS = {"bool": COUNT, "gpus": COUNT, "info": COUNT, "ratio": SHARE}
# What Prometheus itself tells of a scrape.
_OF_PROMETHEUS = {"up": COUNT, "scrape_duration_seconds": "s", "scrape_samples_scraped": COUNT}
_OPERATORS = {"!~": "!~", "~": "=~", "!": "!="}
_ROWS = {row.name: row for row in catalog.metrics()}


@dataclass(frozen=True)
class Expr:
    """A PromQL expression and the Grafana unit of its values."""

    text: str
    unit: str

    def __str__(self) -> str:
        return self.text

    def then(self, template: str, unit: str | None = None) -> Expr:
        """Return the template with this expression in place of `{}`; the unit stays unless another is given."""
        return Expr(template.replace("{}", self.text), unit or self.unit)

    def measured(self, unit: str) -> Expr:
        """Return the same values in another unit: a sum of shares is a count."""
        return Expr(self.text, unit)

    def by(self, *labels: str, operator: str = "sum") -> Expr:
        """Aggregate to the labels, or to one series."""
        kept = f" by ({', '.join(labels)})" if labels else ""
        return self.then(f"{operator}{kept} ({{}})")


def _row(name: str) -> Metric:
    histogram = next((name.removesuffix(end) for end in ("_bucket", "_count", "_sum") if name.endswith(end)), None)
    row = _ROWS.get(name) or _ROWS.get(histogram or "")
    if row is None or (row.kind == "histogram") != (row.name != name):
        raise UnknownMetricError(f"{name} is not in the catalogue")
    return row


def _matcher(label: str, value: str) -> str:
    operator = next((sign for sign in _OPERATORS if value.startswith(sign)), "")
    return f'{label}{_OPERATORS.get(operator, "=")}"{value.removeprefix(operator)}"'


def braced(labels: Mapping[str, str]) -> str:
    """Return the labels as a selector behind a name, nothing if there are none; a value may begin with an operator."""
    return f"{{{','.join(_matcher(*label) for label in labels.items())}}}" if labels else ""


@dataclass(frozen=True)
class Scope:
    """What a dashboard's variables choose: labels of the scrape, and labels of ours where a metric has them."""

    scrape: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)

    def select(self, name: str, **labels: str) -> str:
        """Return a selector; raises UnknownMetricError for a name or label that the catalogue does not have."""
        row = _row(name)
        unknown = labels.keys() - set(row.labels)
        if unknown:
            raise UnknownMetricError(f"{name} has no label {', '.join(sorted(unknown))}")
        own = {label: value for label, value in self.own.items() if label in row.labels}
        return name + braced({**self.scrape, **own, **labels})

    def read(self, name: str, **labels: str) -> Expr:
        """Return the values as they are, timestamps in the milliseconds that Grafana wants."""
        unit = _row(name).unit
        return Expr(self.select(name, **labels) + (" * 1000" if unit == TIMESTAMP else ""), _UNITS[unit])

    def age(self, name: str) -> Expr:
        """Return the seconds since the time that a timestamp tells."""
        if _row(name).unit != TIMESTAMP:
            raise UnknownMetricError(f"{name} is no timestamp")
        return Expr(f"time() - {self.select(name)}", "s")

    def rate(self, name: str, window: str = "$__rate_interval", **labels: str) -> Expr:
        """Return the rise a second; of a histogram's buckets and count, how often a second."""
        unit = NONE if name.endswith(("_bucket", "_count")) else _row(name).unit
        return Expr(f"rate({self.select(name, **labels)}[{window}])", _RATES[unit])

    def increase(self, name: str, window: str = "$__range", **labels: str) -> Expr:
        """Return the rise in the window, which is that of the dashboard unless said otherwise."""
        return Expr(f"increase({self.select(name, **labels)}[{window}])", _UNITS[_row(name).unit])

    def scraped(self, name: str) -> Expr:
        """Return what Prometheus itself tells of the scrapes."""
        return Expr(name + braced(self.scrape), _OF_PROMETHEUS[name])

    def of(self, **own: str) -> Scope:
        """Return the scope with further labels of ours."""
        return replace(self, own={**self.own, **own})


@functools.cache
def _recordings() -> frozenset[str]:
    groups = rules.groups(Parameters())["groups"]
    return frozenset(rule["record"] for group in groups for rule in group["rules"] if "record" in rule)


def recorded(name: str, **labels: str) -> Expr:
    """Return a series that our rules record; raises UnknownMetricError for another."""
    if name not in _recordings():
        raise UnknownMetricError(f"{name} is not recorded by the rules")
    return Expr(name + braced(labels), _RECORDED_UNITS[name.rpartition(":")[2]])


def share(part: Expr, whole: Expr, *labels: str) -> Expr:
    """Return one sum by the labels divided by the other, absent where the whole is nothing."""
    return Expr(f"{part.by(*labels)}\n/ ({whole.by(*labels)} > 0)", SHARE)


DEVICE = "{{instance}} · {{index}} · {{short_uuid}}"


def devices(scope: Scope) -> str:
    """Return the GPUs with the names that legends show: the index, and the beginning of the uuid."""
    named = f"max by (instance, uuid, index) ({scope.select('gpu_info')})"
    return f'label_replace({named}, "short_uuid", "$1", "uuid", "(.{{12}}).*")'


def by_device(scope: Scope, expr: Expr, *labels: str, operator: str = "max") -> Expr:
    """Aggregate to GPUs and the labels, and name the GPUs; the legend for it is `GPU`."""
    one = expr.by("instance", "uuid", *labels, operator=operator)
    return one.then(f"{{}}\n* on (instance, uuid) group_left (index, short_uuid) {devices(scope)}")
