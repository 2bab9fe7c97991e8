from __future__ import annotations

import json
import random
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpugauge import catalog
from gpugauge.collectors.base import Tick
from gpugauge.collectors.device.events import EventsCollector
from gpugauge.collectors.process.process import ProcessCollector
from gpugauge.collectors.training.verdict import VerdictCollector
from gpugauge.daemon import people
from gpugauge.daemon.assembly import Parts
from gpugauge.daemon.machine import real_machine
from gpugauge.daemon.reload import Reloader, is_live
from gpugauge.driver.api import Device, DeviceReading, DriverView
from gpugauge.faults.repair import Site
from gpugauge.settings.kinds import ConfigError
from gpugauge.settings.load import load
from gpugauge.settings.model import Settings
from gpugauge.snapshot import Snapshot
from gpugauge.status.history import History
from gpugauge.web.routes import FOR_PEOPLE
from tests.drawn import cases, seeds


def settings(folder: Path, **more: Any) -> Settings:
    file = folder / "settings.yaml"
    file.write_text(json.dumps({"simulate": "workstation", "hook": {"socket": str(folder / "hook.sock")}, **more}))
    return load(file, {}, {})


@contextmanager
def assembled(first: Settings) -> Iterator[tuple[Parts, ExitStack]]:
    with ExitStack() as stack:
        yield Parts(first, stack, Reloader(first, lambda: first)), stack


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    with assembled(settings(tmp_path)) as (parts, _):
        yield parts


def names(parts: Parts) -> tuple[set[str], set[str]]:
    """Return the names of the collectors and of the metrics in the scrape after a tick."""
    snapshot = parts.sampler.tick(1.7e9, 100.0)
    body = parts.exposition.respond(None, None, 100.0).body.decode()
    return {s.collector for s in snapshot.sections}, set(re.findall("^# TYPE (\\S+)", body, re.MULTILINE))


