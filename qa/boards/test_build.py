from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana.build import DASHBOARDS
from grafana.build.common import alerts
from grafana.build.jobs import CAUSE_NAMES, STATE_COLORS
from grafana.build.layout import Panel, Row, place
from grafana.build.notifications import INHIBITIONS
from grafana.build.panels import MixedUnitsError, Query, timeseries
from grafana.build.queries import CLOCK, EVERY_PRICE, Expr, Scope, recorded
from tests.grafana.dashboard_reading import (
    SCHEMA,
    asked_of_prometheus,
    metric_names,
    panels,
    queries,
    substituted,
    variables,
)

from gpugauge import catalog
from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.options import Parameters
from gpugauge.artifacts.rules.promql import UnknownMetricError
from gpugauge.faults.table import FAULTS
from gpugauge.verdict.causes import CAUSES, STATES

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "grafana"
DASHBOARD_FILES: dict[str, Json] = {name: make() for name, make in DASHBOARDS.items()}
UIDS = {dashboard["uid"] for dashboard in DASHBOARD_FILES.values()}
ENDINGS = {"gauge": ("",), "counter": ("",), "histogram": ("_bucket", "_count", "_sum")}
NAMES = {row.name + ending for row in catalog.metrics() for ending in ENDINGS[row.kind]}
RECORDED = {
    rule["record"]
    for tree in (rules.groups(Parameters()), rules.cost_groups(Parameters(), **EVERY_PRICE))
    for group in tree["groups"]
    for rule in group["rules"]
    if "record" in rule
}
# Series of Prometheus itself.
OTHERS = {"ALERTS", "ALERTS_FOR_STATE", "up", "scrape_duration_seconds", "scrape_samples_scraped"}
by_dashboard = pytest.mark.parametrize("dashboard", DASHBOARD_FILES.values(), ids=DASHBOARD_FILES)


def applied(dashboard: Json) -> Json:
    """Return the dashboard with the overrides of columns applied to the panel, so that the schema covers them."""
    whole = copy.deepcopy(dashboard)
    for panel in panels(whole):
        defaults = panel["fieldConfig"]["defaults"]
        for override in panel["fieldConfig"]["overrides"]:
            for prop in override["properties"]:
                place, _, key = prop["id"].rpartition(".")
                (defaults.setdefault(place, {}) if place else defaults)[key] = prop["value"]
    return whole


def all_queries(dashboard: Json) -> Iterator[str]:
    yield from (asked.text for asked in queries(dashboard))
    yield from (asked_of_prometheus(variable)[0] for variable in variables(dashboard))


@by_dashboard
def test_fits_the_schema_of_grafana(dashboard: Json) -> None:
    assert [error.message for error in SCHEMA.iter_errors(dashboard)] == []
    assert [error.message for error in SCHEMA.iter_errors(applied(dashboard))] == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("panles",), []),
        (("graphTooltip",), 7),
        (("templating", "list", 1, "includeall"), True),
        (("links", 0, "keepTimes"), True),
        (("annotations", "list", 0, "iconColour"), "red"),
        (("panels", 1, "type"), "timeserie"),
        (("panels", 1, "gridPos", "width"), 3),
        (("panels", 1, "targets", 0, "legend"), "x"),
        (("panels", 1, "options", "colorMode"), "colour"),
        (("panels", 1, "fieldConfig", "defaults", "units"), "s"),
        (("panels", 1, "fieldConfig", "defaults", "thresholds", "mode"), "relative"),
        (("panels", -1, "fieldConfig", "defaults", "custom", "drawStyle"), "lines"),
        (("panels", -1, "options", "legend", "placement"), "left"),
    ],
)
def test_the_schema_rejects(path: tuple[str | int, ...], value: object) -> None:
    dashboard = copy.deepcopy(DASHBOARD_FILES["exporter"])
    assert dashboard["panels"][1]["type"] == "stat"
    assert dashboard["panels"][-1]["type"] == "timeseries"
    tree: Any = dashboard
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = value

    assert list(SCHEMA.iter_errors(dashboard)) != []


def test_the_schema_rejects_a_misspelt_override() -> None:
    dashboard = copy.deepcopy(DASHBOARD_FILES["node"])
    table = next(panel for panel in panels(dashboard) if panel["type"] == "table")
    table["fieldConfig"]["overrides"][0]["properties"].append({"id": "custom.widht", "value": 3})

    assert list(SCHEMA.iter_errors(applied(dashboard))) != []


