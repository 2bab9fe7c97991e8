from __future__ import annotations

from pathlib import Path

import pytest

from gpugauge.workload.controllers import Pod
from gpugauge.workload.podinfo import PodInfoError, read_pod

# As the kubelet writes it: keys in order, values quoted as Go does.
LABELS = 'batch.kubernetes.io/job-name="train"\napp="a\\"b"\nempty=""\nbroken\nhalf="x\njob-name="train"\n'


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_pod_of_a_downward_api_volume(tmp_path: Path) -> None:
    pod = read_pod(write(tmp_path, namespace="ml", name="train-x7k2p", uid="3b6c", labels=LABELS))

    assert pod == Pod("ml", "train-x7k2p", "3b6c")
    assert pod.labels == {"batch.kubernetes.io/job-name": "train", "app": 'a"b', "job-name": "train"}


def test_pod_without_labels(tmp_path: Path) -> None:
    assert read_pod(write(tmp_path, namespace="ml", name="train")).labels == {}


@pytest.mark.parametrize(
    ("files", "error"),
    [
        ({"name": "train"}, "namespace: No such file"),
        ({"namespace": "ml"}, "name: No such file"),
        ({"namespace": "", "name": "train"}, "must not be empty"),
    ],
)
def test_a_folder_that_describes_no_pod(tmp_path: Path, files: dict[str, str], error: str) -> None:
    with pytest.raises(PodInfoError, match=error):
        read_pod(write(tmp_path, **files))