@seeds(range(8))
def test_whatever_is_left_out_of_the_scrapes_the_page_knows_the_same(
    seed: int, parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    published: list[Snapshot] = []
    monkeypatch.setattr(parts._history, "feed", published.append)

    parts.configure(settings(tmp_path))
    known = names(parts)[1]
    exported = sorted(known & {row.name for row in catalog.metrics()})
    first, *others = chance.sample(exported, 6)
    drawn = [first.partition("_")[0] + "_*", *others]
    parts.configure(settings(tmp_path, metrics={chance.choice(["include", "exclude"]): drawn}))
    left = names(parts)[1]

    whole, selected = ([f.metric.name for s in each.sections for f in s.families] for each in published)
    assert left < known
    assert sorted(whole) == sorted(selected)


def test_live_settings_are_applied(parts: Parts, tmp_path: Path) -> None:
    before = names(parts)
    given: dict[str, Any] = {
        "hook": {"linger_seconds": 7},
        "collector": {"events": False},
        "metrics": {"exclude": ["gpugauge_build_info"]},
        "process": {"max_per_device": 3},
        "verdict": {"stalled_seconds": 9},
        "sampling": {"interval_seconds": 2, "stale_after_seconds": 11},
        "driver": {"worker_max_seconds": 60, "deadline_seconds": 5},
    }
    assert all(is_live(f"{section}.{name}") for section, values in given.items() for name in values)
    given["hook"]["socket"] = str(tmp_path / "hook.sock")
    parts.configure(settings(tmp_path, **given))
    after = names(parts)

    assert before[0] - after[0] == {"events"}
    assert ("gpugauge_build_info" in before[1], "gpugauge_build_info" in after[1]) == (True, False)
    by_type = {type(collector): collector for collector in parts._collectors}
    process, verdict = by_type[ProcessCollector], by_type[VerdictCollector]
    assert isinstance(process, ProcessCollector)
    assert isinstance(verdict, VerdictCollector)
    assert (process.max_per_device, verdict.stalled_seconds) == (3, 9)
    assert [source.linger_seconds for source in parts._session_sources] == [7, 7]
    assert parts.exposition.stale_after == 11


def test_invalid_settings_change_nothing(parts: Parts, tmp_path: Path) -> None:
    before = names(parts)

    with pytest.raises(ConfigError):
        parts.configure(settings(tmp_path, metrics={"include": ["gpu_powr"]}, collector={"events": False}))

    assert names(parts) == before
    assert parts.settings.metrics.include == ()


def test_errors_from_before_the_start_are_kept_beside_the_state_file(tmp_path: Path) -> None:
    """The second GPU of the scenario had Xid 119, which is in its kernel log."""
    first = settings(tmp_path, simulate="bad-from-start", driver={"state_file": str(tmp_path / "state.json")})
    device = Device("GPU-b", True, "ok", DeviceReading(pci_bus_id="00000000:11:00.0"), {})
    with assembled(first) as (parts, _):
        (events,) = (collector for collector in parts._collectors if isinstance(collector, EventsCollector))
        events.collect(Tick(time.time(), time.monotonic(), DriverView(True, "ok", devices=(device,))))

    stored = json.loads((tmp_path / "state-xids.json").read_text())
    assert (stored["boot"], [*stored["gpus"]["GPU-b"]["xids"]]) == ("bad-from-start", ["119"])


def test_open_lifecycle_endpoints_are_logged_once(
    parts: Parts, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    web = {"enable_lifecycle": True}
    for _ in range(3):
        parts.configure(settings(tmp_path, web=web))
    parts.configure(settings(tmp_path))

    messages = [record.getMessage() for record in caplog.records if "lifecycle" in record.getMessage()]
    assert [(m.split(":")[0], m.endswith("set web.config.file")) for m in messages] == [
        ("web.enable_lifecycle without users or client certificates", True),
        ("the lifecycle endpoints are closed to unknown clients", False),
    ]


@cases("hashed", ["", "  alice: $2y$04$" + "a" * 53])
def test_lifecycle_endpoints_that_need_a_login_are_not_logged(
    tmp_path: Path, hashed: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "web.yml").write_text(f"basic_auth_users:\n{hashed}\n")
    web = {"enable_lifecycle": True, "config": {"file": str(tmp_path / "web.yml")}}
    with assembled(settings(tmp_path, web=web)):
        pass

    assert ("web.enable_lifecycle without" in caplog.text) == (not hashed)


def test_a_simulation_without_a_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(**_: Any) -> None:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", missing)
    with pytest.raises(ConfigError) as raised, assembled(settings(tmp_path)):
        pass

    assert str(raised.value).endswith("(TMPDIR): No usable temporary directory found in ['/tmp']")
    assert "\n" not in str(raised.value)


def test_scrape_after_a_quiet_time_gets_a_new_reading(tmp_path: Path) -> None:
    with assembled(settings(tmp_path, sampling={"interval_seconds": 5})) as (parts, stack):
        assert parts.driver
        parts.driver.start()
        stack.callback(parts.driver.stop)
        assert parts.driver.settled.wait(30)
        stop = threading.Event()
        thread = threading.Thread(target=parts.sampler.run, args=[stop])
        thread.start()
        stack.callback(thread.join, 10)
        stack.callback(parts.sampler.wake)
        stack.callback(stop.set)
        while parts.driver.read_at != parts._read_at:
            time.sleep(0.01)
        time.sleep(0.1)
        before = parts.driver.read_at
        assert parts._refresh.due(time.monotonic(), expected=False)
        deadline = time.monotonic() + 10
        while parts._read_at == before and time.monotonic() < deadline:
            time.sleep(0.01)

        assert parts._read_at == parts.driver.read_at > before


def test_the_late_routes_are_all_routes_for_people(tmp_path: Path) -> None:
    with ExitStack() as stack:
        machine = real_machine(settings(tmp_path), stack)
        made = people.routes(settings(tmp_path), machine, History(), lambda: None, lambda: "not yet", Site)

    assert made.keys() == set(FOR_PEOPLE)
    assert {route.methods for route in made.values()} == {("GET", "HEAD")}
