from __future__ import annotations

import pytest

from gpugauge.faults.table import FAULTS
from gpugauge.status.problem import KINDS, problem
from gpugauge.status.problems import gpu_state

# The problems of a node as a whole.
OF_NODE = {"driver", "no_gpu", "collector", "hook"}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in OF_NODE])
def test_each_kind_of_problem_gives_its_gpu_a_state(kind: str) -> None:
    named = {"gpu_health": "GpuHot", "xid": "GpuXidReset"}
    runbook = {"runbook": named[kind]} if kind in named else {}
    gpu = {"uuid": "GPU-0", "processes": [], "processes_hidden": 0}

    state = gpu_state(gpu, [problem(kind, "GPU 0", "text", gpus=["GPU-0"], **runbook)])

    assert state["level"] in {"bad", "poor"}
    assert 0 < len(state["state_words"] or "") <= 14
    assert (state["state_words"] == FAULTS["GpuHot"].word) == (kind == "gpu_health")
