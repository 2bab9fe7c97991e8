from __future__ import annotations

import gzip
import http.client
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from gpugauge import server
from gpugauge.exposition import OPENMETRICS, TEXT, Exposition
from gpugauge.listen import ListenError
from gpugauge.metric import NONE, Family, Table
from gpugauge.routes import standard_routes
from gpugauge.server import Reply, Request, Route, Server, sentence
from gpugauge.snapshot import Section, Snapshot

LOCAL = ("127.0.0.1", 0)
BUILD = Table("version").gauge("gpugauge_build_info", "Build.", NONE, id)
SNAPSHOT = Snapshot(0.0, time.monotonic(), (Section("exporter", (Family(BUILD, ((("1",), 1),)),)),))


def routes(not_ready: str | None = None, large: int = 0) -> dict[str, Route]:
    exposition = Exposition(stale_after=3600)
    exposition.publish(SNAPSHOT)
    table = standard_routes(exposition, "/metrics", lambda: not_ready)
    table["/echo"] = Route(lambda request: Reply(200, request.body), ("POST",))
    table["/large"] = Route(lambda _: Reply(200, bytes(large)))
    return table


@contextmanager
def serving(
    table: Mapping[str, Route] | None = None,
    max_connections: int = 512,
    authenticate: Callable[[Request], Reply | None] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Iterator[tuple[str, int]]:
    running = Server([LOCAL], table or routes(), max_connections=max_connections, authenticate=authenticate, tls=tls)
    running.start()
    try:
        yield running.addresses[0]
    finally:
        running.stop()


@contextmanager
def client(address: tuple[str, int]) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(*address, timeout=10)
    try:
        yield connection
    finally:
        connection.close()


def fetch(
    address: tuple[str, int], path: str, method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[int, bytes, http.client.HTTPMessage]:
    with client(address) as connection:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, response.read(), response.headers


def closed_by_server(connection: socket.socket) -> bool:
    """Wait for the other end to close; False after 10 s."""
    connection.settimeout(10)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Make the server look for overdue connections often."""
    monkeypatch.setattr(server, "_SWEEP_INTERVAL", 0.01)
    return monkeypatch


def test_metrics_in_text() -> None:
    with serving() as address:
        status, body, headers = fetch(address, "/metrics")

    assert (status, headers["Content-Type"], headers["Vary"]) == (200, TEXT, "Accept, Accept-Encoding")
    assert b'gpugauge_build_info{version="1"} 1.0\n' in body
    assert headers["Content-Encoding"] is None


def test_metrics_in_openmetrics_and_gzip() -> None:
    with serving() as address:
        _, body, headers = fetch(address, "/metrics", Accept="application/openmetrics-text", Accept_Encoding="gzip")

    assert (headers["Content-Type"], headers["Content-Encoding"]) == (OPENMETRICS, "gzip")
    assert gzip.decompress(body).endswith(b"# EOF\n")


def test_head_has_the_headers_of_get_and_no_body() -> None:
    with serving() as address:
        _, whole, _ = fetch(address, "/metrics")
        status, body, headers = fetch(address, "/metrics", "HEAD")

    assert (status, body, headers["Content-Length"]) == (200, b"", str(len(whole)))


def test_health_and_readiness() -> None:
    with serving(routes(not_ready="no snapshot for 12 s")) as address:
        assert fetch(address, "/-/healthy")[:2] == (200, b"healthy\n")
        assert fetch(address, "/-/ready")[:2] == (503, b"not ready: no snapshot for 12 s\n")
    with serving() as address:
        assert fetch(address, "/-/ready")[:2] == (200, b"ready\n")


def test_before_the_first_snapshot_metrics_are_503() -> None:
    with serving(standard_routes(Exposition(stale_after=1), "/metrics", lambda: None)) as address:
        assert fetch(address, "/metrics")[0] == 503


def test_what_does_not_exist_and_what_is_not_allowed() -> None:
    with serving() as address:
        status, _, headers = fetch(address, "/metrics", "POST", b"x")
        assert (status, headers["Allow"]) == (405, "GET, HEAD")
        assert fetch(address, "/metric")[0] == 404
        assert fetch(address, "/-/healthy", "TRACE")[0] == 405


def test_a_handler_that_fails_costs_its_request_only(caplog: pytest.LogCaptureFixture) -> None:
    table = {"/fails": Route(lambda _: Reply(1 // 0, b"")), "/works": Route(lambda _: sentence(200, "ok"))}
    with serving(table) as address, client(address) as connection:
        connection.request("GET", "/fails")
        response = connection.getresponse()
        assert (response.status, b"division" in response.read()) == (500, False)

        connection.request("GET", "/works")
        assert connection.getresponse().status == 200
    assert "division" in caplog.text


def test_authentication_stands_before_every_route() -> None:
    def refuse(request: Request) -> Reply | None:
        return None if request.headers.get("authorization") == "Basic x" else sentence(401, "who are you?")

    with serving(authenticate=refuse) as address:
        assert [fetch(address, path)[0] for path in ("/", "/metrics", "/-/healthy", "/none")] == [401] * 4
        assert fetch(address, "/metrics", Authorization="Basic x")[0] == 200


def test_bodies_and_headers_are_bounded() -> None:
    with serving() as address:
        assert fetch(address, "/echo", "POST", bytes(64 * 1024))[:2] == (200, bytes(64 * 1024))
        with socket.create_connection(address, timeout=10) as connection:
            connection.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 65537\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
        with socket.create_connection(address) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 20_000)
            assert closed_by_server(connection)


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"\x00" * 100 + b"\r\n\r\n"])
def test_garbage_is_answered_by_closing(garbage: bytes, short: pytest.MonkeyPatch) -> None:
    short.setattr(server, "HEADER_TIMEOUT", 0.05)
    with serving() as address:
        with socket.create_connection(address) as connection:
            connection.sendall(garbage)
            assert closed_by_server(connection)
        assert fetch(address, "/-/healthy")[0] == 200


def test_unfinished_headers_are_cut_off(short: pytest.MonkeyPatch) -> None:
    short.setattr(server, "HEADER_TIMEOUT", 0.05)
    with serving() as address, socket.create_connection(address) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        assert closed_by_server(connection)


def test_an_unfinished_body_is_cut_off(short: pytest.MonkeyPatch) -> None:
    short.setattr(server, "REQUEST_TIMEOUT", 0.05)
    with serving() as address, socket.create_connection(address) as connection:
        connection.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
        assert closed_by_server(connection)


def test_a_client_that_does_not_read_is_cut_off(short: pytest.MonkeyPatch) -> None:
    short.setattr(server, "REQUEST_TIMEOUT", 0.2)
    size = 64 << 20  # more than the kernel buffers
    with serving(routes(large=size)) as address, socket.create_connection(address) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.5)
        received = 0
        connection.settimeout(10)
        try:
            while part := connection.recv(1 << 20):
                received += len(part)
        except ConnectionResetError:
            pass
    assert received < size


def test_an_idle_connection_stays_longer_than_a_header_may_take(short: pytest.MonkeyPatch) -> None:
    short.setattr(server, "HEADER_TIMEOUT", 0.05)
    with serving() as address, client(address) as connection:
        for _ in range(2):
            connection.request("GET", "/-/healthy")
            connection.getresponse().read()
            own = connection.sock.getsockname()
            time.sleep(0.2)
        assert own == connection.sock.getsockname()  # http.client would have opened another one


def test_an_idle_connection_is_closed_in_the_end(short: pytest.MonkeyPatch) -> None:
    short.setattr(server, "IDLE_TIMEOUT", 0.05)
    with serving() as address, client(address) as connection:
        connection.request("GET", "/-/healthy")
        connection.getresponse().read()
        assert closed_by_server(connection.sock)


@pytest.mark.parametrize(
    "start", [b"", b"GET / HTTP/1.1\r\n", b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"]
)
def test_slow_connections_push_out_each_other_and_never_a_scraper(start: bytes) -> None:
    with serving(max_connections=8) as address, client(address) as scraper, ExitStack() as stack:
        scraper.request("GET", "/metrics")
        scraper.getresponse().read()
        own = scraper.sock.getsockname()
        slow = [stack.enter_context(socket.create_connection(address)) for _ in range(30)]
        for connection in slow:
            with suppress(OSError):  # pushed out already
                connection.sendall(start)

        assert closed_by_server(slow[0])
        scraper.request("GET", "/metrics")
        assert (scraper.getresponse().status, scraper.sock.getsockname()) == (200, own)
        assert fetch(address, "/metrics")[0] == 200  # a scraper that comes now is let in, too


def test_when_all_are_idle_the_longest_idle_makes_room() -> None:
    with serving(max_connections=8) as address, ExitStack() as stack:
        scrapers = [stack.enter_context(client(address)) for _ in range(9)]
        for scraper in scrapers:
            scraper.request("GET", "/-/healthy")
            scraper.getresponse().read()

        assert closed_by_server(scrapers[0].sock)


def test_several_addresses_and_both_protocols() -> None:
    running = Server([("", 0), LOCAL], routes())
    running.start()
    try:
        (_, port), (_, other) = running.addresses
        assert fetch(("127.0.0.1", port), "/-/healthy")[0] == 200
        assert fetch(("127.0.0.1", other), "/-/healthy")[0] == 200
        if socket.has_dualstack_ipv6():
            assert fetch(("::1", port), "/-/healthy")[0] == 200
    finally:
        running.stop()


def test_an_address_that_is_taken_is_one_sentence_and_leaves_nothing_open() -> None:
    with socket.create_server(LOCAL) as taken, socket.create_server(LOCAL) as free:
        port, free_port = taken.getsockname()[1], free.getsockname()[1]
        free.close()
        with pytest.raises(ListenError) as caught:
            Server([("127.0.0.1", free_port), ("127.0.0.1", port)], routes()).start()
        socket.create_server(("127.0.0.1", free_port)).close()

    expected = f"cannot listen on 127.0.0.1:{port}: address already in use; --web.listen-address chooses another"
    assert str(caught.value) == expected


def test_a_host_that_is_none_is_one_sentence() -> None:
    with pytest.raises(ListenError, match=r"^cannot listen on 192\.0\.2\.1:0: cannot assign requested address$"):
        Server([("192.0.2.1", 0)], routes()).start()


def test_stop_closes_open_connections() -> None:
    running = Server([LOCAL], routes())
    running.start()
    with ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection(running.addresses[0])) for _ in range(20)]
        connections[0].sendall(b"GET / HTTP/1.1\r\n")
        running.stop()
        running.stop()

        assert all(closed_by_server(connection) for connection in connections)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(running.addresses[0])


def test_stop_before_start_is_nothing() -> None:
    Server([LOCAL], routes()).stop()


def test_tls_with_a_client_certificate(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run([*command.split(), "-out", certificate, "-keyout", key], check=True, capture_output=True)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificate))
    tls.load_cert_chain(certificate, key)
    tls.verify_mode = ssl.CERT_REQUIRED
    known = ssl.create_default_context(cafile=str(certificate))
    unknown = ssl.create_default_context(cafile=str(certificate))
    known.load_cert_chain(certificate, key)

    def status(context: ssl.SSLContext) -> int:
        connection = http.client.HTTPSConnection(address[0], address[1], context=context, timeout=10)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().status
        finally:
            connection.close()

    with serving(tls=tls) as address:
        assert status(known) == 200
        with pytest.raises((ssl.SSLError, ConnectionError)):
            status(unknown)
