"""Properties of all rules for drawn parameters: texts that Grafana can evaluate, clusters, names of record series."""

from __future__ import annotations

import functools
import json
import random
import re
from typing import Any

from grafana.build import DASHBOARDS

from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.alert import _DASHBOARDS
from gpugauge.artifacts.rules.options import Parameters
from tests.drawn import draws, seeds

# Functions of templates that need Prometheus: https://prometheus.io/docs/prometheus/latest/configuration/template_reference/
ONLY_PROMETHEUS = {
    *("query", "first", "label", "value", "sortByLabel", "tableLink", "graphLink", "pathPrefix", "strvalue", "args"),
    "tmpl",
}
# What else stands in an action: keywords and functions that Grafana has, too.
EVERYWHERE = {
    *(
        "if",
        "else",
        "end",
        "with",
        "range",
        "or",
        "and",
        "eq",
        "ne",
        "not",
        "lt",
        "gt",
        "len",
        "index",
        "printf",
        "urlquery",
    ),
    *(
        "humanize",
        "humanizePercentage",
        "humanizeDuration",
        "humanizeTimestamp",
        "match",
        "reReplaceAll",
        "externalURL",
    ),
}
ACTION = re.compile(r"{{-?(.*?)-?}}", re.DOTALL)
WORD = re.compile(r"(?<![\w$.])[a-zA-Z_]\w*")
VARIABLE = re.compile(r"\$\w*")
GROUPING = re.compile(r"\b(by|on|without|ignoring)\s*\(([^()]*)\)")
SEEDS = draws(8, 40)


def drawn(seed: int) -> dict[str, Any]:
    """Return valid parameters that nobody chose."""
    draw = random.Random(seed)
    threshold = draw.choice([0.1, 0.4, 0.55, "80%", 33, "99.5%"])
    return {
        "threshold": threshold,
        "critical": draw.choice([None, 0.01, "5%"]),
        "per_cause": draw.random() < 0.5,
        "patience": draw.choice([120, 900, "1h"]),
        "settle": draw.choice([1, 300]),
        "matchers": draw.choice(["", 'cluster="a"', 'env!~"test|x%q",team="50%"']),
        "training_matchers": draw.choice(["", 'torch_build=~"cuda|rocm"', 'workload_namespace="train"']),
        "cluster_label": draw.choice(["cluster", "", "k8s_cluster"]),
        "name": draw.choice(["gpugauge", "drill", "team_a"]),
        "runbook_url": draw.choice(["https://wiki.example/gpu", "http://10.0.0.1:8080/r?x=1"]),
        "dashboard_url": draw.choice(["", "https://grafana.example/", "https://grafana.example/sub"]),
    }


@functools.cache
def built(given: str) -> list[dict[str, Any]]:
    return [rule for group in rules.groups(Parameters(**json.loads(given)))["groups"] for rule in group["rules"]]


def all_rules(**given: Any) -> list[dict[str, Any]]:
    """Return the rules of some parameters, which are built once."""
    return built(json.dumps(given))


def texts(**given: Any) -> list[tuple[str, str]]:
    return [(rule["alert"], text) for rule in all_rules(**given) for text in rule.get("annotations", {}).values()]


def unknown_to_grafana(template: str) -> set[str]:
    """Return the parts of a template that Grafana does not have."""
    found: set[str] = set()
    declared = {"$labels", "$values"}
    for action in ACTION.findall(template):
        plain = re.sub(r'"(?:[^"\\]|\\.)*"|`[^`]*`', " ", action)
        if re.match(r"\s*(range\s+)?\$\w+(\s*,\s*\$\w+)?\s*:?=", plain):
            declared |= set(VARIABLE.findall(plain.partition("=")[0]))
        found |= {word for word in WORD.findall(plain) if word not in EVERYWHERE and not word.isdigit()}
        found |= set(VARIABLE.findall(plain)) - declared
    return found


@seeds(SEEDS)
def test_texts_for_grafana_use_what_it_has(seed: int) -> None:
    made = texts(**drawn(seed), engine="grafana")

    assert len(made) > 50
    assert [(alert, found) for alert, text in made if (found := unknown_to_grafana(text))] == []


def test_the_check_finds_what_grafana_does_not_have() -> None:
    assert unknown_to_grafana('{{ range query "up" }}{{ .Value }}{{ end }}') == {"query"}
    assert unknown_to_grafana("{{ $value | humanize }}") == {"$value"}
    assert unknown_to_grafana('{{ $x := $labels.a }}{{ with $x }}{{ . }}{{ end }}{{ "query" }}') == set()
    assert any(unknown_to_grafana(text) & ONLY_PROMETHEUS for _, text in texts())


