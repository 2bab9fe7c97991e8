"""PromQL for the dashboards. Names and labels must be in the catalogue; units follow from the names."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpugauge import catalog
from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.artifacts.rules.promql import Selectors, UnknownMetricError
from gpugauge.metric import Metric

# Grafana's names for the units of the catalogue, for a value and for its increase in a second.
COUNT, SHARE = "short", "percentunit"
# On one line also on the next day, on which the whole date took three.
CLOCK = "time:MM-DD HH:mm"
_UNITS = {"bytes": "bytes", "celsius": "celsius", "hertz": "hertz", "joules": "joule", "": COUNT}
_UNITS |= {"ratio": SHARE, "seconds": "s", "timestamp_seconds": "dateTimeAsIso", "watts": "watt"}
_RATES = {"bytes": "Bps", "joules": "watt", "": "suffix:/s", "seconds": SHARE}
# By the last word of the name of a recorded series.
_RECORDED_UNITS = dict.fromkeys(("bool", "cost", "gpus", "hours", "info", "level", "price", "processes"), COUNT)
_RECORDED_UNITS |= {"ratio": SHARE, "seconds": "s", "grams": "massg", "kilowatt_hours": "kwatth"}
CLUSTER = Parameters().cluster_label
EVERY_PRICE = {"prices": {"a GPU": 1.0}, "currency": "", "pue": 1.0, "grams": 1.0}
# Series that Prometheus itself records for each scrape.
_SCRAPE_UNITS = {"up": COUNT, "scrape_duration_seconds": "s"}
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
        """Return the template with this expression in place of `{}`, in the same unit unless another is given."""
        return Expr(template.replace("{}", self.text), unit or self.unit)

    def with_unit(self, unit: str) -> Expr:
        """Return the same values in another unit, for example a sum of shares as a count."""
        return Expr(self.text, unit)

    def by(self, *labels: str, operator: str = "sum") -> Expr:
        """Return the aggregation to the labels, or to one series."""
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
    """Return the label matchers in braces, or "" if there are none; a value may begin with an operator."""
    return f"{{{','.join(_matcher(*label) for label in labels.items())}}}" if labels else ""


@dataclass(frozen=True)
class Scope:
    """Label matchers from a dashboard's variables, besides the chosen clusters: `scrape` for every metric, `own` where
    a metric has the label.
    """

    scrape: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)
    past: str = "$__range:1m"  # in which a node that is not seen now was seen last, and the step of the search
    gone: bool = False  # what is not seen now is searched for on the nodes of the variable of that name
    many: bool = False  # and all of the past

    @property
    def missed(self) -> Scope:
        """Return the scope in which what is not seen now is searched for."""
        where = {**self.scrape, "instance": "~$gone"}
        return replace(self, scrape=where, gone=False, many=False) if self.gone or self.many else self

    @property
    def back(self) -> Scope:
        """Return the scope in which the past is searched."""
        return self.missed if self.many else self

    def select(self, name: str, **labels: str) -> str:
        """Return a selector. Raises UnknownMetricError for a name or label that is not in the catalogue."""
        row = _row(name)
        unknown = labels.keys() - set(row.labels)
        if unknown:
            raise UnknownMetricError(f"{name} has no label {', '.join(sorted(unknown))}")
        own = {label: value for label, value in self.own.items() if label in row.labels}
        return name + braced({CLUSTER: f"~${CLUSTER}", **self.scrape, **own, **labels})

    def read(self, name: str, **labels: str) -> Expr:
        """Return the values; timestamps in milliseconds, as Grafana expects them."""
        unit = _row(name).unit
        return Expr(self.select(name, **labels) + (" * 1000" if unit == "timestamp_seconds" else ""), _UNITS[unit])

    def age(self, name: str) -> Expr:
        """Return the seconds since a timestamp."""
        if _row(name).unit != "timestamp_seconds":
            raise UnknownMetricError(f"{name} is not a timestamp")
        return Expr(f"time() - {self.select(name)}", "s")

    def rate(self, name: str, window: str = "$__rate_interval", **labels: str) -> Expr:
        """Return the increase per second; for buckets and count of a histogram, the events per second."""
        unit = "" if name.endswith(("_bucket", "_count")) else _row(name).unit
        return Expr(f"rate({self.select(name, **labels)}[{window}])", _RATES[unit])

    def steady(self, name: str, window: str = "$__rate_interval", **labels: str) -> Expr:
        """Return the rate of the series that are there now and at the start of the window: it is too low of others."""
        now = self.select(name, **labels)
        return self.rate(name, window, **labels).then(f"({{}} and {now} and {now} offset {window})")

    def increase(self, name: str, window: str = "$__range", **labels: str) -> Expr:
        """Return the increase in the window, by default the time range of the dashboard."""
        return Expr(f"increase({self.select(name, **labels)}[{window}])", _UNITS[_row(name).unit])

    def scraped(self, name: str) -> Expr:
        """Return a series that Prometheus itself records for each scrape; of exporters, as the rules select them where
        no variable does.
        """
        chosen = braced({CLUSTER: f"~${CLUSTER}", **self.scrape})
        ours = "" if "job" in self.scrape else f",{Parameters().up_matchers}"
        return Expr(f"{name}{chosen[:-1]}{ours}}}", _SCRAPE_UNITS[name])

    def with_labels(self, **own: str) -> Scope:
        """Return the scope with further `own` matchers."""
        return replace(self, own={**self.own, **own})


@functools.cache
def _recordings() -> frozenset[str]:
    groups = rules.groups(Parameters())["groups"] + rules.cost_groups(Parameters(), **EVERY_PRICE)["groups"]
    return frozenset(rule["record"] for group in groups for rule in group["rules"] if "record" in rule)


def recorded(name: str, **labels: str) -> Expr:
    """Return a series that the rules record, of the chosen clusters. Raises UnknownMetricError if they do not."""
    if name not in _recordings():
        raise UnknownMetricError(f"{name} is not recorded by the rules")
    return Expr(name + braced({CLUSTER: f"~${CLUSTER}", **labels}), _RECORDED_UNITS[name.rpartition(":")[2]])


def keys(*labels: str) -> str:
    """Return the labels for `by` and `on`, after that of the cluster: two clusters may have equal names."""
    return Selectors().keys(*labels)


def share(part: Expr, whole: Expr, *labels: str) -> Expr:
    """Return one sum by the labels divided by the other; absent where `whole` is 0."""
    return Expr(f"{part.by(*labels)}\n/ ({whole.by(*labels)} > 0)", SHARE)
