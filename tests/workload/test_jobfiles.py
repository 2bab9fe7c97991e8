from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpugauge.workload.identity import Workload
from gpugauge.workload.jobfiles import read_jobs


def write(folder: Path, **files: str) -> Path:
    for name, content in files.items():
        (folder / name).write_text(content)
    return folder


def read(folder: Path) -> dict[str, tuple[Workload, ...]]:
    return read_jobs(folder, lambda uid: {1000: "alice"}.get(uid, str(uid)))


def test_jobs_by_index_instance_and_uuid(tmp_path: Path) -> None:
    write(tmp_path, **{"0": "4711\n4712\n\n4711\n", "1.2": "4713 1000\n", "MIG-a-b": "4714", "10": "\n"})

    assert read(tmp_path) == {
        "index:0": (Workload("slurm", job_id="4711"), Workload("slurm", job_id="4712")),
        "index:1.2": (Workload("slurm", job_id="4713", user="alice"),),
        "MIG-a-b": (Workload("slurm", job_id="4714"),),
    }


def test_hostile_files(tmp_path: Path) -> None:
    write(tmp_path, **{"0": "\x1b[31m\n", "1": "9" * 10_000, "2": "\n".join(map(str, range(1000))), "..x": "1"})
    (tmp_path / "3").mkdir()
    os.mkfifo(tmp_path / "4")
    (tmp_path / "5").symlink_to("/nowhere")
    jobs = read(tmp_path)

    assert jobs.keys() == {"index:0", "index:1", "index:2"}
    assert [jobs["index:0"][0].job_id, jobs["index:1"][0].job_id] == ["?[31m", "9" * 128]
    assert len(jobs["index:2"]) == 64


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "gone")
