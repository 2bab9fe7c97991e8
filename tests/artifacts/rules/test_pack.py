import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from gpugauge import catalog
from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.jobs import alert_of_cause, severity_of_cause
from gpugauge.artifacts.rules.options import Parameters, RulesError, duration, load
from gpugauge.artifacts.rules.recording import ARMED, JOB, Selectors, UnknownMetricError
from gpugauge.cli.main import main
from gpugauge.collectors.device.events import XID_CLASSES
from gpugauge.verdict.causes import CAUSES, Cause
from tests.artifacts.rules.rule_stories import QUIET, STORIES

ROOT = Path(__file__).parents[3]
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
ALERTS = [alert.name for alert in rules.alerts(Parameters())]
ROWS = {row.name: row for row in catalog.metrics()}


def all_rules(p: Parameters | None = None) -> list[dict[str, Any]]:
    return [rule for group in rules.groups(p or Parameters())["groups"] for rule in group["rules"]]


def called(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["rules", *arguments])


def test_every_alert_has_a_story_and_a_section() -> None:
    assert sorted(ALERTS) == sorted(story.alert for story in STORIES)
    assert sorted(ALERTS) == sorted(re.findall(r"^### (\w+)$", RUNBOOK, re.MULTILINE))


@pytest.mark.parametrize("alert", ALERTS)
def test_section_tells_all(alert: str) -> None:
    section = RUNBOOK.split(f"### {alert}\n")[1].split("\n### ")[0].split("\n## ")[0]

    assert [word for word in ("Means", "Confirm", "Do", "Silence") if f"**{word}.**" not in section] == []


def test_every_alert_links_to_its_section() -> None:
    links = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in all_rules() if "alert" in rule}

    assert links == {alert: f"docs/runbook.md#{alert.lower()}" for alert in ALERTS}


def test_every_metric_is_in_the_catalogue() -> None:
    named = set(
        re.findall(r"\b(?<!:)((?:gpu|torch|training|gpugauge)_\w+)\b(?=[{\[)]| offset)", yaml.dump(all_rules()))
    )

    assert len(named) > 12
    assert named <= set(ROWS)


def test_runbook_names_only_what_exists() -> None:
    recorded = {rule["record"] for rule in all_rules() if "record" in rule}
    named = set(re.findall(r"(?<![\w:])(?:gpu|torch|training|gpugauge)[_:][a-z0-9_:]+", RUNBOOK))

    assert named <= set(ROWS) | recorded | {label for row in ROWS.values() for label in row.labels}


def test_stories_use_rows_of_the_catalogue() -> None:
    for row in (
        row for rows in (*(s.rows for s in STORIES), *(q.rows for q in QUIET)) for row in rows if row.name != "up"
    ):
        assert set(row.labels) - {"instance"} <= set(ROWS[row.name].labels), row.name
        assert row.counter == (ROWS[row.name].kind == "counter"), row.name


def test_every_recorded_series_is_recorded_and_used() -> None:
    recorded = {rule["record"] for rule in all_rules() if "record" in rule}
    queries = [rule["expr"] for rule in all_rules()]
    boards = [file.read_text() for file in (ROOT / "grafana").glob("*.json")]

    assert {name for text in queries + boards for name in re.findall(r"gpugauge:\w+:\w+", text)} == recorded


def test_a_group_records_what_it_reads_before() -> None:
    for group in rules.groups(Parameters())["groups"]:
        later = {rule["record"] for rule in group["rules"] if "record" in rule}
        for rule in group["rules"]:
            assert later.isdisjoint(re.findall(r"gpugauge:\w+:\w+", rule["expr"])), rule
            later.discard(rule.get("record"))


@pytest.mark.parametrize("arguments", [("gpu_upp", {}), ("gpu_up", {"process": "p0"})])
def test_unknown_name_or_label_raises(arguments: tuple[str, dict[str, str]]) -> None:
    with pytest.raises(UnknownMetricError, match=arguments[0]):
        Selectors(Parameters())(arguments[0], None, **arguments[1])


def test_severity_is_the_only_label_of_a_rule() -> None:
    assert {tuple(rule["labels"]) for rule in all_rules() if "alert" in rule} == {("severity",)}


def test_without_matchers_nobody_is_a_training_from_outside() -> None:
    armed = {
        matchers: next(
            rule["expr"]
            for rule in all_rules(Parameters(training_matchers=matchers, matchers='cluster="a"'))
            if rule.get("record") == ARMED
        )
        for matchers in ("", 'workload_namespace="train"')
    }

    assert 'state="unknown"' not in armed[""]
    assert 'gpu_process_host_info{workload_namespace="train",cluster="a"}' in armed['workload_namespace="train"']


def test_every_alert_keeps_firing() -> None:
    assert {rule["keep_firing_for"] for rule in all_rules(Parameters(keep_firing=1200)) if "alert" in rule} == {"20m"}


