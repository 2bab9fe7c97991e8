from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from grafana.build.queries import EVERY_PRICE

from gpugauge import catalog
from gpugauge.artifacts.rules import pack as rules
from gpugauge.artifacts.rules.load import alert_of_cause, severity_of_cause
from gpugauge.artifacts.rules.options import Parameters, read, validate
from gpugauge.artifacts.rules.promql import Selectors, UnknownMetricError
from gpugauge.artifacts.rules.recording import ARMED, LOW, OUTSIDE, TRAINING
from gpugauge.base.duration import format_duration
from gpugauge.base.serving import COMMANDS
from gpugauge.cli.main import main
from gpugauge.driver.codes import RECOVERY_ACTIONS
from gpugauge.driver.vendors.nvidia import XID_CLASSES
from gpugauge.settings.kinds import RUNBOOK_URL, ConfigError
from gpugauge.verdict.causes import CAUSES, Cause
from gpugauge.workload.command import command_name
from tests.artifacts.rules.rule_stories import QUIET, STORIES

ROOT = Path(__file__).parents[3]
STORIES_FILE = "tests/artifacts/rules/rule_stories.py"
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
SECTIONS = {part.split("\n")[0]: part for part in re.split(r"^### |^## ", RUNBOOK, flags=re.MULTILINE)[1:]}
EVERYTHING = Parameters(critical=0.2, per_cause=True)
ALERTS = [alert.name for alert in rules.alerts(EVERYTHING)]
ROWS = {row.name: row for row in catalog.metrics()}
LABELS_OF_RULES = ("__name__", "instance", "severity", "alertname", "uuid", "kind")


def all_rules(p: Parameters | None = None) -> list[dict[str, Any]]:
    return [rule for group in rules.groups(p or Parameters())["groups"] for rule in group["rules"]]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["rules", *arguments])


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_a_story(alert: str) -> None:
    if alert not in {story.alert for story in STORIES}:
        pytest.fail(f"alert {alert} has no story in {STORIES_FILE}", pytrace=False)
    assert ALERTS.count(alert) == 1, f"there are two alerts with the name {alert}"


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_a_complete_section(alert: str) -> None:
    if alert not in SECTIONS:
        pytest.fail(f"alert {alert} has no section in docs/runbook.md", pytrace=False)
    # What an alert about a cause means is the head of its chapter; how all are silenced is at the begin of the page.
    parts = ("Confirm", "Do") if "LimitedBy" in alert else ("Means", "Do")
    missing = [part for part in parts if f"**{part}.**" not in SECTIONS[alert]]
    assert "Where no **Silence** is said: by the" in RUNBOOK
    assert "$ " in SECTIONS[alert]
    assert not missing, f"the section of alert {alert} in docs/runbook.md lacks **{'.**, **'.join(missing)}.**"


def test_every_story_and_section_has_an_alert() -> None:
    sections = re.findall(r"^### (\w+)$", RUNBOOK, re.MULTILINE)
    known = set(ALERTS)

    assert [f"{STORIES_FILE}: there is no alert {s.alert}" for s in STORIES if s.alert not in known] == []
    assert [f"docs/runbook.md: there is no alert {name}" for name in sections if name not in known] == []
    assert len(sections) == len(set(sections))


def test_every_alert_links_to_its_section() -> None:
    links = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in all_rules(EVERYTHING) if "alert" in rule}

    assert links == {alert: f"{RUNBOOK_URL}#{alert.lower()}" for alert in ALERTS}


def test_every_metric_is_in_the_catalogue() -> None:
    named = set(
        re.findall(r"\b(?<!:)((?:gpu|torch|training|gpugauge)_\w+)\b(?=[{\[)]| offset)", yaml.dump(all_rules()))
    )

    assert len(named) > 12
    assert named <= set(ROWS)


def test_every_metric_in_the_runbook_exists() -> None:
    recorded = {rule["record"] for rule in all_rules(EVERYTHING) if "record" in rule}
    named = set(re.findall(r"(?<![\w:])(?:gpu|torch|training|gpugauge)[_:][a-z0-9_:]+", RUNBOOK))

    assert named <= set(ROWS) | recorded | {label for row in ROWS.values() for label in row.labels} | {
        *RECOVERY_ACTIONS
    }


def test_stories_use_rows_of_the_catalogue() -> None:
    for row in (
        row for rows in (*(s.rows for s in STORIES), *(q.rows for q in QUIET)) for row in rows if row.name != "up"
    ):
        assert row.name in ROWS, f"rule_stories.py: no metric is called {row.name}"
        unknown = set(row.labels) - {"instance"} - set(ROWS[row.name].labels)
        assert not unknown, f"rule_stories.py: {row.name} has no label {', '.join(sorted(unknown))}"
        assert row.counter == (ROWS[row.name].kind == "counter"), row.name


