from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from gpugauge.artifacts.rules import explain
from gpugauge.cli.main import main
from tests.drawn import cases


def rules(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["rules", *arguments])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rules.yaml"


SHARE = "must be above 0 % and below 100 %, written like 40% or 0.4"


@cases("text", ["40%", " 40 %", "4e-1"])
def test_a_threshold_is_a_percentage_or_a_share(text: str, file: Path) -> None:
    file.write_text(f"threshold: {text}\n")

    made = rules("--threshold", text).stdout

    assert made == rules("--config.file", str(file)).stdout
    low = next(rule for group in yaml.safe_load(made)["groups"] for rule in group["rules"] if "alert" in rule)
    assert low["alert"] == "TrainingLoadLow"
    assert "gpugauge:job_training_load:ratio[5m]) < 0.4)" in made
    assert "less than 40%" in low["annotations"]["summary"]


def test_explain_prints_a_line_for_each_alert(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    made = rules("--threshold", "40%", "--critical", "20%", "--severity", "GpuLost=info", "--explain")

    lines = made.stdout.splitlines()
    alerts = [line.split()[0] for line in lines[1 : lines.index("")] if not line.startswith(" ")]
    written = yaml.safe_load(rules("--critical", "20%").stdout)["groups"]
    assert alerts == [rule["alert"] for group in written for rule in group["rules"] if "alert" in rule]
    assert "a training uses less than 40 % of its GPU time, mean over 15m" in made.stdout
    assert next(line.split()[1] for line in lines if line.startswith("GpuLost ")) == "info"
    assert max(map(len, lines[: lines.index("")])) <= 120
    actions = {
        rule["labels"]["action"] for group in written for rule in group["rules"] if "action" in rule.get("labels", {})
    }
    notes = "\n".join(lines[lines.index("") :])
    assert {*re.findall(r"(\w+) \(Gpu", notes)} == actions
    assert {*explain.NEED_HOOK, *explain.NEED_ALLOCATIONS} <= set(alerts)
    assert rules("--cost", "--explain").exit_code == 2


def annotation_texts(result: Result) -> str:
    groups = yaml.safe_load(result.stdout)["groups"]
    return "".join(str(rule.get("annotations")) for group in groups for rule in group["rules"])


@cases("text", ["1h30m", "90m", "1.5h", "5400s", "5400"])
def test_duration_of_a_flag(text: str) -> None:
    assert "Mean over 90m" in annotation_texts(rules("--patience", text))


@cases("text", ["1h30m", "5400"])
def test_duration_of_a_file(text: str, file: Path) -> None:
    file.write_text(f"patience: {text}\n")

    assert "Mean over 90m" in annotation_texts(rules("--config.file", str(file)))


@cases(
    ("text", "sentence"),
    [
        ("# ours\npatiense: 5m\n", "FILE:2: patiense: unknown key; did you mean patience?"),
        ("patience: 5m\npatience: 6m\n", "FILE:2: patience is set twice, first in FILE:1"),
        ("\npatience: soon\n", "FILE:2: patience: a duration is written like 90s, 10m or 1h30m, not 'soon'"),
        ("patience: 1500ms\n", "FILE:1: patience: must be whole seconds, not '1500ms'"),
        ("patience: 0s\n", "FILE:1: patience: must be greater than 0, not '0s'"),
        ("threshold: high\n", f"FILE:1: threshold: {SHARE}, not 'high'"),
        ("threshold: 140%\n", f"FILE:1: threshold: {SHARE}, not '140%'"),
        ("threshold: {a: 60%, default: 140%}\n", f"FILE:1: threshold.default: {SHARE}, not '140%'"),
        ("threshold:\n  a: 60%\n  b: 7,5\n", f"FILE:3: threshold.b: {SHARE}, not '7,5'"),
        ("for: grafana\n", "FILE:1: for: unknown key; did you mean engine?"),
        (
            "severities:\n  GpuHott: info\n  GpuHot: page\n  Foo: info\n",
            "FILE:2: severities.GpuHott: there is no such alert; did you mean GpuHot?\n"
            "gpugauge: FILE:4: severities.Foo: there is no such alert\n"
            "gpugauge: FILE:3: severities.GpuHot: must be 'info', 'warning' or 'critical', not 'page'",
        ),
        ("threshold: 100\n", f"FILE:1: threshold: {SHARE}, not 100"),
        ("threshold: yes\n", f"FILE:1: threshold: {SHARE}, not 'yes'"),
        ("critical: true\n", f"FILE:1: critical: {SHARE}, not True"),
        ("# ours\ncritical: 60%\n", "FILE:2: critical: must be below threshold (0.5), not 0.6"),
        ("threshold: 20%\n\ncritical: 0.2\n", "FILE:3: critical: must be below threshold (0.2), not 0.2"),
        ("treshold: 40%\n", "FILE:1: treshold: unknown key; did you mean threshold?"),
        (
            "patience: 30s\n",
            "FILE:1: patience: patience must be at least 1m, four scrape intervals of 15s, not 30s; "
            "a number without a unit is seconds",
        ),
        ("cluster_label: uuid\n", "FILE:1: cluster_label: uuid is a label of the exporter, not of a cluster"),
        (
            "serving: '(vllm'\n",
            "FILE:1: serving: '(vllm' is no regular expression: missing ), unterminated subpattern at position 0",
        ),
        (
            "severities:\n  GpuLost: loud\n",
            "FILE:2: severities.GpuLost: must be 'info', 'warning' or 'critical', not 'loud'",
        ),
        ("severities:\n  GpuLst: info\n", "FILE:2: severities.GpuLst: there is no such alert; did you mean GpuLost?"),
        ("a: [\n", "FILE:2: not valid YAML: expected the node content, but found '<stream end>'"),
    ],
)
def test_mistake_in_a_file_is_one_sentence(text: str, sentence: str, file: Path) -> None:
    file.write_text(text)

    result = rules("--config.file", str(file))

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"gpugauge: {sentence.replace('FILE', str(file))}\n"


@cases(
    ("flags", "sentence"),
    [
        (("--patience", "5m h"), "--patience: a duration is written like 90s, 10m or 1h30m, not '5m h'"),
        (("--severity", "GpuLst=info"), "--severity: severities.GpuLst: there is no such alert; did you mean GpuLost?"),
        (("--threshold", "400%"), f"--threshold: {SHARE}, not '400%'"),
        (("--threshold", "-1"), f"--threshold: {SHARE}, not '-1'"),
        (("--critical", "80"), "--critical: must be below threshold (0.5), not 0.8"),
        (
            ("--severity", "GpuLost=warn"),
            "--severity: severities.GpuLost: must be 'info', 'warning' or 'critical', not 'warn'",
        ),
        (
            ("--scrape-interval", "5m"),
            "--scrape-interval: patience must be at least 20m, four scrape intervals of 5m, not 15m; "
            "a number without a unit is seconds",
        ),
        (("--matchers", "cluster=a"), "--matchers: must be written like 'cluster=\"a\"', not cluster=a"),
        (("--up-matchers", "job"), "--up-matchers: must be written like 'cluster=\"a\"', not job"),
        (("--severity", "x"), "--severity: a severity is written ALERT=info, ALERT=warning or ALERT=critical"),
    ],
)
def test_mistake_in_a_flag_is_one_sentence(flags: tuple[str, ...], sentence: str) -> None:
    result = rules(*flags)

    assert (result.exit_code, result.stderr) == (2, f"gpugauge: {sentence}\n")
