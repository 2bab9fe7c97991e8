from gpugauge.collectors.base import Tick
from gpugauge.collectors.exporter.driver import DriverCollector
from gpugauge.driver.api import DriverView, Reply
from gpugauge.snapshot import Section


def tick(at: float, *replies: Reply) -> Tick:
    return Tick(at, at, DriverView(True, "ok"), replies)


def values(section: Section, name: str) -> dict[tuple[str, ...], object]:
    return {labels: value for f in section.families if f.metric.name == name for labels, value in f.samples}


def test_calls_are_summed_over_replies() -> None:
    collector = DriverCollector()
    collector.collect(tick(1, Reply(1, "read", 0, calls={"nvmlDeviceGetName": [2, 0.5, 0.4]})))

    section = collector.collect(tick(9, Reply(2, "read", 0, calls={"nvmlDeviceGetName": [1, 0.1, 0.1]})))

    assert values(section, "gpugauge_driver_calls_total") == {("nvmlDeviceGetName",): 3}
    assert values(section, "gpugauge_driver_call_seconds_total") == {("nvmlDeviceGetName",): 0.6}
    assert values(section, "gpugauge_driver_call_longest_seconds") == {("nvmlDeviceGetName",): 0.4}


def test_unsupported_reading_is_no_error_and_counts_once() -> None:
    collector = DriverCollector()
    errors = {"fan_rpm": "not_supported", "power_milliwatts": "unknown"}
    first = Reply(1, "read", 0, errors=errors, uuid="GPU-a")

    section = collector.collect(tick(1, first, first, Reply(3, "read", 0, failed="gpu_is_lost", uuid="GPU-a")))

    assert values(section, "gpugauge_driver_errors_total") == {
        ("GPU-a", "power_milliwatts", "unknown"): 2,
        ("GPU-a", "all", "gpu_is_lost"): 1,
    }
    assert values(section, "gpugauge_driver_unsupported") == {("GPU-a",): 1}


def test_reading_that_is_supported_again_does_not_count() -> None:
    collector = DriverCollector()
    errors = dict.fromkeys(("fan_rpm", "power_milliwatts", "samples_gpu"), "not_supported")
    again = {"normal": {"power_milliwatts": 70_000}}
    collector.collect(tick(1, Reply(1, "read", 0, errors=errors, uuid="GPU-a")))

    section = collector.collect(tick(9, Reply(2, "read", 0, again, samples={"gpu": []}, uuid="GPU-a")))

    assert values(section, "gpugauge_driver_unsupported") == {("GPU-a",): 1}


def test_section_is_new_every_few_seconds_and_complete() -> None:
    collector = DriverCollector()
    answer = Reply(1, "read", 0, calls={"nvmlDeviceGetName": [1, 0.0, 0.0]})

    first = collector.collect(tick(1, answer))
    second = collector.collect(tick(2, answer))
    third = collector.collect(tick(7, answer))

    assert first is second
    assert values(third, "gpugauge_driver_calls_total") == {("nvmlDeviceGetName",): 3}
