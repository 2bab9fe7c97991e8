from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from gpugauge.cli.main import main


def rules(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["rules", *arguments])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rules.yaml"


def annotation_texts(result: Result) -> str:
    groups = yaml.safe_load(result.stdout)["groups"]
    return "".join(str(rule.get("annotations")) for group in groups for rule in group["rules"])


@pytest.mark.parametrize("text", ["1h30m", "90m", "1.5h", "5400s"])
def test_duration_of_a_flag(text: str) -> None:
    assert "Mean over 90m" in annotation_texts(rules("--patience", text))


@pytest.mark.parametrize("text", ["1h30m", "5400"])
def test_duration_of_a_file(text: str, file: Path) -> None:
    file.write_text(f"patience: {text}\n")

    assert "Mean over 90m" in annotation_texts(rules("--config.file", str(file)))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("# ours\npatiense: 5m\n", "FILE:2: patiense: unknown key; did you mean patience?"),
        ("patience: 5m\npatience: 6m\n", "FILE:2: patience is set twice, first in FILE:1"),
        ("\npatience: soon\n", "FILE:2: patience: a duration is written like 90s, 10m or 1h30m, not 'soon'"),
        ("patience: 1500ms\n", "FILE:1: patience: must be whole seconds, not '1500ms'"),
        ("patience: 0s\n", "FILE:1: patience: must be greater than 0, not '0s'"),
        ("info_below: high\n", "FILE:1: info_below: must be a valid number, not 'high'"),
        ("info_below: 0.4\n", "FILE:1: warning_below must be smaller than info_below"),
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


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--patience", "5m h"), "--patience: patience: a duration is written like 90s, 10m or 1h30m, not '5m h'"),
        (("--severity", "GpuLst=info"), "--severity: severities.GpuLst: there is no such alert; did you mean GpuLost?"),
        (("--severity", "x"), "--severity: a severity is written ALERT=info, ALERT=warning or ALERT=critical"),
    ],
)
def test_mistake_in_a_flag_is_one_sentence(flags: tuple[str, ...], sentence: str) -> None:
    result = rules(*flags)

    assert (result.exit_code, result.stderr) == (2, f"gpugauge: {sentence}\n")
