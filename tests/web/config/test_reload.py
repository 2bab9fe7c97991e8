from __future__ import annotations

import base64
import os
import threading
from pathlib import Path

import pytest

from gpugauge.web import server
from gpugauge.web.config import access
from tests.website import ALICE, TLS, USERS, serving, wait_for


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(server, "_SWEEP_SECONDS", 0.01)
    return monkeypatch


def test_a_renewed_certificate_is_shown_and_open_connections_go_on(tmp_path: Path, short: pytest.MonkeyPatch) -> None:
    with serving(tmp_path, TLS) as site:
        scraper = site.connect(site.client())
        scraper.request("GET", "/metrics")
        scraper.getresponse().read()
        before, own = site.serial(), scraper.sock.getsockname()
        site.renew()
        site.access.check()
        assert site.serial() == before  # perhaps only half of it is there
        site.access.check()
        wait_for(lambda: site.serial() != before)
        scraper.request("GET", "/metrics")
        assert (scraper.getresponse().status, scraper.sock.getsockname()) == (200, own)
        scraper.close()


def test_files_are_checked_periodically(tmp_path: Path, short: pytest.MonkeyPatch) -> None:
    short.setattr("gpugauge.web.config.access._CHECK_INTERVAL_SECONDS", 0.01)
    with serving(tmp_path, TLS) as site:
        site.access.start()
        before = site.serial()
        site.renew()
        wait_for(lambda: site.serial() != before)
        site.access.stop()


def test_checks_continue_after_a_failed_one(
    tmp_path: Path, short: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    short.setattr("gpugauge.web.config.access._CHECK_INTERVAL_SECONDS", 0.01)
    with serving(tmp_path, TLS) as site:
        before = site.serial()
        with short.context() as broken:
            broken.setattr("gpugauge.web.config.access._signature", lambda _: 1 // 0)
            site.access.start()
            wait_for(lambda: "division" in caplog.text)
        site.renew()
        wait_for(lambda: site.serial() != before)
        site.access.stop()


def test_broken_renewal_keeps_the_previous_certificate_and_is_logged_once(
    tmp_path: Path, short: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with serving(tmp_path, TLS) as site:
        before, good = site.serial(), site.access.last_reload
        (tmp_path / "server.key").unlink()
        for _ in range(5):
            site.access.check()
        assert site.serial() == before
        assert site.access.last_reload == (False, good.timestamp)
        assert caplog.text.count("the previous one stays") == 1
        assert f"{tmp_path / 'web.yml'}:3: tls_server_config.key_file: " in caplog.text

        site.renew()
        site.check_twice()
        wait_for(lambda: site.serial() != before)
        assert site.access.last_reload.successful
        assert site.access.last_reload.timestamp >= good.timestamp
        assert "usable again" in caplog.text


def test_certificates_behind_a_link_as_kubernetes_mounts_them(tmp_path: Path, short: pytest.MonkeyPatch) -> None:
    (tmp_path / "..data").symlink_to(".")
    with serving(tmp_path, TLS.replace("server.", "..data/server.")) as site:
        before = site.serial()
        (tmp_path / "second").mkdir()
        site.authority.issue(tmp_path / "second", "server", "127.0.0.1")
        (tmp_path / "new").symlink_to("second")
        (tmp_path / "new").replace(tmp_path / "..data")
        site.check_twice()
        wait_for(lambda: site.serial() != before)


def test_users_come_and_go(tmp_path: Path) -> None:
    with serving(tmp_path, USERS) as site:
        assert site.fetch(authorization=ALICE)[0] == 200
        site.path.write_text(USERS.replace("alice", "bob"))
        site.check_twice()
        assert site.fetch(authorization=ALICE)[0] == 401
        bob = "Basic " + base64.b64encode(b"bob:secret").decode()
        assert site.fetch(authorization=bob)[0] == 200


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (USERS, "", "the last user can only be removed by a restart"),
        (TLS, "", "TLS can only be enabled or disabled by a restart"),
        ("", TLS, "TLS can only be enabled or disabled by a restart"),
    ],
    ids=["no more users", "no more TLS", "TLS at last"],
)
def test_emptied_file_admits_nobody(
    tmp_path: Path, before: str, after: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path, before) as site:
        site.path.write_text(after)
        site.check_twice()
        assert not site.access.last_reload.successful
        assert says in caplog.text
        assert (site.access.tls is None) == ("tls" not in before)
        if before == USERS:
            assert site.fetch()[0] == 401


def test_nothing_is_read_while_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path, TLS) as site:
        monkeypatch.setattr("gpugauge.web.config.access.load_web_config", lambda _: pytest.fail("it was read"))
        site.check_twice()


@pytest.mark.parametrize("name", ["web.yml", "server.pem", "server.key"])
def test_a_named_pipe_in_the_place_of_a_file_keeps_the_previous_configuration(
    tmp_path: Path, short: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    with serving(tmp_path, TLS) as site:
        before = site.serial()
        (tmp_path / name).rename(tmp_path / "kept")
        os.mkfifo(tmp_path / name)
        site.check_twice()
        assert site.serial() == before
        assert not site.access.last_reload.successful
        assert "this is a named pipe" in caplog.text

        (tmp_path / "kept").rename(tmp_path / name)
        site.check_twice()
        assert site.access.last_reload.successful


def test_files_that_hang_keep_the_previous_configuration(
    tmp_path: Path, short: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    end = threading.Event()
    with serving(tmp_path, TLS) as site:
        before = site.serial()
        with short.context() as hung:
            hung.setattr(access, "_RELOAD_SECONDS", 0.05)
            hung.setattr(access, "_signature", lambda _: end.wait(20))
            for _ in range(3):
                site.access.check()
        assert site.serial() == before
        assert not site.access.last_reload.successful
        assert caplog.text.count("is it on a file system that does not respond?") == 1

        end.set()
        wait_for(lambda: site.access._reading.running is None)
        site.check_twice()
        assert site.access.last_reload.successful


@pytest.mark.parametrize(("change", "allowed"), [("burst: 3", 3), ("burst: 2 # the same", 0)])
def test_the_rate_starts_again_only_if_it_was_changed(tmp_path: Path, change: str, allowed: int) -> None:
    text = "rate_limit:\n  interval: 1h\n  burst: 2\n"
    with serving(tmp_path, text) as site:
        assert [site.fetch()[0] for _ in range(3)] == [200, 200, 429]
        site.path.write_text(text.replace("burst: 2", change))
        site.check_twice()
        assert site.access.last_reload.successful
        found = [site.fetch()[0] for _ in range(4)]

    assert found == [200] * allowed + [429] * (4 - allowed)