@by_dashboard
def test_every_metric_is_in_the_catalogue_or_recorded(dashboard: Json) -> None:
    named = {name for query in all_queries(dashboard) for name in metric_names(query)}

    assert len(named) > 10
    assert named <= NAMES | RECORDED | OTHERS


def test_names_are_found_in_any_query() -> None:
    query = (
        'sum by (a_b) (rate(x_total{le="y{",z=~"$v"}[5m])) / on (c) group_left (d) (time() - max(g:r > bool 2)) and e'
    )

    assert metric_names(query) == {"x_total", "g:r", "e"}


@by_dashboard
def test_variables_are_defined_before_they_are_used(dashboard: Json) -> None:
    known: dict[str, str] = {}
    for variable in variables(dashboard):
        substituted(asked_of_prometheus(variable)[0], known)
        known[variable["name"]] = "x"
    for asked in queries(dashboard):
        substituted(asked.text, known)


@by_dashboard
def test_panels_have_a_description_and_a_unit(dashboard: Json) -> None:
    for panel in panels(dashboard):
        assert panel["description"].endswith("."), panel["title"]
        units = {panel["fieldConfig"]["defaults"].get("unit")} | {
            prop["value"]
            for override in panel["fieldConfig"]["overrides"]
            for prop in override["properties"]
            if prop["id"] == "unit"
        }
        lists_facts = panel["type"] == "table" and units == {None}
        assert units - {None} or lists_facts, panel["title"]


@by_dashboard
def test_panels_do_not_overlap(dashboard: Json) -> None:
    collapsed = [panel["panels"] for panel in dashboard["panels"] if panel.get("collapsed")]
    for group in (dashboard["panels"], *collapsed):
        taken: set[tuple[int, int]] = set()
        for panel in group:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert at["x"] + at["w"] <= 24
            assert not cells & taken, panel["title"]
            taken |= cells
    ids = [panel["id"] for group in (dashboard["panels"], *collapsed) for panel in group]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("name", "titles"),
    [
        (
            "fleet",
            {"Out of order: GPUs, and nodes that are not seen", "GPUs wasted, by cause", "GPU hours wasted, by user"},
        ),
        ("node", {"State", "Faults of GPUs, and what to do first: all steps of the repair are below", "GPUs", "Busy"}),
        ("job", {"Job", "What to do", "Where its GPU time goes", "Steps a second"}),
    ],
)
def test_the_first_screen_says_what_is_wrong_whose_and_what_to_do(name: str, titles: set[str]) -> None:
    """One of 1440 x 900 shows 21 of Grafana's units below its own lines."""
    ends = {each["title"]: each["gridPos"]["y"] + each["gridPos"]["h"] for each in DASHBOARD_FILES[name]["panels"]}

    assert {title: ends[title] for title in titles if ends[title] > 21} == {}


def test_gpus_that_are_lost_or_not_seen_have_a_colour() -> None:
    (tile,) = (each for each in panels(DASHBOARD_FILES["fleet"]) if each["title"] == "GPUs")
    colours = {
        each["matcher"]["options"]: each["properties"][0]["value"]["steps"][-1]
        for each in tile["fieldConfig"]["overrides"]
    }

    assert colours == {"lost": {"value": 1, "color": "red"}, "not seen": {"value": 1, "color": "orange"}}


@by_dashboard
def test_each_time_says_since_when_of_what(dashboard: Json) -> None:
    """When a fault began is not when its alert did."""
    named = {
        name
        for panel in panels(dashboard)
        for each in panel.get("transformations", ())
        for name in each["options"].get("renameByName", {}).values()
    }

    assert {name for name in named if name.endswith("ince")} <= {"Fault since", "Alert since", "Trains since"}


@by_dashboard
def test_no_panel_says_no_data(dashboard: Json) -> None:
    assert [panel["title"] for panel in panels(dashboard) if not panel["fieldConfig"]["defaults"].get("noValue")] == []


@by_dashboard
def test_every_override_of_a_table_has_its_column(dashboard: Json) -> None:
    for panel in panels(dashboard):
        if panel["type"] == "table":
            (organize,) = (each["options"] for each in panel["transformations"] if each["id"] == "organize")
            shown = set(organize["renameByName"].values())
            named = {override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]}
            assert named <= shown, panel["title"]
            assert not organize["renameByName"].keys() & {k for k, out in organize["excludeByName"].items() if out}