def test_every_recorded_series_is_recorded_and_used() -> None:
    (about_cost,) = rules.cost_groups(Parameters(), **EVERY_PRICE)["groups"]
    every = [*all_rules(), *about_cost["rules"]]
    recorded = {rule["record"] for rule in every if "record" in rule}
    queries = [text for rule in every for text in (rule["expr"], *rule.get("annotations", {}).values())]
    shown = [file.read_text() for file in [*(ROOT / "grafana").glob("*.json"), ROOT / "docs" / "queries.md"]]

    assert {name for text in queries + shown for name in re.findall(r"gpugauge:\w+:\w+", text)} == recorded


def test_rules_about_cost_have_the_prices_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text("currency: EUR\ngpu_hour: {NVIDIA H200: 3.1}\npue: 1.3\n")

    (group,) = yaml.safe_load(invoke("--prices", str(tmp_path / "prices.yaml"), "--name", "a").output)["groups"]
    (without,) = yaml.safe_load(invoke("--cost", "--format", "kubernetes").output)["spec"]["groups"]

    assert group["rules"][0] == {
        "record": "a:gpu_hour:price",
        "expr": "vector(3.1)",
        "labels": {"gpu_name": "NVIDIA H200", "currency": "EUR"},
    }
    assert [rule["record"] for rule in without["rules"] if re.search("cost|price|site", rule["record"])] == []
    assert invoke("--cost", "--format", "jsonnet").exit_code == 2
    (tmp_path / "prices.yaml").write_text("gpu_hours: {}\n")
    assert "prices.yaml" in invoke("--prices", str(tmp_path / "prices.yaml")).output


def test_a_group_records_a_series_before_it_reads_it() -> None:
    for group in rules.groups(Parameters())["groups"]:
        later = {rule["record"] for rule in group["rules"] if "record" in rule}
        for rule in group["rules"]:
            assert later.isdisjoint(re.findall(r"gpugauge:\w+:\w+", rule["expr"])), rule
            later.discard(rule.get("record"))


@pytest.mark.parametrize("arguments", [("gpu_upp", {}), ("gpu_up", {"process": "p0"})])
def test_unknown_name_or_label_raises(arguments: tuple[str, dict[str, str]]) -> None:
    with pytest.raises(UnknownMetricError, match=arguments[0]):
        Selectors()(arguments[0], None, **arguments[1])


def test_severity_and_action_are_the_only_labels_of_a_rule() -> None:
    alerts = [rule["labels"] for rule in all_rules(EVERYTHING) if "alert" in rule]
    labels = [{name: value for name, value in each.items() if value} for each in alerts]

    assert {tuple(each) for each in labels} == {("severity",), ("severity", "action")}
    assert {each["action"] for each in labels if "action" in each} == {"reset", "reset_later", "drain"}


def test_without_matchers_no_process_without_the_hook_is_a_training() -> None:
    found = {
        matchers: {
            rule["record"]: rule["expr"]
            for rule in all_rules(Parameters(training_matchers=matchers, matchers='cluster="a"'))
            if "record" in rule
        }
        for matchers in ("", 'workload_namespace="train"')
    }

    assert OUTSIDE not in found[""]
    assert OUTSIDE not in found[""][ARMED]
    assert (
        'gpu_process_host_info{workload_namespace="train",cluster="a"}' in found['workload_namespace="train"'][TRAINING]
    )


def test_every_alert_keeps_firing() -> None:
    assert {rule["keep_firing_for"] for rule in all_rules(Parameters(keep_firing=1200)) if "alert" in rule} == {"20m"}


def test_no_rule_has_a_for_that_a_restart_of_prometheus_forgets() -> None:
    assert [rule["alert"] for rule in all_rules(EVERYTHING) if "for" in rule] == []


def test_thresholds_by_namespace() -> None:
    made = yaml.safe_load(invoke("--threshold", "team-a=60%,default=40%").output)
    found = {r.get("alert") or r["record"]: r for g in made["groups"] for r in g["rules"]}

    assert re.findall(r'workload_namespace(\S+)"}\[5m\]\) < ([\d.]+)', found[LOW]["expr"]) == [
        ('!~"team-a', "0.4"),
        ('="team-a', "0.6"),
    ]
    low = found["TrainingLoadLow"]
    assert '{{ if eq $labels.workload_namespace "team-a" }}60{{ else }}40{{ end }}%' in low["annotations"]["summary"]


