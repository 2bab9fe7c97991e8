"""Experiment run and Slurm job of a process, from its initial environment."""

from __future__ import annotations

from collections.abc import Mapping

# Experiment trackers first, since people search for these ids; the launcher's id last.
_RUNS = (
    ("WANDB_RUN_ID", "wandb"),
    ("MLFLOW_RUN_ID", "mlflow"),
    ("AZUREML_RUN_ID", "azureml"),
    ("CLEARML_TASK_ID", "clearml"),
    ("COMET_EXPERIMENT_KEY", "comet"),
    ("TRAINING_JOB_NAME", "sagemaker"),
    ("AIP_TENSORBOARD_LOG_DIR", "tensorboard"),
    ("TENSORBOARD_LOGDIR", "tensorboard"),
    ("TORCHELASTIC_RUN_ID", "torchrun"),
)
VARIABLES = frozenset({name.encode() for name, _ in _RUNS} | {b"SLURM_JOB_ID", b"HOSTNAME"})


def parse(environ: bytes) -> dict[str, str]:
    """Return the VARIABLES in the content of /proc/PID/environ. Others, which may contain secrets, are not kept."""
    found: dict[str, str] = {}
    for entry in environ.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name in VARIABLES:
            found.setdefault(name.decode(), value.decode(errors="replace"))
    return found


def run_identity(environ: Mapping[str, str]) -> str:
    """Return the id of the experiment run, `wandb:abc`; empty without one. torchrun's default "none" is ignored."""
    for name, tool in _RUNS:
        value = environ.get(name, "").strip()
        if value and value.lower() not in {"none", "null"}:
            return f"{tool}:{value}"
    return ""


def slurm_job(environ: Mapping[str, str]) -> str:
    """Return the id of the Slurm job; empty if there is none or it is not a number."""
    value = environ.get("SLURM_JOB_ID", "")
    return value if value.isascii() and value.isdigit() and len(value) <= 20 else ""
