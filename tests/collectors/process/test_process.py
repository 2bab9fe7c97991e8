"""Memory and busy seconds of processes over generated histories with reused pids."""

from pathlib import Path

import pytest
from qa.worlds.machine import GIB, UUID, Machine, Proc, Process, collector, long, values

from gpugauge.collectors.process.process import ProcessCollector
from gpugauge.driver.api import DeviceReading, ProcessReading
from gpugauge.workload.procfs import process_hash


def run(
    machine: Machine, watched: ProcessCollector, seconds: int, drain: int = 2, begin: int = 0
) -> dict[str, dict[tuple[str, ...], float]]:
    """Tick once per second, with the reading intervals of the daemon. Return the last values."""
    seen: dict[str, dict[tuple[str, ...], float]] = {}
    for second in range(begin, begin + seconds):
        machine.now = float(second)
        if second % 5 == 0:
            machine.read_list()
        seen = values(watched, machine.tick(*(machine.drain() if second % drain == 0 else ())))
    return seen


def test_busy_seconds_are_split_by_the_samples_of_the_driver(tmp_path: Path) -> None:
    machine = Machine([long(10, 0.6), long(11, 0.2)])

    seen = run(machine, collector(machine, tmp_path), 101)

    busy = seen["gpu_process_busy_seconds_total"]
    assert busy[(machine.processes[0].name, UUID)] == pytest.approx(60, abs=4)
    assert busy[(machine.processes[1].name, UUID)] == pytest.approx(20, abs=2)
    assert seen["gpu_unaccounted_busy_seconds_total"][(UUID,)] == pytest.approx(80 - sum(busy.values()), abs=0.6)


def test_sum_of_processes_never_exceeds_the_device(tmp_path: Path) -> None:
    machine = Machine([long(10, 0.6), long(11, 0.4)])
    boasting = machine.drain

    def drain() -> list[object]:
        replies = boasting()
        for row in replies[0].samples["process"]:
            row[2] = 100
        return replies  # type: ignore[return-value]  # a list will do

    machine.drain = drain  # type: ignore[assignment, method-assign]  # watched

    seen = run(machine, collector(machine, tmp_path), 61)

    assert sum(seen["gpu_process_busy_seconds_total"].values()) <= machine.busy(60)


def test_lag_of_the_device_counter_loses_no_time(tmp_path: Path) -> None:
    machine = Machine([long(10, 1.0)], lag=0.3)

    seen = run(machine, collector(machine, tmp_path), 101)

    (busy,) = seen["gpu_process_busy_seconds_total"].values()
    assert busy == pytest.approx(98, abs=4)


def test_garbage_and_unknown_pids_get_no_time(tmp_path: Path) -> None:
    stamp = 10**9
    garbage = [[stamp, 4294967295, 4294967295, 0, 0, 0], [stamp, 77, 90, 0, 0, 0], [0, 10, 90, 0, 0, 0], [stamp]]
    machine = Machine([long(10, 0.5)], garbage=[*garbage, [2**62, 10, 255, 0, 0, 0]])

    seen = run(machine, collector(machine, tmp_path), 61)

    assert len(seen["gpu_process_busy_seconds_total"]) == 1
    assert sum(seen["gpu_process_busy_seconds_total"].values()) == pytest.approx(30, abs=3)


def test_invisible_pid_has_memory_and_no_busy_seconds(tmp_path: Path) -> None:
    machine = Machine([long(10, 0.5)])
    watched = ProcessCollector(Proc(Machine([]), tmp_path), machine.device_busy)

    seen = run(machine, watched, 31)

    unseen = process_hash("", "10", "unseen")
    assert seen["gpu_process_memory_used_bytes"] == {(unseen, UUID): GIB}
    assert seen["gpu_process_busy_seconds_total"] == {(unseen, UUID): 0}
    assert seen["gpu_unaccounted_busy_seconds_total"][(UUID,)] == pytest.approx(15, abs=0.6)


def test_foreign_pid_namespace_has_no_identities(tmp_path: Path) -> None:
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to("pid:[4026532000]")
    machine = Machine([long(10, 0.5)])

    seen = run(machine, collector(machine, tmp_path), 11)

    assert set(seen["gpu_process_memory_used_bytes"]) == {(process_hash("", "10", "unseen"), UUID)}


