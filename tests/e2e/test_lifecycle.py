"""Release and attach, reload, planned replacements of the worker, and the end of a container whose driver is lost."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.lifecycle import command, counters, device_files, goes_on, hangs, post, simulated, value, workers
from tests.e2e.programs import PATIENCE, daemon, prometheus, wait_for

pytestmark = pytest.mark.e2e


def test_release_frees_the_driver_and_ends_by_itself(tmp_path: Path) -> None:
    with simulated(tmp_path) as running:
        wait_for(lambda: running.series("gpu_process_busy_seconds_total", "process"), 15, "the process is shown")
        before = counters(running.metrics())
        seconds, asked = 20, time.time()
        code, output = command(running, "release", f"--for={seconds}s")
        answered = time.time()
        left = workers(running)
        held = device_files([running.process.pid, *left])
        wait_for(lambda: value(running, "gpugauge_driver_released") == 1, 3, "the release is shown")
        names = {family.name for family in text_string_to_metric_families(running.metrics())}
        reasons = running.series("gpugauge_driver_up", "reason")
        until = value(running, "gpugauge_driver_released_until_timestamp_seconds")
        wait_for(lambda: len(running.series("gpu_power_watts", "uuid")) == 2, 15, "the GPUs are back")
        back = time.time()
        after = counters(running.metrics())
        ups = running.series("gpu_up", "uuid")

    assert (code, output.startswith("the driver is free until ")) == (0, True)
    assert (left, held) == ([], [])
    assert reasons == {("released",): 0}
    assert until is not None
    assert asked - 1 <= until - seconds <= answered + 1
    assert not names & {"gpu_up", "gpu_power_watts", "gpu_memory_used_bytes", "gpu_utilization_ratio"}
    assert "gpu_info" in names
    assert back - asked >= seconds
    assert set(ups.values()) == {1}
    fallen = {key: (old, after.get(key)) for key, old in before.items() if key in after and after[key] < old}
    assert fallen == {}
    assert {key for key in before if key[0].startswith("gpu")} <= after.keys()


def test_attach_ends_a_release_and_a_second_release_moves_the_end(tmp_path: Path) -> None:
    with simulated(tmp_path) as running:
        command(running, "release", "--for=1h")
        command(running, "release", "--for=2h")
        wait_for(
            lambda: (value(running, "gpugauge_driver_released_until_timestamp_seconds") or 0) > time.time() + 7000,
            3,
            "the end has moved",
        )
        attached = command(running, "attach")
        wait_for(lambda: set(running.series("gpu_up", "uuid").values()) == {1}, 5, "the GPUs are back")
        log = running.log.read_text()

    assert attached == (0, "the driver answers, GPUs: 2")
    assert "level=error" not in log


def test_release_during_a_call_that_hangs(tmp_path: Path) -> None:
    hang = "faults: [{call: nvmlDeviceGetUtilizationRates, gpu: 1, start: 3, hang: true}]\n"
    deadline = 60
    with simulated(tmp_path, f"--driver.deadline-seconds={deadline}", more=hang) as running:
        wait_for(lambda: hangs(running), 60, "the call hangs")
        start = time.monotonic()
        code, output = command(running, "release", "--for=1h")
        seconds = time.monotonic() - start
        left = workers(running)
        wait_for(lambda: value(running, "gpugauge_driver_released") == 1, 3, "the release is shown")
        restarts = value(running, "gpugauge_worker_restarts_total")

    assert (code, left, restarts) == (0, [], 0), output
    assert seconds < deadline / 2


def test_nothing_changes_by_http_unless_enabled(tmp_path: Path) -> None:
    with simulated(tmp_path, "--no-web.enable-lifecycle") as running:
        codes = [post(running, f"/-/{path}")[0] for path in ("release?for=1m", "attach", "reload")]
        code, output = command(running, "release", "--for=1m")
        alive = workers(running)

    assert codes == [403, 403, 403]
    assert (code, "--web.enable-lifecycle" in output, len(alive)) == (1, True, 1)


def test_reload_by_signal_keeps_counters_and_bad_files_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    file.write_text("metrics: {exclude: [gpu_power_*]}\n")
    with simulated(tmp_path, f"--config.file={file}") as running:
        (worker,) = workers(running)
        reloaded = "gpugauge_config_last_reload_success_timestamp_seconds"
        first = value(running, reloaded)
        before = counters(running.metrics())
        shown = bool(running.series("gpu_power_watts", "uuid"))

        file.write_text("log: {level: debug}\ncollector: {links: false}\nsampling: {interval_seconds: 0.5}\n")
        running.process.send_signal(signal.SIGHUP)
        wait_for(lambda: running.series("gpu_power_watts", "uuid"), 5, "the new settings are in use")
        wait_for(lambda: value(running, reloaded) != first, 5, "the good reload is counted")
        second = value(running, reloaded)
        collectors = {labels[0] for labels in running.series("gpugauge_collector_success", "collector")}
        links = running.series("gpu_pcie_replays_total", "uuid")  # read now: the profiling collector adds it later

        file.write_text("log:\n  levle: info\n")
        running.process.send_signal(signal.SIGHUP)
        wait_for(lambda: value(running, "gpugauge_config_last_reload_successful") == 0, 5, "the failed reload is shown")
        third = value(running, reloaded)
        status, answer = post(running, "/-/reload")
        still = bool(running.series("gpu_power_watts", "uuid"))

        file.write_text("web: {max_connections: 100}\n")
        good = post(running, "/-/reload")
        wait_for(lambda: running.series("gpu_pcie_replays_total", "uuid"), 40, "the collector is back")
        wait_for(lambda: value(running, "gpugauge_config_last_reload_successful") == 1, 5, "the good reload is shown")
        after = counters(running.metrics())
        same = workers(running) == [worker]
        log = running.log.read_text()

    assert (shown, still, same) == (False, True, True)
    assert first is not None
    assert second is not None
    assert third == second > first
    assert ("links" in collectors, links) == (False, {})
    assert status == 500
    assert f"{file}:2: log.levle" in answer
    assert "log.level" in answer
    assert f"{file}:2: log.levle" in log
    assert good[0] == 200
    assert "needs a restart: web.max_connections" in good[1]
    assert {key: after[key] for key, old in before.items() if key in after and after[key] < old} == {}


@pytest.mark.everything
def test_planned_replacements_of_the_worker_leave_no_gap_in_the_counters(tmp_path: Path) -> None:
    # Busy for half of each second, so that parts counted twice or not at all change the share.
    work = "processes: [{pid: 4242, gpus: [0], memory: 1GiB, load: {shape: square, period: 1, low: 0, high: 1}}]\n"
    with (
        simulated(tmp_path, "--driver.worker-max-seconds=4", work=work) as running,
        prometheus(tmp_path, running.url.removeprefix("http://")) as server,
    ):
        recycles = 'gpugauge_worker_recycles_total{reason="age"}'
        wait_for(lambda: (server.value(recycles) or 0) >= 5, 60, "the worker was replaced five times")
        # Prometheus may have started seconds after the daemon.
        wait_for(lambda: server.value(f"{recycles} offset 21s") is not None, 60, "a whole window was scraped")
        busy = 'increase(gpu_busy_seconds_total{engine="gpu"}[20s])'
        observed = 'increase(gpu_observed_seconds_total{engine="gpu"}[20s])'
        share = server.value(f"max({busy}) / max({observed})")
        covered = server.value(f"min({observed})")
        down = server.value("count_over_time(gpu_up[20s]) - sum_over_time(gpu_up[20s]) > 0")
        restarts = server.value("gpugauge_worker_restarts_total")
        lost = server.value("min_over_time(up[20s])")

    assert share == pytest.approx(0.5, abs=0.03)
    assert covered is not None
    assert covered > 18.5
    assert (down, restarts, lost) == (None, 0, 1)


def test_added_device_and_returned_device_are_found(tmp_path: Path) -> None:
    scenario = tmp_path / "plug.yaml"
    scenario.write_text(
        "description: a GPU comes, another is gone for a while\n"
        "gpus:\n"
        "  - {model: h100, uuid: GPU-stays}\n"
        "  - {model: h100, uuid: GPU-away, lost_at: 5, back_at: 26}\n"
        "  - {model: h100, uuid: GPU-comes, plugged_at: 8}\n"
    )
    with daemon(tmp_path, f"--simulate={scenario}") as running:

        def ups() -> dict[str, float]:
            return {uuid: up for (uuid,), up in running.series("gpu_up", "uuid").items()}

        first = ups()
        wait_for(lambda: ups().get("GPU-away") == 0, 60, "one is lost")
        wait_for(lambda: ups().get("GPU-comes") == 1, 60, "one has come")
        wait_for(lambda: ups() == {"GPU-stays": 1, "GPU-away": 1, "GPU-comes": 1}, 30, "one is back")
        recycles = running.series("gpugauge_worker_recycles_total", "reason")["cards",]
        restarts = value(running, "gpugauge_worker_restarts_total")

    assert first == {"GPU-stays": 1, "GPU-away": 1}
    assert (recycles, restarts) == (2, 0)


def test_upgraded_driver_is_reported_and_opened_by_a_new_worker(tmp_path: Path) -> None:
    switch = tmp_path / "upgrade"
    upgrade = (
        "faults:\n"
        f"  - {{while_exists: {switch}, code: 1}}\n"
        f"  - {{call: nvmlInitWithFlags, while_exists: {switch}, code: 18}}\n"
    )
    with simulated(tmp_path, more=upgrade) as running:
        switch.touch()
        wait_for(
            lambda: ("library_mismatch",) in running.series("gpugauge_driver_up", "reason"),
            10,
            "it is reported as down",
        )
        down = running.series("gpu_up", "uuid")
        switch.unlink()
        wait_for(lambda: running.series("gpugauge_driver_up", "reason") == {("ok",): 1}, 15, "it is back")
        wait_for(lambda: set(running.series("gpu_up", "uuid").values()) == {1}, 5, "the GPUs are back")

    assert set(down.values()) == {0}


@pytest.mark.parametrize("fault", ["crash: true", "hang: true"])
def test_crash_or_hang_of_the_library_is_contained(tmp_path: Path, fault: str) -> None:
    more = f"faults: [{{call: nvmlDeviceGetMemoryInfo_v2, gpu: 1, start: 4, {fault}}}]\n"
    with simulated(tmp_path, more=more) as running:
        (first,) = workers(running)

        def ups() -> dict[str, float]:
            by_uuid = running.series("gpu_up", "uuid")
            return {index: by_uuid[uuid,] for uuid, index in running.series("gpu_info", "uuid", "index")}

        def left_out() -> bool:
            # The GPU is down from the first crash on, and there is no worker for a moment after each.
            found = value(running, "gpugauge_worker_restarts_total")
            return ups() == {"0": 1, "1": 0} and found == expected and len(workers(running)) == 1

        expected = 2 if "crash" in fault else 1
        wait_for(left_out, 15, "the GPU is left out, its neighbour goes on")
        (second,) = workers(running)
        goes_on(running, seconds=3)
        restarts = value(running, "gpugauge_worker_restarts_total")
        reason = running.series("gpugauge_driver_up", "reason")
        same = workers(running) == [second]

    assert first != second
    assert same
    assert restarts == expected
    assert reason == {("ok",): 1}


def test_container_whose_driver_is_lost_ends_with_69(tmp_path: Path) -> None:
    gone = "faults: [{call: nvml*, start: 6, code: 9}]\n"
    with simulated(tmp_path, "--driver.lost-exit-seconds=4", more=gone) as running:
        start = time.monotonic()
        code = running.process.wait(PATIENCE)
        seconds = time.monotonic() - start
        log = running.log.read_text()

    assert code == 69
    assert seconds > 4
    (last,) = re.findall(r"level=error.*driver lost, exiting.*", log)
    assert "modprobe nvidia" in last


def test_driver_that_never_answered_or_is_released_ends_nothing(tmp_path: Path) -> None:
    never = "faults: [{call: nvmlInitWithFlags, code: 9}]\n"
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with (
        simulated(tmp_path / "a", "--driver.lost-exit-seconds=1", more=never) as one,
        simulated(tmp_path / "b", "--driver.lost-exit-seconds=1") as other,
    ):
        command(other, "release", "--for=1h")
        for running in (one, other):
            goes_on(running, seconds=3)
        ended = [running.process.poll() for running in (one, other)]

    assert ended == [None, None]
