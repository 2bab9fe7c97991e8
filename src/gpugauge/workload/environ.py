"""Variables that identify the experiment run and the job of a process, from its initial environment."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpugauge.wire.messages import JOB_VARIABLES

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
VARIABLES = frozenset(name.encode() for name in (*JOB_VARIABLES, *(name for name, _ in _RUNS)))
# Volcano has a variable of this form for each task of a job.
_VOLCANO_HOSTS = re.compile(rb"VC_[A-Z0-9_]{1,64}_HOSTS")
_MAX_VALUE_BYTES = 512


def parse(environ: bytes) -> dict[str, str]:
    """Return the VARIABLES in the content of /proc/PID/environ. Others, which may contain secrets, are not kept."""
    found: dict[str, str] = {}
    for entry in environ.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and (name in VARIABLES or _VOLCANO_HOSTS.fullmatch(name)):
            found.setdefault(name.decode(), value[:_MAX_VALUE_BYTES].decode(errors="replace"))
    return found


def sent(facts: Mapping[str, str]) -> dict[str, str]:
    """Return the VARIABLES among the facts that a hook sent."""
    return {name: value for name, value in facts.items() if name.encode() in VARIABLES}


def run_identity(environ: Mapping[str, str]) -> str:
    """Return the id of the experiment run, `wandb:abc`; empty without one. torchrun's default "none" is ignored."""
    for name, tool in _RUNS:
        value = environ.get(name, "").strip()
        if value and value.lower() not in {"none", "null"}:
            return f"{tool}:{value}"
    return ""


def slurm_job(environ: Mapping[str, str], cgroup: str = "", *, in_pod: bool = False) -> str:
    """Return the number of a Slurm job, the SLUID of the cgroup if unknown; outside of pods that of the environment."""
    claimed = environ.get("SLURM_JOB_ID", "")
    return claimed if is_number(claimed) and not is_number(cgroup) and (cgroup or not in_pod) else cgroup


def is_number(value: str) -> bool:
    """Return whether the value can be the number of a job."""
    return value.isascii() and value.isdigit() and len(value) <= 20
