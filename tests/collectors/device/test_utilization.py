"""Rows from the worker's replies: the source of each engine, and the counters of lost GPUs."""

from dataclasses import replace
from typing import Any

import pytest

from gpugauge.collectors.base import Tick
from gpugauge.collectors.device.utilization import UtilizationCollector
from gpugauge.driver.api import Device, DeviceReading, DriverView, Reply
from gpugauge.metric import LabelValues, Value
from gpugauge.snapshot import Section

UUID = "GPU-a"


def device(*, up: bool = True, generation: int = 0, **reading: Any) -> Device:
    return Device(UUID, up, "ok" if up else "gpu_is_lost", DeviceReading(**reading), {"fast": generation})


def reply(samples: dict[str, list[list[int]]] | None = None, **fast: int) -> Reply:
    return Reply(1, "read", 0, {"fast": fast} if fast else {}, samples=samples or {}, uuid=UUID)


def ring(second: float, percent: int) -> list[list[int]]:
    """Return the ten samples of one second."""
    return [[round((second + i / 10) * 1e6), percent] for i in range(1, 11)]


class Run:
    """A collector with one tick per second."""

    def __init__(self) -> None:
        self.collector, self.now = UtilizationCollector(), 0.0

    def tick(self, *replies: Reply, shown: Device | None = None) -> dict[str, dict[LabelValues, Value]]:
        self.now += 1
        view = DriverView(True, "ok", devices=(shown or device(generation=int(self.now)),))
        section = self.collector.collect(Tick(1.7e9 + self.now, self.now, view, replies))
        return {family.metric.name: dict(family.samples) for family in section.families}


def test_rings_feed_the_counters_of_their_engines() -> None:
    run = Run()
    run.tick(reply({"gpu": ring(0, 0), "encoder": []}, utilization_percent=0, encoder_utilization_percent=0))
    exported = run.tick(
        reply({"gpu": ring(1, 50), "encoder": []}, utilization_percent=50, encoder_utilization_percent=0)
    )

    assert exported["gpu_busy_seconds_total"] == pytest.approx({(UUID, "gpu"): 0.5, (UUID, "encoder"): 0})
    assert exported["gpu_observed_seconds_total"] == pytest.approx({(UUID, "gpu"): 1, (UUID, "encoder"): 1})
    assert exported["gpu_unobserved_seconds_total"] == {(UUID, "gpu"): 0, (UUID, "encoder"): 0}
    assert exported["gpu_busy_source"] == {(UUID, "gpu", "samples"): 1, (UUID, "encoder", "samples"): 1}
    assert exported["gpu_utilization_ratio"] == pytest.approx({(UUID,): 0.5})
    assert run.collector.busy_seconds(UUID) == pytest.approx(0.5)
    assert run.collector.busy_seconds("GPU-other") is None


def test_engine_without_a_ring_is_polled() -> None:
    run = Run()
    for percent in (90, 50, 100):
        exported = run.tick(
            reply(utilization_percent=percent), shown=device(generation=percent, utilization_percent=percent)
        )

    assert exported["gpu_busy_seconds_total"] == pytest.approx({(UUID, "gpu"): 1.5})
    assert exported["gpu_observed_seconds_total"] == pytest.approx({(UUID, "gpu"): 2})
    assert exported["gpu_busy_source"] == {(UUID, "gpu", "polled"): 1}
    assert exported["gpu_utilization_ratio"] == {(UUID,): 1.0}


def test_reply_without_samples_does_not_switch_to_polling() -> None:
    run = Run()
    run.tick(reply({"gpu": ring(0, 0)}, utilization_percent=0))
    run.tick(reply(utilization_percent=100))
    exported = run.tick(reply({"gpu": ring(1, 100) + ring(2, 100)}, utilization_percent=100))

    assert exported["gpu_busy_seconds_total"] == pytest.approx({(UUID, "gpu"): 2})
    assert exported["gpu_busy_source"] == {(UUID, "gpu", "samples"): 1}