def test_matchers_of_jobs_select_the_jobs() -> None:
    """No other series has these labels."""
    text = invoke("--matchers", 'workload_namespace=~"a|b",cluster="x"').output

    assert set(re.findall(r"(\w+)\{[^}]*workload_namespace=~[^}]*\}", text)) == {
        *("gpu_process_host_info", "gpu_process_info", "torch_process_info", "gpu_allocation_info")
    }
    assert 'training_seconds_total{cluster="x"}' in text


@pytest.mark.parametrize(
    ("proven", "severity"), [(("simulated",), "info"), ((), "info"), (("cpu",), "warning"), (("gpu",), "warning")]
)
def test_severity_of_a_cause_follows_from_its_proof(proven: Any, severity: str) -> None:
    assert severity_of_cause(Cause("c", "e", "a", proven, "p", "red")) == severity


def test_causes_without_an_alert_of_their_own() -> None:
    assert {cause for cause in CAUSES if alert_of_cause(cause) not in ALERTS} == {
        *("no_cuda_build", "no_visible_device", "driver_mismatch", "unsupported_arch", "model_on_cpu", "unknown"),
        "collective",
    }


def test_xid_classes_without_an_alert() -> None:
    assert {name for name in XID_CLASSES if f"GpuXid{name.capitalize()}" not in ALERTS} == {
        *("ignorable", "follow_up", "recovery")  # GpuNeedsReset is about the recovery action
    }


def test_matchers_are_in_every_selector() -> None:
    tree = yaml.safe_load(invoke("--matchers", 'cluster="a"').output)
    text = "\n".join(rule["expr"] for group in tree["groups"] for rule in group["rules"])
    rows = [name for name in re.findall(r"\b(?<!:)(?:gpu|torch|training)_\w+", text) if name in ROWS]
    selected = re.findall(r'\b(?<!:)(?:gpu|torch|training)_\w+\{[^}]*cluster="a"\}', text)

    assert rows
    assert len(selected) == len(rows)


def test_kubernetes_format_holds_the_same_groups() -> None:
    resource = yaml.safe_load(invoke("--format", "kubernetes").output)

    assert (resource["apiVersion"], resource["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert resource["spec"] == rules.groups(Parameters())


def test_flag_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("{threshold: 0.9, critical: 40%, severities: {GpuLost: warning}}")

    text = invoke("--config.file", str(file), "--threshold", "70%", "--patience", "30m").output
    every = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    made = {rule["alert"]: rule for rule in every if "alert" in rule}
    low, very_low = (rule["expr"] for rule in every if rule.get("record") == LOW)

    assert (">= 0.4 < 0.7)" in low, "< 0.4)" in very_low) == (True, True)
    assert "Mean over 30m" in made["TrainingLoadLow"]["annotations"]["description"]
    assert made["GpuLost"]["labels"]["severity"] == "warning"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--critical", "0.6"), "--critical: must be below threshold (0.5), not 0.6"),
        (("--patience", "soon"), "--patience: "),
        (("--scrape-interval", "5m"), "--scrape-interval: patience must be at least 20m"),
        (("--matchers", "a=b"), "--matchers: "),
        (("--matchers", 'workload_pod="a"'), "--matchers: no rule would fire with workload_pod"),
        (("--up-matchers", 'uuid="a"'), "--up-matchers: no rule would fire with uuid"),
        (("--training-matchers", 'cause="a"'), "--training-matchers: no rule would fire with cause"),
        (("--matchers", '__name__="a"'), "--matchers: no rule would fire with __name__"),
        (("--matchers", 'le="1"'), "--matchers: no rule would fire with le"),
        (("--matchers", 'workload_job="a",workload_job="b"'), "--matchers: no rule would fire with two values"),
        (("--up-matchers", '__name__="a"'), "--up-matchers: no rule would fire with __name__"),
        (("--training-matchers", '__name__="a"'), "--training-matchers: no rule would fire with __name__"),
        (("--threshold", "a=60%,a=40%"), "--threshold: a namespace has two loads"),
        (("--threshold", "A_b=60%"), "--threshold: 'A_b' is no name of a namespace; write team-a=60%,default=40%"),
        (("--threshold", "a=160%"), "--threshold: must be above 0 % and below 100 %"),
        (
            ("--threshold", "a=60%,default=40%", "--critical", "50%"),
            "--critical: must be below threshold (0.4), not 0.5",
        ),
        (("--matchers", 'größe="a"'), "--matchers: "),
        (("--matchers", 'a="(",b!~"("'), "--matchers: '(' is no regular expression: "),
        (("--up-matchers", 'job=~"a["'), "--up-matchers: 'a[' is no regular expression: "),
        (("--training-matchers", 'a=~"*"'), "--training-matchers: '*' is no regular expression: "),
        (
            ("--up-matchers", 'job=~"(?!x)y"'),
            "--up-matchers: '(?!x)y' is no regular expression of Prometheus (RE2): (?!x",
        ),
        (("--serving", "a*+"), "--serving: 'a*+' is no regular expression of Prometheus (RE2): *+"),
        (("--evaluation-interval", "10m"), "--evaluation-interval: "),
        (("--cluster-label", "größe"), "--cluster-label: "),
        *((("--cluster-label", own), f"{own} is a label of the exporter") for own in LABELS_OF_RULES),
        (("--name", "größe"), "--name: "),
        (("--severity", "Nothing=info"), "there is no such alert"),
        (("--severity", "GpuLost"), "ALERT=info"),
        (("--severity", "GpuLost=loud"), "severities.GpuLost: "),
        (("--config.file", "/nonexistent"), "/nonexistent: "),
    ],
)
def test_error_names_the_parameter(arguments: tuple[str, ...], message: str) -> None:
    result = invoke(*arguments)

    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize("content", ["[1]", "a: [", "colour: red"])
