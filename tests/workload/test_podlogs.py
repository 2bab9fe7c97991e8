from __future__ import annotations

from pathlib import Path

import pytest
from qa.worlds.trees import ID, OTHER_ID, UID, pod_logs

from gpugauge.workload.podinfo import Place, read_names


def test_names_by_container_and_pod(tmp_path: Path) -> None:
    pod_logs(tmp_path, "research", "trainer-0", UID, {"main": ID, "side-car": OTHER_ID})
    names = read_names(tmp_path)

    assert names.containers == {
        ID: Place("research", "trainer-0", "main"),
        OTHER_ID: Place("research", "trainer-0", "side-car"),
    }
    assert names.pods == {UID: Place("research", "trainer-0")}


def test_one_folder_is_enough(tmp_path: Path) -> None:
    (tmp_path / "pods" / f"research_trainer-0_{UID}").mkdir(parents=True)
    names = read_names(tmp_path)

    assert (names.containers, names.pods) == ({}, {UID: Place("research", "trainer-0")})


def test_names_without_an_id_or_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):  # neither folder
        read_names(tmp_path)
    (tmp_path / "containers").mkdir()
    for name in (f"pod_ns_{'c' * 50}-{ID[:40]}.log", f"{ID}.log", f"a_b_c_d-{ID}.log", "x"):
        (tmp_path / "containers" / name).touch()

    assert read_names(tmp_path).containers == {}