@seeds(SEEDS)
def test_links_are_absolute_and_lead_to_variables_of_the_dashboards(seed: int) -> None:
    given = drawn(seed)
    variables = {
        made["uid"]: {variable["name"] for variable in made["templating"]["list"]}
        for made in (make() for make in DASHBOARDS.values())
    }

    for rule in (rule for rule in all_rules(**given) if "alert" in rule):
        assert rule["annotations"]["runbook_url"] == f"{given['runbook_url']}#{rule['alert'].lower()}"
        link = rule["annotations"].get("dashboard_url")
        assert bool(link) == bool(given["dashboard_url"])
        if link:
            found = re.fullmatch(re.escape(given["dashboard_url"].rstrip("/")) + r"/d/([\w-]+)\?(.*)", link)
            assert found
            assert set(re.findall(r"var-(\w+)=", found[2])) <= variables[found[1]]
    assert {uid for uid, _ in _DASHBOARDS.values()} <= variables.keys()


def test_in_grafana_the_links_lead_to_its_own_dashboards() -> None:
    links = [rule["annotations"]["dashboard_url"] for rule in all_rules(engine="grafana") if "alert" in rule]

    assert {link.partition("/d/")[0] for link in links} == {'{{ reReplaceAll "/$" "" externalURL }}'}


@seeds(SEEDS)
def test_labels_for_texts_are_no_part_of_an_alert(seed: int) -> None:
    """A rule's own label replaces that of its query after the texts were made, and one without a value removes it."""
    for rule in (rule for rule in all_rules(**drawn(seed), engine="grafana") if "alert" in rule):
        used = set(re.findall(r"\$labels\.(instance|nodes|cause)\b", str(rule["annotations"])))
        joined = f"{drawn(seed)['name']}:job_texts:info" in rule["expr"]
        assert joined == ("nodes" in rule["labels"])
        if joined:
            assert used
            assert {rule["labels"][label] for label in ("instance", "nodes", "cause")} == {""}


@seeds(SEEDS)
def test_every_aggregation_and_join_keeps_the_cluster(seed: int) -> None:
    label = drawn(seed)["cluster_label"]

    for rule in all_rules(**drawn(seed)):
        groupings = GROUPING.findall(rule["expr"])
        assert groupings, rule
        for kind, labels in groupings:
            first = labels.split(",")[0].strip()
            if (kind, labels) == ("without", "pod"):
                continue
            assert kind in {"by", "on"}
            assert first == label if label else first not in {"", "cluster", "k8s_cluster"}, rule["expr"]


@seeds(SEEDS)
def test_a_set_with_a_name_shares_no_series_and_no_group(seed: int) -> None:
    given = {**drawn(seed), "name": "drill"}
    drill, ours = rules.groups(Parameters(**given)), rules.groups(Parameters(**{**given, "name": "gpugauge"}))

    assert not re.findall(r"gpugauge:\w+:", str(drill))
    assert str(ours).replace("gpugauge:", "drill:").replace("'gpugauge-", "'drill-") == str(drill)
    assert {g["name"] for g in drill["groups"]}.isdisjoint(g["name"] for g in ours["groups"])


@seeds(SEEDS)
def test_queries_in_texts_read_recorded_series_or_have_the_matchers(seed: int) -> None:
    """So that a text says nothing about what the matchers exclude."""
    given = drawn(seed)
    escaped = given["matchers"].replace("%", "%%")

    queries = [query for _, text in texts(**given) for query in re.findall(r"printf `([^`]*)`", text)]

    assert queries
    for query in queries:
        raw = re.findall(r"\b(?<!:)(?:gpu|torch|training|gpugauge)_\w+\{([^}]*)\}", query)
        assert all(escaped in matchers for matchers in raw), query
        assert raw or f"{given['name']}:" in query or "ALERTS_FOR_STATE{alertname=" in query, query


@seeds(SEEDS)
def test_a_job_has_one_alert_about_its_load(seed: int) -> None:
    """The levels exclude each other, and each excludes the jobs with a problem that has its own alert."""
    rules = all_rules(**drawn(seed))
    levels = [rule for rule in rules if re.fullmatch(r"TrainingLoad\w+", rule.get("alert", ""))]
    low = [rule["expr"] for rule in rules if rule.get("record", "").endswith(":job_training_low:ratio")]

    assert len(levels) == (1 if drawn(seed)["critical"] is None else 2)
    assert all(
        re.search(r"\nunless on \([\w, ]+\) \w+:job_problem:ratio$", rule["expr"], re.MULTILINE) for rule in levels
    )
    if len(levels) == 2:
        bounds = [dict(re.findall(r"(>=|<) ([\d.]+)", expr.split("\n")[1])) for expr in low]
        assert 'level="very_low"' in levels[0]["expr"].partition("unless")[2]
        assert bounds[0][">="] == bounds[1]["<"]
        assert ">=" not in bounds[1]
