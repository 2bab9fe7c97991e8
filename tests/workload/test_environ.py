from __future__ import annotations

from gpugauge.workload.environ import parse, run_identity, slurm_job


def test_run_identity() -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({"WANDB_RUN_ID": "abc"}, "wandb:abc"),
        ({"MLFLOW_RUN_ID": "abc", "TORCHELASTIC_RUN_ID": "7"}, "mlflow:abc"),
        ({"AZUREML_RUN_ID": "abc"}, "azureml:abc"),
        ({"TENSORBOARD_LOGDIR": "/logs/a"}, "tensorboard:/logs/a"),
        ({"TORCHELASTIC_RUN_ID": "a1b2"}, "torchrun:a1b2"),
        ({"TORCHELASTIC_RUN_ID": "none"}, ""),
        ({"WANDB_RUN_ID": " ", "MLFLOW_RUN_ID": "None"}, ""),
        ({}, ""),
    ]

    assert [run_identity(environ) for environ, _ in cases] == [identity for _, identity in cases]


def test_slurm_job() -> None:
    jobs = {"4711": "4711", "": "", "4711_3": "", "x": "", "٣": "", "1" * 21: ""}

    assert {value: slurm_job({"SLURM_JOB_ID": value}) for value in jobs} == jobs


def test_other_variables_are_not_kept() -> None:
    content = b"AWS_SECRET_ACCESS_KEY=s3cret\0WANDB_RUN_ID=a=b\0WANDB_RUN_ID=second\0broken\0=\0HOSTNAME=\xff"

    assert parse(content) == {"WANDB_RUN_ID": "a=b", "HOSTNAME": "\ufffd"}
