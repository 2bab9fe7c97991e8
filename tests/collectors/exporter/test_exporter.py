from __future__ import annotations

from gpugauge.collectors.base import Tick
from gpugauge.collectors.exporter.exporter import ExporterCollector
from gpugauge.driver.api import DriverView
from gpugauge.snapshot import LastReload

OFF = DriverView(False, "off")


def exported(exporter: ExporterCollector, prefix: str = "gpugauge_web_", view: DriverView = OFF) -> dict[str, object]:
    section = exporter.collect(Tick(100.0, 1.0, view, ()))
    return {
        " ".join((family.metric.name, *labels)): value
        for family in section.families
        for labels, value in family.samples
        if family.metric.name.startswith(prefix)
    }


def test_last_reload_of_the_web_configuration() -> None:
    last = LastReload(True, 50.0)
    exporter = ExporterCollector(lambda: last)

    assert exported(exporter) == {
        "gpugauge_web_config_last_reload_successful": 1,
        "gpugauge_web_config_last_reload_success_timestamp_seconds": 50.0,
    }
    last = LastReload(False, 50.0)
    assert exported(exporter)["gpugauge_web_config_last_reload_successful"] == 0


def test_web_configuration_is_absent_without_a_file() -> None:
    assert exported(ExporterCollector()) == {}


def test_last_reload_of_the_settings() -> None:
    assert exported(ExporterCollector(config=lambda: LastReload(False, 50.0)), "gpugauge_config_") == {
        "gpugauge_config_last_reload_successful": 0,
        "gpugauge_config_last_reload_success_timestamp_seconds": 50.0,
    }


def test_release_has_its_end_and_only_then() -> None:
    released = DriverView(False, "released", released_until=1000.0)

    assert exported(ExporterCollector(), "gpugauge_driver_", released) == {
        "gpugauge_driver_up released": 0,
        "gpugauge_driver_released": 1,
        "gpugauge_driver_released_until_timestamp_seconds": 1000.0,
    }
    assert exported(ExporterCollector(), "gpugauge_driver_") == {
        "gpugauge_driver_up off": 0,
        "gpugauge_driver_released": 0,
    }


def test_planned_replacements_are_counted_by_reason() -> None:
    view = DriverView(True, "ok", worker_restarts=3, worker_recycles={"memory": 1, "age": 0})

    assert exported(ExporterCollector(), "gpugauge_worker_re", view) == {
        "gpugauge_worker_recycles_total memory": 1,
        "gpugauge_worker_recycles_total age": 0,
        "gpugauge_worker_restarts_total": 3,
    }


def test_simulated_devices_stay_simulated_while_the_driver_is_released() -> None:
    build = exported(ExporterCollector(), "gpugauge_build_info", DriverView(False, "released", simulated=True))

    assert [key.split()[-1] for key in build] == ["true"]
