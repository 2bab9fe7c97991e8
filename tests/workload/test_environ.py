from __future__ import annotations

import pytest

from gpugauge.workload.environ import parse, run_identity, slurm_job


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"WANDB_RUN_ID": "abc"}, "wandb:abc"),
        ({"MLFLOW_RUN_ID": "abc", "TORCHELASTIC_RUN_ID": "7"}, "mlflow:abc"),
        ({"AZUREML_RUN_ID": "abc"}, "azureml:abc"),
        ({"TENSORBOARD_LOGDIR": "/logs/a"}, "tensorboard:/logs/a"),
        ({"TORCHELASTIC_RUN_ID": "a1b2"}, "torchrun:a1b2"),
        ({"TORCHELASTIC_RUN_ID": "none"}, ""),
        ({"WANDB_RUN_ID": " ", "MLFLOW_RUN_ID": "None"}, ""),
        ({}, ""),
    ],
)
def test_run_identity(environ: dict[str, str], expected: str) -> None:
    assert expected == run_identity(environ)


@pytest.mark.parametrize(
    ("value", "job"), [("4711", "4711"), ("", ""), ("4711_3", ""), ("x", ""), ("٣", ""), ("1" * 21, "")]
)
def test_slurm_job(value: str, job: str) -> None:
    assert job == slurm_job({"SLURM_JOB_ID": value})


def test_other_variables_are_not_kept() -> None:
    content = b"AWS_SECRET_ACCESS_KEY=s3cret\0WANDB_RUN_ID=a=b\0WANDB_RUN_ID=second\0broken\0=\0HOSTNAME=\xff"

    assert parse(content) == {"WANDB_RUN_ID": "a=b", "HOSTNAME": "\ufffd"}