@by_dashboard
def test_the_cluster_is_first_and_in_every_link(dashboard: Json) -> None:
    first = next(variable for variable in dashboard["templating"]["list"] if variable["type"] == "query")

    assert first["name"] == "cluster"
    assert [asked.where for asked in queries(dashboard) if 'cluster=~"$cluster"' not in asked.text] == []
    for url in re.findall(r'"url": "(/d/[^"]+)"', json.dumps(dashboard)):
        assert "&var-cluster=${__data.fields.cluster_choice:percentencode}" in url


# Bytes of a query that VictoriaMetrics accepts without a flag.
LONGEST = 16384
NAMES_OF = {"cluster": "europe-west4-{:02}", "instance": "gpu-node-{:02}", "kind": "pytorchjob-{}"}


@by_dashboard
def test_no_query_is_too_long_for_victoriametrics(dashboard: Json) -> None:
    """With 20 clusters to choose from, and a job on 16 nodes."""
    values = {"uuid": ".+", "workload": "x" * 60, "__range": "86400s", "__rate_interval": "1800s"}
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            name = variable["name"]
            number = 20 if name == "cluster" else 16
            every = [NAMES_OF.get(name, "a-name-{:02}").format(number) for number in range(number)]
            # Some of many, or the only one.
            chosen = f"({'|'.join(every)})" if variable["multi"] else every[0]
            values.setdefault(name, chosen if name in {"cluster", "instance"} else variable.get("allValue") or every[0])
    lengths = {asked.where: len(substituted(asked.text, values).encode()) for asked in queries(dashboard)}
    for variable in variables(dashboard):
        lengths[variable["name"]] = len(substituted(asked_of_prometheus(variable)[0], values).encode())

    assert {where: length for where, length in lengths.items() if length > LONGEST} == {}


def test_a_fault_of_a_gpu_has_its_colour_with_any_words_behind() -> None:
    shown = next(panel for panel in panels(DASHBOARD_FILES["node"]) if panel["title"] == "GPUs")
    (state,) = (each for each in shown["fieldConfig"]["overrides"] if each["matcher"]["options"] == "State")
    (mapped,) = (each["value"] for each in state["properties"] if each["id"] == "mappings")
    patterns = [each["options"] for each in mapped if each["type"] == "regex"]
    for fault in FAULTS.values():
        if fault.severity == "info":
            continue
        words = "had Xid 48 (Double bit ECC error)" if "Xid" in fault.name else f"{fault.summary}: as the driver says"
        color = next(each["result"]["color"] for each in patterns if re.fullmatch(each["pattern"], words))
        assert color == ("orange" if fault.severity == "warning" and "Xid" not in fault.name else "red"), words


@by_dashboard
def test_alerts_are_annotations(dashboard: Json) -> None:
    assert [annotation["enable"] for annotation in dashboard["annotations"]["list"]] == [True]


@by_dashboard
def test_no_dashboard_has_more_panels_than_a_person_reads(dashboard: Json) -> None:
    most = {"gpugauge-fleet": 20, "gpugauge-job": 20, "gpugauge-node": 18, "gpugauge-exporter": 14, "gpugauge-cost": 12}

    assert len(panels(dashboard)) <= most[dashboard["uid"]]


def test_inhibitions_are_those_of_the_alertmanager() -> None:
    rules_of_alertmanager = yaml.safe_load((ROOT / "deploy/prometheus/alertmanager.yaml").read_text())["inhibit_rules"]

    def name(matchers: list[str]) -> str:
        (matcher,) = matchers
        return re.sub(r'alertname=~?"(.*)"', r"\1", matcher)

    assert [(rule.source, rule.target, rule.equal.split(", ")) for rule in INHIBITIONS] == [
        (name(rule["source_matchers"]), name(rule["target_matchers"]), rule["equal"]) for rule in rules_of_alertmanager
    ]


@by_dashboard
def test_links_carry_time_and_variables_to_dashboards_that_have_them(dashboard: Json) -> None:
    assert [(link["keepTime"], link["includeVars"], link["tags"]) for link in dashboard["links"]] == [
        (True, True, dashboard["tags"])
    ]
    chosen = {
        made["uid"]: {variable["name"] for variable in made["templating"]["list"]} for made in DASHBOARD_FILES.values()
    }
    for found in re.finditer(r'"url": "/d/([\w-]+)\?([^"]+)"', json.dumps(dashboard)):
        assert found[1] in UIDS
        assert "${__url_time_range}" in found[2]
        assert "${datasource:queryparam}" in found[2]
        assert set(re.findall(r"var-(\w+)=", found[2])) <= chosen[found[1]]