@pytest.mark.parametrize(("uptime", "credited"), [(True, 9.0), (False, 5.0)])
def test_new_process_gets_time_once_its_age_is_certain(tmp_path: Path, uptime: bool, credited: float) -> None:
    machine = Machine([Process(10, 3, 1e6, 1.0, 21, 1e6)])
    watched = ProcessCollector(Proc(machine, tmp_path, uptime=uptime), machine.device_busy)
    for second in range(31):
        machine.now = float(second)
        seen = values(watched, machine.tick(*(machine.drain() if second % 2 == 0 else ())))

    assert sum(seen["gpu_process_busy_seconds_total"].values()) == pytest.approx(credited, abs=1.1)


def test_counter_of_an_ended_process_stays_and_gauges_are_absent(tmp_path: Path) -> None:
    machine = Machine([Process(10, 0, 30, 1.0, 0, 30)])
    watched = collector(machine, tmp_path, linger=60)

    after = run(machine, watched, 46)
    later = run(machine, watched, 60, begin=46)

    assert "gpu_process_memory_used_bytes" not in after
    assert len(after["gpu_process_busy_seconds_total"]) == len(after["gpu_process_info"]) == 1
    assert later.keys() == {"gpu_unaccounted_busy_seconds_total", "gpu_process_hidden"}


def test_hidden_processes_are_summed_up_and_counted(tmp_path: Path) -> None:
    machine = Machine([long(10 + i, 0.1, (i + 1) * GIB) for i in range(8)])
    watched = collector(machine, tmp_path, most=3)

    seen = run(machine, watched, 61)

    shown = {p.name for p in machine.processes[5:]}
    assert {process for process, _ in seen["gpu_process_memory_used_bytes"]} == {*shown, "other"}
    assert seen["gpu_process_memory_used_bytes"][("other", UUID)] == (1 + 2 + 3 + 4 + 5) * GIB
    assert seen["gpu_process_busy_seconds_total"][("other", UUID)] == pytest.approx(30, abs=3)
    assert seen["gpu_process_hidden"] == {(UUID,): 5}
    assert {process for (process, *_) in seen["gpu_process_info"]} == shown


def test_process_without_known_memory_has_no_memory_series(tmp_path: Path) -> None:
    machine = Machine([long(10, 0.1)])
    machine.generation, machine.listed = 1, (ProcessReading(10, "graphics"),)

    seen = values(collector(machine, tmp_path), machine.tick())

    assert seen.keys() == {"gpu_process_info", "gpu_process_hidden"}


def test_process_listed_twice_is_one(tmp_path: Path) -> None:
    machine = Machine([long(10, 0.1)])
    machine.generation = 1
    machine.listed = (
        ProcessReading(10, "graphics", 5),
        ProcessReading(10, "compute", 5),
        ProcessReading(10, "compute", 7, gpu_instance_id=1),
    )

    seen = values(collector(machine, tmp_path), machine.tick())

    assert list(seen["gpu_process_memory_used_bytes"].values()) == [12]
    assert [labels[3] for labels in seen["gpu_process_info"]] == ["compute"]


def test_same_section_until_something_is_new(tmp_path: Path) -> None:
    machine = Machine([long(10, 0.1)])
    watched = collector(machine, tmp_path)
    machine.read_list()

    first = watched.collect(machine.tick())
    same = watched.collect(machine.tick())
    machine.read_list()

    assert same is first
    assert watched.collect(machine.tick()) is not first


def test_device_that_is_down_has_counters_only(tmp_path: Path) -> None:
    machine = Machine([long(10, 1.0)])
    watched = collector(machine, tmp_path)
    run(machine, watched, 21)
    machine.listed, machine.generation = DeviceReading().processes, machine.generation + 1

    seen = values(watched, machine.tick())

    assert "gpu_process_memory_used_bytes" not in seen
    assert len(seen["gpu_process_busy_seconds_total"]) == 1


def test_counter_continues_after_a_long_outage_of_the_device(tmp_path: Path) -> None:
    machine = Machine([long(10, 1.0)])
    watched = collector(machine, tmp_path, linger=60)
    (before,) = run(machine, watched, 21)["gpu_process_busy_seconds_total"].values()

    machine.up = False
    for second in range(21, 600):
        machine.now = float(second)
        seen = values(watched, machine.tick())
    machine.up = True
    machine.restart_worker()
    (after,) = run(machine, watched, 21, begin=600)["gpu_process_busy_seconds_total"].values()

    assert list(seen["gpu_process_busy_seconds_total"].values()) == [before]
    assert before <= after <= before + 21
