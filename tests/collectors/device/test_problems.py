from __future__ import annotations

from typing import Any

import pytest

from gpugauge.collectors.base import Tick
from gpugauge.collectors.device.problems import FaultsCollector
from gpugauge.driver.api import RELEASED, Device, DeviceReading, DriverView
from gpugauge.faults.judged import Judged
from gpugauge.node.node import Load, Node
from gpugauge.settings.model import Faults, Settings


class Run:
    def __init__(self, load: float = 0.0) -> None:
        self.load, self.now, self.busy = load, 0.0, 0.0
        self.collector = FaultsCollector()

    def tick(self, reason: str = "ok", **reading: Any) -> Judged:
        self.now, self.busy = self.now + 5, self.busy + 5 * self.load
        device = Device("GPU-a", reason == "ok", reason, DeviceReading(index=3, **reading), {"normal": int(self.now)})
        node = Node(1e9 + self.now, self.now, loads={"GPU-a": Load(self.busy, self.now)})
        driver = DriverView(True, "ok", devices=(device,))
        return self.collector.collect(Tick(node.timestamp, node.monotonic, driver, node=node))

    def names(self, ticks: int = 1, **reading: Any) -> set[str]:
        return {each.runbook for each in [self.tick(**reading) for _ in range(ticks)][-1].faults["GPU-a"]}


def values(section: Judged) -> dict[str, dict[tuple[str, ...], Any]]:
    return {family.metric.name: dict(family.samples) for family in section.families}


def test_a_fault_is_exported_while_it_is_there() -> None:
    run = Run()
    assert values(run.tick()) == {"gpu_problems": {("GPU-a",): 0}}

    hot: dict[str, Any] = {"temperature_celsius": 88, "temperature_slowdown_celsius": 90, "remapped_rows_pending": True}
    found = values(run.tick(**hot, recovery_action="gpu_reset"))
    severities = {"GpuNeedsReset": "critical", "GpuResetPending": "warning", "GpuHot": "warning"}
    assert found["gpu_problem"] == {("GPU-a", *each): 1 for each in severities.items()}
    assert found["gpu_problems"] == {("GPU-a",): 3}
    assert [labels[1:6] for labels in found["gpu_problem_info"]] == [
        ("GpuNeedsReset", "", "", "gpu_reset", "needs recovery"),
        ("GpuResetPending", "", "", "row_remap_pending", "reset pending"),
        ("GpuHot", "", "", "", "hot"),
    ]
    assert run.tick(**hot) is run.tick(**hot)

    assert values(run.tick(reason="gpu_is_lost"))["gpu_problem"] == {("GPU-a", "GpuLost", "critical"): 1}
    assert values(run.tick(reason=RELEASED)) == {}


def test_settings_are_the_thresholds() -> None:
    run = Run()
    run.collector.configure(Settings(faults=Faults(near_slowdown_celsius=1.0)))

    assert run.names(temperature_celsius=88, temperature_slowdown_celsius=90) == set()
    assert run.names(temperature_celsius=89, temperature_slowdown_celsius=90) == {"GpuHot"}


@pytest.mark.parametrize("counted", [True, False])
def test_clocks_are_judged_over_the_window_and_under_load(counted: bool) -> None:
    for load, active, expected in ((0.5, 3, True), (0.1, 3, False), (0.5, 1, False)):
        run, seconds = Run(load), 0.0
        for tick in range(60):
            lowered = tick % 10 < active
            seconds += 5 * lowered
            reasons = ["sw_thermal_slowdown"] * lowered
            nanoseconds = {"sw_thermal_slowdown": int(seconds * 1e9)} if counted else {}
            found = run.names(clocks_event_reasons=reasons, clocks_event_nanoseconds=nanoseconds)
        assert found == ({"GpuThrottled"} if expected else set())


def test_a_link_that_was_narrow_under_load_stays_so_until_it_is_wide() -> None:
    run = Run(0.0)
    narrow = {"pcie_width": 8, "pcie_width_max": 16}
    assert run.names(70, **narrow) == set()
    run.load = 0.9
    assert run.names(70, **narrow) == {"GpuPcieDegraded"}
    run.load = 0.0
    assert run.names(140, **narrow) == {"GpuPcieDegraded"}
    assert run.names(pcie_width=16, pcie_width_max=16) == run.names(**narrow) == set()


def test_a_fault_is_logged_when_it_begins_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    run = Run()
    for celsius in (85, 84, 85, 85, *[84] * 15):
        run.tick(temperature_celsius=celsius, temperature_slowdown_celsius=90)

    assert [r.getMessage().partition(":")[0] for r in caplog.records] == [
        "GPU fault GpuHot",
        "GPU fault GpuHot is over",
    ]


def test_a_fault_has_its_begin_and_whether_it_may_have_been_there_before() -> None:
    run = Run()

    def since(reason: str = "ok", **reading: Any) -> dict[str, float | None]:
        found = run.tick(reason, **reading).faults["GPU-a"]
        return {each.reason or each.runbook: None if each.earlier else each.since for each in found}

    pending: dict[str, Any] = {"remapped_rows_pending": True}
    hot = {**pending, "temperature_celsius": 88, "temperature_slowdown_celsius": 90}
    for _ in range(13):
        assert since(**pending) == {"row_remap_pending": None}
    begin = 1e9 + run.now + 5
    assert since(**hot)["GpuHot"] == since(**hot)["GpuHot"] == begin
    since(**pending)
    assert since(**hot)["GpuHot"] == begin  # it wavers
    since("gpu_is_lost")
    assert since(**hot, recovery_action="gpu_reset") == {"row_remap_pending": None, "GpuHot": begin, "gpu_reset": None}