def test_missing_ring_is_replaced_by_polling() -> None:
    run = Run()
    run.tick(reply({"gpu": ring(0, 0)}, utilization_percent=0))
    for _ in range(40):
        exported = run.tick(reply(utilization_percent=100))

    assert exported["gpu_busy_source"] == {(UUID, "gpu", "polled"): 1}
    assert exported["gpu_busy_seconds_total"] == pytest.approx({(UUID, "gpu"): 9})
    assert exported["gpu_unobserved_seconds_total"] == pytest.approx({(UUID, "gpu"): 31}, abs=0.2)


def test_device_without_readings_has_no_rows() -> None:
    run = Run()
    exported = run.tick(reply(temperature_celsius=40))

    assert exported == {}


def test_lost_device_has_no_rows_and_keeps_its_counters() -> None:
    run = Run()
    run.tick(reply({"gpu": ring(0, 0)}, utilization_percent=100))
    before = run.tick(reply({"gpu": ring(1, 100)}, utilization_percent=100))
    lost = run.tick(shown=device(up=False))
    after = run.tick(reply({"gpu": ring(2, 100) + ring(3, 100)}, utilization_percent=100))

    assert before["gpu_busy_seconds_total"] == pytest.approx({(UUID, "gpu"): 1})
    assert lost == {}
    assert after["gpu_busy_seconds_total"] == pytest.approx({(UUID, "gpu"): 3})


def test_failed_percentage_does_not_count_as_idle() -> None:
    run = Run()
    run.tick(reply({"gpu": ring(0, 0)}, utilization_percent=0))
    failed = Reply(2, "read", 0, {"fast": {}}, {"utilization_percent": "unknown"}, samples={"gpu": []}, uuid=UUID)
    exported = run.tick(failed)

    assert exported["gpu_observed_seconds_total"] == {(UUID, "gpu"): 0}
    assert exported["gpu_unobserved_seconds_total"] == pytest.approx({(UUID, "gpu"): 1}, abs=0.1)


def test_ring_after_a_driver_restart_is_a_new_ring() -> None:
    run = Run()
    run.tick(reply({"gpu": ring(100, 0)}, utilization_percent=0))
    run.tick(reply({"gpu": ring(101, 0)}, utilization_percent=0))
    # The clock of the new ring starts at 0; the samples of the old ring are lost.
    exported = run.tick(replace(reply({"gpu": ring(5, 100)[:5]}, utilization_percent=100), worker=1))

    assert exported["gpu_busy_seconds_total"] == pytest.approx({(UUID, "gpu"): 0.5})
    assert exported["gpu_unobserved_seconds_total"] == pytest.approx({(UUID, "gpu"): 0.5})


def test_new_worker_continues_with_the_same_ring() -> None:
    run = Run()
    run.tick(reply({"gpu": ring(0, 0)}, utilization_percent=0))
    exported = run.tick(replace(reply({"gpu": ring(0, 0) + ring(1, 100)}, utilization_percent=100), worker=1))

    assert exported["gpu_busy_seconds_total"] == pytest.approx({(UUID, "gpu"): 1})
    assert exported["gpu_unobserved_seconds_total"] == {(UUID, "gpu"): 0}


def test_late_tick_is_no_clock_step() -> None:
    run = Run()
    for second in range(6):
        received = second + (0.2 if second % 2 else 0.9)
        samples = {"gpu": ring(0, 0) if second == 0 else []}
        exported = run.tick(replace(reply(samples, utilization_percent=0), received=received))

    assert exported["gpu_unobserved_seconds_total"] == {(UUID, "gpu"): 0}
    assert exported["gpu_observed_seconds_total"] == pytest.approx({(UUID, "gpu"): 4.2})


def test_samples_of_processes_are_not_an_engine() -> None:
    run = Run()
    exported = run.tick(reply({"process": [[1, 2, 3, 4, 5, 6]]}))

    assert exported == {}


def test_same_section_without_replies() -> None:
    collector = UtilizationCollector()
    view = DriverView(True, "ok", devices=(device(generation=1, utilization_percent=3),))

    first = collector.collect(Tick(1.0, 1.0, view, (reply(utilization_percent=3),)))

    assert collector.collect(Tick(2.0, 2.0, view)) is first
    assert collector.collect(Tick(3.0, 3.0, view, (reply(utilization_percent=3),))) is not first


