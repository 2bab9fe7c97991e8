"""Parameters of the Prometheus rules, drawn by a seed as people write them, right and wrong, and what they make."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpugauge.artifacts.rules import explain, mixin, pack
from gpugauge.artifacts.rules.options import Parameters, flag_of, validate
from gpugauge.settings.kinds import ConfigError
from gpugauge.settings.yaml_text import Document
from qa.worlds.recorded import Record

_WRONG = 0.03  # the share of the parameters that get a wrong value
_DURATIONS = (300, "5m", 1200, "1h30m", "2h")
# By parameter, values that are right, and others that are wrong, or wrong beside some others.
_VALUES: Mapping[str, tuple[Sequence[Any], Sequence[Any]]] = {
    "threshold": ((0.4, "40%", "62.5", "team-a=60%,default=70%", {"b": "35%"}), ("a=1,a=2", 0, True, "x", "a=x")),
    "thresholds": (({"ml": 0.55}, {"ml": "60%", "b": 0.35}), ({"Bad_Name": 0.3}, {"ml": 2})),
    "critical": ((0.2, "10%", None), (0.99, "0%")),
    "per_cause": ((True, True, False), ("perhaps",)),
    "patience": (_DURATIONS, (20, 0, "1.5s", "soon")),
    "idle_patience": (_DURATIONS, ("30s", -1)),
    "stall_patience": (_DURATIONS, (0,)),
    "min_job_age": (_DURATIONS, ("x",)),
    "keep_firing": (_DURATIONS, (0,)),
    "settle": ((60, "5m", "10m"), (0,)),
    "straggler_above": ((1.1, 1.5, 3), (1, 0.5)),
    "release_patience": (_DURATIONS, (0,)),
    "scrape_interval": ((5, "30s", "1m"), ("2h",)),
    "evaluation_interval": ((15, "30s", "90s", "2m"), ("3m",)),
    "matchers": (
        ('cluster="a"', 'env!="test",workload_namespace="ml"', 'workload_job_kind=~"job|slurm"', 'a=~"b[.]c",d!~"e"'),
        ("cluster=a", 'uuid="x"', 'a="1",a="2"', 'a=~"("', 'a=~"(?=b)"', 'a=~"[[:nope:]]"', "a b"),
    ),
    "up_matchers": (('job="gpus"', 'job=~"a|b",env="c"'), ('uuid="x"', "")),
    "training_matchers": (("", 'torch_build="cuda"', 'workload_user="ann"'), ('mode="x"',)),
    "serving": (("vllm.*", "a|b[.]c", "[[:alpha:]]+"), ("a{2}", "(", "a++")),
    "cluster_label": (("", "region"), ("instance", "uuid", "1a")),
    "name": (("gpus", "Team_a1"), ("1a", "a_")),
    "runbook_url": (("", "https://example.org/book"), ("ftp://x",)),
    "dashboard_url": (("https://grafana.example.org",), ("grafana",)),
    "engine": (("grafana", "grafana", "prometheus"), ("other",)),
    "severities": (({"GpuLost": "info"}, {"TrainingLoadLow": "critical"}), ({"GpuLots": "info"}, {"GpuLost": "bad"})),
}
_PRICES: Sequence[Mapping[str, float]] = ({}, {"NVIDIA H100 80GB HBM3": 2.5}, {"A": 1.0, "B": 0.5})


def drawn(dice: random.Random) -> Document:
    """Return parameters as a file or flags give them."""
    document = Document()
    for name, (right, wrong) in _VALUES.items():
        if dice.random() < 0.3:
            value = dice.choice(wrong if dice.random() < _WRONG else right)
            document.put((name,), value, dice.choice((flag_of(name), "rules.yaml:3")))
    return document


def _rules(prefix: str, tree: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for group in tree["groups"]:
        yield f"{prefix}interval of a group", f"{group['name']} {group['interval']}"
        for rule in group["rules"]:
            name = rule.get("alert") or rule["record"].partition(":")[2]
            yield f"{prefix}{'alert' if 'alert' in rule else 'series'} {name}", repr(rule)


def _made(p: Parameters, dice: random.Random) -> Iterator[tuple[str, str]]:
    yield from _rules("", pack.groups(p))
    prices, pue, grams = dice.choice(_PRICES), dice.choice((None, 1.3)), dice.choice((None, 400.0))
    yield from _rules("cost: ", pack.cost_groups(p, prices=prices, currency="EUR", pue=pue, grams=grams))
    yield "PrometheusRule", pack.as_kubernetes(p)
    yield "mixin", mixin.as_jsonnet(p)
    yield "--explain", "".join(explain.as_table(p, width) for width in (80, 120, 200))


def _shown_of(seed: int) -> Iterator[tuple[str, str]]:
    for number in range(4):
        dice = random.Random(f"{seed} {number}")
        try:
            parameters = validate(drawn(dice))
            found = list(_made(parameters, dice))
        except ConfigError as error:
            yield "error", str(error)
        else:
            yield "parameters", repr(parameters)
            yield from found
    for name, (_, wrong) in _VALUES.items():
        document = Document()
        document.put((name,), wrong[seed % len(wrong)], flag_of(name))
        try:
            yield f"a wrong {name}", repr(pack.alerts(validate(document)))
        except ConfigError as error:
            yield f"a wrong {name}", str(error)


RECORD = Record("drawn_rules", _shown_of, 10)