def test_every_condition_holds_for_as_long_as_is_asked() -> None:
    def holds(settle: int) -> dict[str, str]:
        tree = rules.groups(Parameters(settle=settle))
        return {r["alert"]: r["for"] for group in tree["groups"] for r in group["rules"] if "for" in r}

    usual, short = holds(300), holds(7)

    assert {usual[alert] for alert, wait in short.items() if wait == "7s"} == {"5m"}
    assert {alert for alert, wait in short.items() if wait == usual[alert]} == {
        *("GpuLost", "DriverReleasedLong", "TrainingStalled", "TrainingBusyWithoutProgress", "TorchCpuBuildBusy")
    }


@pytest.mark.parametrize(
    ("proven", "severity"), [(("simulated",), "info"), ((), "info"), (("cpu",), "warning"), (("gpu",), "warning")]
)
def test_what_was_only_simulated_informs(proven: Any, severity: str) -> None:
    assert severity_of_cause(Cause("c", "e", "a", proven)) == severity


def test_causes_without_an_alert_of_their_own() -> None:
    assert {cause for cause in CAUSES if alert_of_cause(cause) not in ALERTS} == {
        *("no_cuda_build", "no_visible_device", "driver_mismatch", "unsupported_arch", "model_on_cpu", "unknown")
    }


def test_xid_classes_without_an_alert() -> None:
    assert {name for name in XID_CLASSES if f"GpuXid{name.capitalize()}" not in ALERTS} == {"ignorable", "follow_up"}


def test_identity_is_a_job() -> None:
    assert JOB == "workload_namespace, workload_kind, workload_job_id, workload_user"


def test_matchers_are_in_every_selector() -> None:
    tree = yaml.safe_load(called("--matchers", 'cluster="a"').output)
    text = "\n".join(rule["expr"] for group in tree["groups"] for rule in group["rules"])
    rows = [name for name in re.findall(r"\b(?<!:)(?:gpu|torch|training)_\w+", text) if name in ROWS]
    selected = re.findall(r'\b(?<!:)(?:gpu|torch|training)_\w+\{[^}]*cluster="a"\}', text)

    assert rows
    assert len(selected) == len(rows)


def test_kubernetes_format_holds_the_same_groups() -> None:
    resource = yaml.safe_load(called("--format", "kubernetes").output)

    assert (resource["apiVersion"], resource["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert resource["spec"] == rules.groups(Parameters())


def test_flag_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("{info_below: 0.9, warning_below: 0.4, severities: {GpuLost: warning}}")

    text = called("--config.file", str(file), "--info-below", "0.7", "--patience", "30m").output
    made = {
        rule["alert"]: rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"] if "alert" in rule
    }

    assert "< 0.7\n" in made["TrainingLoadLow"]["expr"]
    assert "< 0.4\n" in made["TrainingLoadVeryLow"]["expr"]
    assert "Mean over 30m" in made["TrainingLoadLow"]["annotations"]["description"]
    assert made["GpuLost"]["labels"] == {"severity": "warning"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--info-below", "0.4"), "warning_below must be smaller"),
        (("--patience", "soon"), "patience: "),
        (("--scrape-interval", "5m"), "scrape_interval is too long"),
        (("--matchers", "a=b"), "matchers: "),
        (("--severity", "Nothing=info"), "there is no such alert"),
        (("--severity", "GpuLost"), "ALERT=info"),
        (("--severity", "GpuLost=loud"), "severities.GpuLost: "),
        (("--config.file", "/nonexistent"), "/nonexistent: "),
    ],
)
def test_bad_parameters_are_named(arguments: tuple[str, ...], message: str) -> None:
    result = called(*arguments)

    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize("content", ["[1]", "a: [", "colour: red"])
def test_bad_file_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(content)

    with pytest.raises(RulesError):
        load(file, {})


@pytest.mark.parametrize("interval", [1, 15, 60])
def test_every_range_holds_two_scrapes(interval: int) -> None:
    units = {"s": 1, "m": 60, "h": 3600}
    text = yaml.dump(all_rules(Parameters(scrape_interval=interval)))
    ranges = [int(number) * units[unit] for number, unit in re.findall(r"\[(\d+)([smh])\]", text)]

    assert ranges
    assert min(ranges) >= 2 * interval


@pytest.mark.parametrize(("asked", "slowest"), [(5, "10s"), (60, "2m"), (90, "2m"), (300, "5m")])
def test_what_jobs_lose_is_asked_half_as_often_and_never_forgotten_between(asked: int, slowest: str) -> None:
    intervals = {g["name"]: g["interval"] for g in rules.groups(Parameters(evaluation_interval=asked))["groups"]}

    assert intervals.pop("gpugauge-jobs") == slowest
    assert set(intervals.values()) == {duration(asked)}