@by_dashboard
def test_links_use_columns_that_exist(dashboard: Json) -> None:
    for panel in panels(dashboard):
        named = set(re.findall(r"__data\.fields\.([\w ]+)", json.dumps(panel)))
        columns = {
            title
            for transformation in panel.get("transformations", ())
            for title in transformation["options"].get("renameByName", {}).values()
        }
        assert named <= columns, panel["title"]


def test_every_alert_of_the_rules_is_an_annotation() -> None:
    pattern = re.search(r'alertname=~"([^"]+)"', alerts().text)

    assert pattern
    assert [
        f"alert {alert.name} does not match _ALERT_NAMES in grafana/build/common.py"
        for alert in rules.alerts(Parameters())
        if not re.fullmatch(pattern[1], alert.name)
    ] == []


def test_every_cause_and_state_has_a_colour_of_its_own() -> None:
    assert CAUSE_NAMES.keys() == CAUSES.keys()
    assert STATE_COLORS.keys() == set(STATES)
    assert len({color for _, color in CAUSE_NAMES.values()}) == len(CAUSES)
    assert len(set(STATE_COLORS.values())) == len(STATES)


def test_uids_and_files_of_the_provisioning() -> None:
    provider = yaml.safe_load((FOLDER / "provisioning" / "dashboards" / "gpugauge.yaml").read_text())
    source = yaml.safe_load((FOLDER / "provisioning" / "datasources" / "prometheus.yaml").read_text())

    assert UIDS == {"gpugauge-fleet", "gpugauge-node", "gpugauge-job", "gpugauge-exporter", "gpugauge-cost"}
    assert provider["providers"][0]["type"] == "file"
    assert source["datasources"][0]["type"] == "prometheus"


def test_a_line_is_as_high_as_its_highest_panel() -> None:
    row = Row("r", [Panel({}, 12, 4), Panel({}, 12, 8), Panel({}, 24, 2)])

    assert [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in place([row])] == [(0, 0), (0, 1), (12, 1), (0, 9)]


def test_units_follow_from_the_catalogue() -> None:
    scope = Scope()

    assert {
        "bytes": scope.read("gpu_memory_used_bytes").unit,
        "Bps": scope.rate("gpu_pcie_received_bytes_total").unit,
        "watt": scope.rate("gpu_energy_joules_total").unit,
        "percentunit": scope.rate("gpu_busy_seconds_total").unit,
        "celsius": scope.read("gpu_temperature_celsius").unit,
        "suffix:/s": scope.rate("torch_step_duration_seconds_bucket").unit,
        "s": scope.increase("gpu_busy_seconds_total").unit,
    } == {unit: unit for unit in ("bytes", "Bps", "watt", "percentunit", "celsius", "suffix:/s", "s")}


def test_a_panel_has_one_unit() -> None:
    with pytest.raises(MixedUnitsError, match="bytes, watt"):
        timeseries("t", "d", Query(Expr("a", "watt")), Query(Expr("b", "bytes")))


@pytest.mark.parametrize("name", ["gpu_power", "torch_step_duration_seconds", "gpu_power_watts_count", "gpu_busy"])
def test_unknown_names_are_rejected(name: str) -> None:
    with pytest.raises(UnknownMetricError, match=name):
        Scope().rate(name)


def test_unknown_labels_and_records_are_rejected() -> None:
    with pytest.raises(UnknownMetricError, match="gpu_power_watts has no label sensor"):
        Scope().read("gpu_power_watts", sensor="gpu")
    with pytest.raises(UnknownMetricError, match="gpugauge:power:watts is not recorded"):
        recorded("gpugauge:power:watts")


def test_selectors_take_operators() -> None:
    scope = Scope({"job": "~$job"}, {"uuid": "~$uuid"})

    text = scope.select("gpu_busy_seconds_total", engine="!gpu")

    assert text == 'gpu_busy_seconds_total{cluster=~"$cluster",job=~"$job",uuid=~"$uuid",engine!="gpu"}'
    assert (
        scope.select("gpugauge_open_fds", part="!~a|b")
        == 'gpugauge_open_fds{cluster=~"$cluster",job=~"$job",part!~"a|b"}'
    )


def test_times_of_yesterday_stay_on_one_line() -> None:
    """A wrapped date pushes the lines below out of view."""
    found = {
        (name, panel["title"], column["matcher"]["options"]): values.get("custom.width", 0)
        for name, made in DASHBOARDS.items()
        for panel in panels(made())
        if panel["type"] == "table"
        for column in panel["fieldConfig"]["overrides"]
        if (values := {each["id"]: each["value"] for each in column["properties"]}).get("unit") == CLOCK
    }

    assert len(found) >= 5
    assert {key: width for key, width in found.items() if width < 105} == {}
