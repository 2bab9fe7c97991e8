"""Files of NCCL Inspector: what is read of them, and of those that are not what the plugin writes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.drawn import cases

from gpugauge.workload.inspector import Timing, dumps
from qa.worlds.inspector import P2P, lines, uuid_of, write

GPU, NOW = uuid_of(0), time.time() // 1
LINES = lines("AllReduce", 4, 25 << 20, [0.001, 0.003])
FOUND = {("AllReduce", 25 << 20): Timing(22.7e9, 0.002, 1.1547)}


def read(folder: Path, *uuids: str) -> tuple[dict[tuple[str, int], Timing], int]:
    """Return what the only file says, and the number of those that are not used."""
    found, refused = dumps(folder, uuids or (GPU,), NOW - 90)
    assert len(found) <= 1
    timings = next(iter(found.values())).timings if found else {}
    rounded = {
        key[:2]: Timing(round(t.bandwidth, -8), round(t.seconds, 6), round(t.varied, 4)) for key, t in timings.items()
    }
    return rounded, refused


def test_a_file_says_how_long_collectives_took_and_whose_it_is(tmp_path: Path) -> None:
    write(tmp_path, GPU, LINES + P2P + lines("Invalid", 4, 25 << 20, [0.1]), NOW)
    (dump,) = dumps(tmp_path, [GPU], NOW)[0].values()

    assert (dump.uid, dump.at) == (os.getuid(), NOW)
    assert read(tmp_path) == (FOUND, 0)


OTHER = lines("Broadcast", 4, 3 << 30, [0.5])  # of a size that is known to a third
OLD = 'nccl_bus_bandwidth_gbs{comm_id="0x1",rank="0",collective="AllReduce",message_size="25.00MB"} 1\n'


@cases(
    ("text", "found"),
    [
        ("", {}),
        (LINES[:-1], {}),  # being written
        (LINES[: len(LINES) // 2], {}),
        (LINES + LINES[:-40], FOUND),
        (LINES + OTHER, {**FOUND, ("Broadcast", 3 << 30): Timing(6.4e9, 0.5, 0.0)}),
        (
            lines("AllGather", 4, 25 << 20, [0.001, 0.003]),
            {("AllGather", 25 << 20): Timing(45.4e9, 0.002, 1.1547)},
        ),
        (OLD + OLD.replace("bus_bandwidth_gbs", "collective_exec_time_microseconds"), {}),
        (lines("AllReduce", 4, 25 << 20, [0.001, 0.003], 'a",nranks="9",collective="Broadcast",b="\n'), {}),
        (lines("AllReduce", 4, 25 << 20, [0.001, 0.003], 'a",nranks="9",collective="Broadcast",b="'), FOUND),
        (lines("AllReduce", 4, 25 << 20, [0.001, 0.003], "x" * 2000), {}),
        (lines("AllReduce", 4, 25 << 20, [0.001, 0.003], "\u2028\x00é"), FOUND),
        (LINES.replace('nranks="4"', 'nranks="1"'), {}),
        (LINES.replace('nranks="4"', 'nranks="0"'), {}),
        (LINES.replace('"25-26MB"', '"0B"'), {}),
        (LINES.replace('"25-26MB"', '"²-³MB"'), {}),
        (LINES.replace("2000", "0"), {}),
        (LINES.replace("2000", "1e999"), {}),
        (LINES.replace("2000", "nan"), {}),
        (LINES.replace("2000", "1.2.3"), {}),
        (b"\xff\xfe\x00" * 1000, {}),
        ('nccl_bus_bandwidth_gbs{,n_nodes="' * 15_000, {}),  # costs no time
        (",n_nodes=" * 50_000, {}),
        (b"\0" * (600 << 10), None),
        (LINES * 2000, None),
    ],
)
def test_content(text: str | bytes, found: dict[tuple[str, int], Timing] | None, tmp_path: Path) -> None:
    write(tmp_path, GPU, text, NOW)
    began = time.process_time()

    assert read(tmp_path) == (({}, 1) if found is None else (found, 0))
    assert time.process_time() - began < 0.5


def test_the_number_of_kinds_is_limited(tmp_path: Path) -> None:
    write(tmp_path, GPU, "".join(lines("AllReduce", 4, size << 20, [0.1]) for size in range(1, 1000)), NOW)

    assert len(read(tmp_path)[0]) == 512


def test_an_old_file_an_unknown_gpu_and_other_names_are_nothing(tmp_path: Path) -> None:
    write(tmp_path, GPU, LINES, NOW - 91)
    write(tmp_path, uuid_of(1), LINES, NOW)
    for name in ("a.prom", "nccl_inspector_metrics_.prom", f"nccl_inspector_metrics_{GPU}.prom.1", "node-pid1.log"):
        (tmp_path / name).write_text(LINES)

    assert read(tmp_path) == ({}, 0)


def test_two_files_of_a_gpu_contradict_each_other_unless_one_is_old(tmp_path: Path) -> None:
    path = write(tmp_path, GPU, LINES, NOW)
    other = path.with_name(f"nccl_inspector_metrics_{GPU}.prom")
    other.write_text(LINES)
    assert read(tmp_path) == ({}, 2)

    os.utime(other, (NOW - 100, NOW - 100))
    assert read(tmp_path) == (FOUND, 0)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "unreadable"])
def test_what_is_no_file_of_its_own_is_not_read(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path, GPU, LINES, NOW)
    if kind == "link":
        path.rename(tmp_path / "a")
        path.symlink_to(tmp_path / "a")
    elif kind == "unreadable" and os.getuid():
        path.chmod(0)
    else:
        path.unlink()
        path.mkdir() if kind == "folder" else os.mkfifo(path)

    assert read(tmp_path) == ({}, 1)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        dumps(tmp_path / "a", [GPU], NOW)