def test_same_section_while_the_rings_are_not_read() -> None:
    collector = UtilizationCollector()

    def tick(now: float, *replies: Reply) -> Section:
        view = DriverView(True, "ok", devices=(device(generation=int(now), utilization_percent=int(now)),))
        return collector.collect(Tick(now, now, view, replies))

    engines = ("gpu", "memory")
    tick(1.0, reply({engine: ring(0, 50) for engine in engines}, utilization_percent=50))
    first = tick(2.0, reply({engine: ring(1, 50) for engine in engines}, utilization_percent=50))

    assert tick(3.0, reply(utilization_percent=9)) is first
    after = tick(4.0, reply({engine: ring(2, 50) for engine in engines}, utilization_percent=50))
    assert after is not first
    assert tick(33.0) is after
    # Without a reply for this time the counters are absent.
    gone = tick(35.0)
    assert "gpu_busy_seconds_total" not in {family.metric.name for family in gone.families}


def test_the_percentage_is_shown_and_kept_current_while_a_ring_is_silent() -> None:
    run = Run()
    run.tick(reply({"gpu": ring(0, 0)}, utilization_percent=0))
    run.tick(reply({"gpu": ring(1, 100)}, utilization_percent=100))
    shown = []
    for percent in (30, 40, 50, 60, 70, 80, 90):
        exported = run.tick(
            reply(utilization_percent=percent), shown=device(generation=percent, utilization_percent=percent)
        )
        shown.append(exported["gpu_utilization_ratio"][UUID,])
        assert exported["gpu_busy_source"] == {(UUID, "gpu", "samples"): 1}

    assert shown[0] == pytest.approx(1.0)  # the mean of the last 5 s
    assert shown[-2:] == pytest.approx([0.8, 0.9])


def test_the_source_changes_after_30_s_and_not_before() -> None:
    run = Run()
    run.tick(reply({"gpu": ring(0, 0)}, utilization_percent=0))
    sources = []
    for _ in range(40):
        exported = run.tick(reply(utilization_percent=100))
        sources.append(next(iter(exported.get("gpu_busy_source", {None: 1}))))

    assert sources.index((UUID, "gpu", "polled")) == 30  # more than 30 s after the last sample
    run.tick(reply({"gpu": ring(100, 0)}, utilization_percent=0))
    exported = run.tick(reply({"gpu": ring(101, 0)}, utilization_percent=0))
    assert exported["gpu_busy_source"] == {(UUID, "gpu", "samples"): 1}


def test_each_engine_has_its_own_percentage_and_counters() -> None:
    run = Run()
    names = ("utilization", "memory_utilization", "encoder_utilization", "decoder_utilization")
    for _ in range(3):
        fast = {f"{name}_percent": 20 * number for number, name in enumerate(names, 1)}
        exported = run.tick(Reply(1, "read", 0, {"fast": fast}, uuid=UUID))

    engines = ("gpu", "memory", "encoder", "decoder")
    expected = {(UUID, engine): 0.2 * number * 2 for number, engine in enumerate(engines, 1)}
    assert exported["gpu_busy_seconds_total"] == pytest.approx(expected)
    assert list(exported["gpu_utilization_sample_ratio"]) == [(UUID,)]
    histogram = exported["gpu_utilization_sample_ratio"][UUID,]
    assert histogram.total == pytest.approx(0.4)  # type: ignore[union-attr] # a histogram


def test_a_failed_reply_is_no_percentage() -> None:
    run = Run()
    run.tick(reply({"gpu": ring(0, 0)}, utilization_percent=0))
    run.tick(replace(reply(), failed="unknown"))
    exported = run.tick(reply({"gpu": []}))

    # The last percentage, 0, is of before the failure: the silent ring is not known to be idle.
    assert exported["gpu_observed_seconds_total"] == {(UUID, "gpu"): 0}


def test_replies_of_no_gpu_are_ignored() -> None:
    run = Run()

    assert run.tick(replace(reply({"gpu": ring(0, 0)}), uuid="")) == {}
    assert run.collector.busy_seconds("") is None


def test_busy_seconds_without_a_counted_gpu_engine() -> None:
    run = Run()
    run.tick(reply(encoder_utilization_percent=20))

    assert run.collector.busy_seconds(UUID) is None
