from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpugauge.artifacts.rules.load import alert_of_cause
from gpugauge.driver.advice import down_advice
from gpugauge.driver.api import CODES, DOWN_REASONS
from gpugauge.driver.codes import RECOVERY_ACTIONS
from gpugauge.driver.vendors.nvidia import NVIDIA, XID_CLASSES
from gpugauge.faults.table import FAULTS, GpuHealth, ailments, xid_fault
from gpugauge.status.model import GpuStatus
from gpugauge.status.problem import KINDS, problem, section_of_training
from gpugauge.status.problems import with_state
from gpugauge.verdict.causes import CAUSES, STATES

SECTIONS = set(
    re.findall(r"^### (\w+)$", (Path(__file__).parents[2] / "docs" / "runbook.md").read_text(), re.MULTILINE)
)


def test_each_recovery_action_has_words() -> None:
    assert ("none", *NVIDIA.recovery) == RECOVERY_ACTIONS


def test_each_cause_has_a_section() -> None:
    on_cpu = {section_of_training("training_on_cpu", cause) for cause in CAUSES}
    training = {cause: section_of_training("training", cause) for cause in CAUSES}

    assert on_cpu | set(training.values()) <= SECTIONS
    others = {section for cause, section in training.items() if section != alert_of_cause(cause)}
    assert others <= {"TrainingOnCpu", "TorchCpuBuildBusy", "TrainingLoadLow", "TrainingStalled"}


def test_each_other_problem_has_a_section() -> None:
    worst = GpuHealth("gpu_reset", True, True, 64, True, 1)
    by_kind = {kind: problem(kind, "", "").runbook for kind in KINDS}
    found = {*by_kind.values()} | {ailment.runbook for ailment in ailments(worst)}
    xids = [xid_fault(min(codes), NVIDIA) for codes in XID_CLASSES.values()]
    found |= {fault.runbook for fault in xids if fault} | {section_of_training(state, None) for state in STATES}

    assert found - {None} <= SECTIONS
    assert {kind for kind in KINDS if by_kind[kind]} == {"driver", "no_gpu", "collector", "unjudged", "unused"}


def test_each_reason_for_a_gpu_that_is_down_has_an_advice() -> None:
    reasons = {*DOWN_REASONS, *CODES, "unknown"}

    assert {reason for reason in reasons if not down_advice(reason, NVIDIA)} == {"driver_down", "suspended"}


# The problems of a node as a whole.
OF_NODE = {"driver", "no_gpu", "repair", "collector", "hook"}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in OF_NODE])
def test_each_kind_of_problem_gives_its_gpu_a_state(kind: str) -> None:
    named = {"gpu_health": "GpuHot", "xid": "GpuXidReset", "gpu_down": "GpuLost"}
    named |= {"gpu_slowed": "GpuThrottled", "narrow_link": "GpuPcieDegraded"}
    runbook = {"runbook": named[kind]} if kind in named else {}

    gpu = with_state(GpuStatus(uuid="GPU-0"), [problem(kind, "GPU 0", "text", gpus=("GPU-0",), **runbook)])

    assert gpu.level in {"bad", "poor"}
    assert 0 < len(gpu.state_words) <= 14
    assert (gpu.state_words == FAULTS["GpuHot"].word) == (kind == "gpu_health")
