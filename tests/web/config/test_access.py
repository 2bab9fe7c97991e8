from __future__ import annotations

import base64
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

import bcrypt
import pytest

from gpugauge.settings.kinds import ConfigError
from gpugauge.web import connections as server_connections
from gpugauge.web import server
from gpugauge.web.server import Route, Server, sentence
from tests.certificates import Authority
from tests.website import ALICE, CLIENTS, TLS, USERS, WRONG, Site, serving, wait_for


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(server, "_SWEEP_SECONDS", 0.01)
    return monkeypatch


def test_users(tmp_path: Path) -> None:
    with serving(tmp_path, USERS) as site:
        connection = site.connect()
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        connection.close()
        assert (response.status, response.headers["WWW-Authenticate"]) == (
            401,
            'Basic realm="gpugauge", charset="UTF-8"',
        )
        assert site.fetch(authorization=WRONG)[0] == 401
        assert site.fetch(authorization=ALICE) == (200, b"up 1\n")
        assert site.fetch(authorization=ALICE) == (200, b"up 1\n")
        assert site.fetch(authorization=WRONG)[0] == 401
        assert b"up" not in site.fetch()[1]


def test_a_scraper_that_is_known_is_served_while_passwords_are_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, USERS) as site:
        assert site.fetch(authorization=ALICE)[0] == 200
        go_on = threading.Event()
        monkeypatch.setattr(bcrypt, "checkpw", lambda *_: not go_on.wait(10))
        guesses = [site.connect() for _ in range(20)]
        for number, guess in enumerate(guesses):
            wrong = base64.b64encode(b"alice:%d" % number).decode()
            guess.request("GET", "/metrics", headers={"Authorization": f"Basic {wrong}"})
        assert [site.fetch(authorization=ALICE)[0] for _ in range(20)] == [200] * 20
        go_on.set()
        # One was computed, two of an address may wait, and chance decides which.
        assert sorted(guess.getresponse().status for guess in guesses) == [401] * 3 + [429] * 17
        for guess in guesses:
            guess.close()


def test_client_certificates_and_their_names(tmp_path: Path) -> None:
    stranger = Authority("a stranger")
    names = "  client_allowed_sans: [prometheus.example, '2001:db8::1']\n"
    with serving(tmp_path, TLS + CLIENTS + names) as site:
        assert site.fetch(site.client("prometheus.example")) == (200, b"up 1\n")
        assert site.fetch(site.client("2001:0db8::0001"))[0] == 200
        status, body = site.fetch(site.client("other.example"))
        assert (status, b"up" in body) == (403, False)
        foreign = site.client()
        foreign.load_cert_chain(*stranger.issue(tmp_path, "foreign", "prometheus.example"))
        for context in (site.client(), foreign):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                site.fetch(context)


def test_tls_and_a_user_together_and_no_plain_http(tmp_path: Path) -> None:
    with serving(tmp_path, TLS + USERS) as site:
        assert site.fetch(site.client(), ALICE)[0] == 200
        assert site.fetch(site.client())[0] == 401
        with pytest.raises(ConnectionError):
            site.fetch(authorization=ALICE)


def test_a_certificate_that_is_given_is_verified(tmp_path: Path) -> None:
    text = TLS + CLIENTS.replace("RequireAndVerifyClientCert", "VerifyClientCertIfGiven")
    with serving(tmp_path, text) as site:
        assert site.fetch(site.client())[0] == 200
        assert site.fetch(site.client("anybody.example"))[0] == 200
        foreign = site.client()
        foreign.load_cert_chain(*Authority("a stranger").issue(tmp_path, "foreign", "x"))
        with pytest.raises((ssl.SSLError, ConnectionError)):
            site.fetch(foreign)


def test_headers_and_rate(tmp_path: Path) -> None:
    text = "http_server_config: {headers: {X-Frame-Options: deny}}\nrate_limit: {interval: 1h, burst: 2}\n"
    with serving(tmp_path, USERS + text) as site:
        assert [site.fetch()[0], site.fetch(authorization=WRONG)[0]] == [401, 401]
        assert [site.fetch(authorization=ALICE)[0] for _ in range(3)] == [200, 200, 429]
        connection = site.connect()
        connection.request("GET", "/metrics")
        assert connection.getresponse().headers["X-Frame-Options"] == "deny"
        connection.close()


def test_rate_recovers(tmp_path: Path) -> None:
    with serving(tmp_path, "rate_limit: {interval: 1ms, burst: 1}\n") as site:
        wait_for(lambda: site.fetch()[0] == 200)
        wait_for(lambda: site.fetch()[0] == 200)


def test_a_bad_file_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        Site(tmp_path, "tls: {}\n")


@pytest.mark.parametrize("start", [b"", b"\x16\x03\x01\x02\x00\x01"])
def test_slow_handshake_ends_with_the_timeout_of_the_headers(
    tmp_path: Path, short: pytest.MonkeyPatch, start: bytes
) -> None:
    short.setattr(server_connections, "HEADER_TIMEOUT_SECONDS", 0.05)
    with serving(tmp_path, TLS) as site, socket.create_connection(site.address, timeout=10) as slow:
        slow.sendall(start)
        with suppress(ConnectionResetError):
            assert slow.recv(100) == b""


def test_slow_handshakes_displace_each_other_and_never_a_scraper(tmp_path: Path) -> None:
    site = Site(tmp_path, TLS)
    site.server = Server(
        [("127.0.0.1", 0)],
        {"/metrics": Route(lambda _: sentence(200, "up 1"))},
        max_connections=8,
        access=site.access,
    )
    site.server.start()
    scraper = site.connect(site.client())
    scraper.request("GET", "/metrics")
    scraper.getresponse().read()
    own = scraper.sock.getsockname()
    slow = [socket.create_connection(site.address, timeout=10) for _ in range(30)]
    try:
        assert slow[0].recv(1) == b""
        scraper.request("GET", "/metrics")
        assert (scraper.getresponse().status, scraper.sock.getsockname()) == (200, own)
        assert site.fetch(site.client())[0] == 200
    finally:
        scraper.close()
        for connection in slow:
            connection.close()
        site.server.stop()


@pytest.mark.parametrize(
    ("text", "identifies"),
    [
        ("", False),
        (USERS, True),
        (TLS, False),
        (TLS + CLIENTS, True),
        (TLS + CLIENTS.replace("RequireAndVerifyClientCert", "VerifyClientCertIfGiven"), False),
        (TLS + USERS, True),
    ],
    ids=["open", "users", "tls", "certificates", "certificates if given", "tls and users"],
)
def test_whether_every_client_is_identified(tmp_path: Path, text: str, identifies: bool) -> None:
    assert Site(tmp_path, text).access.identifies == identifies