def test_bad_file_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(content)

    with pytest.raises(ConfigError):
        validate(read(file, {}))


@pytest.mark.parametrize("interval", [1, 15, 60])
def test_every_range_holds_two_scrapes(interval: int) -> None:
    units = {"s": 1, "m": 60, "h": 3600}
    text = yaml.dump(all_rules(Parameters(scrape_interval=interval)))
    ranges = [int(number) * units[unit] for number, unit in re.findall(r"\[(\d+)([smh])\]", text)]

    assert ranges
    assert min(ranges) >= 2 * interval


@pytest.mark.parametrize(("interval", "slowest"), [(5, "10s"), (60, "2m"), (90, "2m"), (120, "2m")])
def test_losses_of_jobs_are_evaluated_half_as_often_but_before_they_become_stale(interval: int, slowest: str) -> None:
    intervals = {g["name"]: g["interval"] for g in rules.groups(Parameters(evaluation_interval=interval))["groups"]}
    assert next(iter(intervals)) == "gpugauge-jobs"

    assert intervals.pop("gpugauge-jobs") == slowest
    assert set(intervals.values()) == {format_duration(interval)}


# Command lines as the programs' own start scripts and process titles make them.
SERVING = (
    "/usr/bin/python3 /usr/local/bin/vllm serve meta-llama/Llama-3.1-8B",
    "python3 -m vllm.entrypoints.openai.api_server --model x",
    "VLLM::EngineCore",
    "VLLM::Worker_TP3",
    "python3 -m sglang.launch_server --model-path x",
    "sglang::scheduler_TP0",
    "sglang::detokenizer",
    "tritonserver --model-repository=/models",
    "/opt/tritonserver/backends/python/triton_python_backend_stub /models/m/1/model.py",
    "/usr/bin/python3 /usr/src/.venv/bin/text-generation-server serve x",
    "text-generation-launcher --model-id x",
    "/usr/bin/python3 /usr/local/lib/python3.11/site-packages/ts/model_service_worker.py --sock-type unix",
    "/usr/local/bin/ollama runner --model x",
    "/bin/ollama serve",
    "ray::ServeReplica:app:Model",
    "ray::ProxyActor",
    "python3 -m ipykernel_launcher -f kernel.json",
    "/opt/conda/bin/python /opt/conda/bin/jupyter-lab",
    "/usr/bin/python3 /usr/bin/ipython3",
    "python3 /usr/local/lib/python3.11/dist-packages/colab_kernel_launcher.py",
)
TRAININGS_BY_NAME = (
    "python3 train.py",
    "python3 -m torch.distributed.run train.py",
    "/usr/bin/python3 -u /home/ann/finetune_vllm_data.py",
    "python3 -m my.ollama_trainer",
    "ray::TrainWorker",
    "ray::RayTrainWorker.actor_fit",
    "python3 jupyter2train.py",
    "python3 serve_then_train.py",
    "accelerate launch train.py",
)


def serves(line: str) -> bool:
    # PromQL matches a whole value.
    return re.fullmatch(COMMANDS, command_name([word.encode() for word in line.split()]).decode()) is not None


@pytest.mark.parametrize("line", SERVING)
def test_a_server_or_notebook_is_no_training(line: str) -> None:
    assert serves(line)


@pytest.mark.parametrize("line", TRAININGS_BY_NAME)
def test_a_training_with_a_similar_name_is_one(line: str) -> None:
    assert not serves(line)
