"""Whose a process is: ids of runs by their order, and what a namespace that cannot be read means."""

from __future__ import annotations

from pathlib import Path

from tests.drawn import cases

from gpugauge.workload.environ import run_identity
from gpugauge.workload.procfs import Procfs

# The ids that people search for first.
RUNS = {
    "WANDB_RUN_ID": "wandb",
    "MLFLOW_RUN_ID": "mlflow",
    "AZUREML_RUN_ID": "azureml",
    "CLEARML_TASK_ID": "clearml",
    "COMET_EXPERIMENT_KEY": "comet",
    "TRAINING_JOB_NAME": "sagemaker",
    "AIP_TENSORBOARD_LOG_DIR": "tensorboard",
    "TENSORBOARD_LOGDIR": "tensorboard",
    "TORCHELASTIC_RUN_ID": "torchrun",
}


@cases("place", range(len(RUNS)))
def test_the_first_id_of_a_run_counts(place: int) -> None:
    rest = list(RUNS)[place:]

    assert run_identity({name: f"id-{name}" for name in reversed(rest)}) == f"{RUNS[rest[0]]}:id-{rest[0]}"


def test_a_network_that_cannot_be_read_is_the_machines(tmp_path: Path) -> None:
    for pid, number in ((1, 7), (2, 7), (3, 8)):
        (tmp_path / f"{pid}/ns").mkdir(parents=True)
        (tmp_path / f"{pid}/ns/net").symlink_to(f"net:[{number}]")
    procfs = Procfs(str(tmp_path))

    assert [procfs.uses_host_network(pid) for pid in (2, 3, 4)] == [True, False, True]
