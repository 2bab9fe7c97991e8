from __future__ import annotations

import asyncio
import gzip
import socket
import threading
from contextlib import ExitStack

import pytest

from gpugauge.exposition.render import OPENMETRICS, TEXT, Exposition
from gpugauge.web.guard import own_names_only
from gpugauge.web.listen import ListenError
from gpugauge.web.routes import standard_routes
from gpugauge.web.server import Reply, Request, Route, Server, sentence
from tests.serving import LOCAL, Gate, client, closed_by_server, fetch, routes, serving


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


def test_unknown_paths_and_methods() -> None:
    with serving() as address:
        status, _, headers = fetch(address, "/metrics", "POST", b"x")
        assert (status, headers["Allow"]) == (405, "GET, HEAD")
        assert fetch(address, "/metric")[0] == 404
        assert fetch(address, "/-/healthy", "TRACE")[0] == 405


def test_a_failing_handler_fails_its_request_only(caplog: pytest.LogCaptureFixture) -> None:
    table = {"/fails": Route(lambda _: Reply(1 // 0, b"")), "/works": Route(lambda _: sentence(200, "ok"))}
    with serving(table) as address, client(address) as connection:
        connection.request("GET", "/fails")
        response = connection.getresponse()
        assert (response.status, b"division" in response.read()) == (500, False)

        connection.request("GET", "/works")
        assert connection.getresponse().status == 200
    assert "division" in caplog.text


def test_authentication_applies_to_every_route() -> None:
    def refuse(request: Request) -> Reply | None:
        return None if request.headers.get("authorization") == "Basic x" else sentence(401, "who are you?")

    with serving(access=Gate(refuse)) as address:
        assert [fetch(address, path)[0] for path in ("/", "/metrics", "/-/healthy", "/none")] == [401] * 4
        assert fetch(address, "/metrics", Authorization="Basic x")[0] == 200


def test_a_slow_reply_does_not_delay_others() -> None:
    requested, go_on = threading.Event(), threading.Event()

    async def later(_: Request) -> Reply:
        requested.set()
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        return sentence(200, "at last")

    with serving(routes() | {"/later": Route(later)}) as address, client(address) as waiting:
        waiting.request("GET", "/later")
        assert requested.wait(10)
        assert fetch(address, "/-/healthy")[0] == 200
        go_on.set()
        assert waiting.getresponse().read() == b"at last\n"


def test_a_client_may_disconnect_before_its_reply(caplog: pytest.LogCaptureFixture) -> None:
    requested, disconnected, replied = threading.Event(), threading.Event(), threading.Event()

    async def later(_: Request) -> Reply:
        requested.set()
        while not disconnected.is_set():
            await asyncio.sleep(0.01)
        replied.set()
        return sentence(200, "too late")

    with serving(routes() | {"/later": Route(later)}) as address:
        with client(address) as impatient:
            impatient.request("GET", "/later")
            assert requested.wait(10)
        disconnected.set()
        assert replied.wait(10)
        assert fetch(address, "/-/healthy")[0] == 200
    assert caplog.text == ""


def test_a_failing_coroutine_fails_its_request_only(caplog: pytest.LogCaptureFixture) -> None:
    async def fails(_: Request) -> Reply:
        return Reply(1 // 0, b"")

    async def refuses(_: Request) -> Reply | None:
        return sentence(401, "who are you?")

    with serving(routes() | {"/fails": Route(fails)}) as address:
        assert fetch(address, "/fails")[0] == 500
    assert "division" in caplog.text
    with serving(access=Gate(refuses)) as address:
        assert fetch(address, "/metrics")[:2] == (401, b"who are you?\n")


def test_headers_of_access_are_on_every_reply_and_override() -> None:
    more = (("X-Frame-Options", "sameorigin"), ("Strict-Transport-Security", "max-age=60"))
    table = {"/framed": Route(lambda _: Reply(200, b"", headers=(("X-Frame-Options", "DENY"),)))}
    with serving(table, access=Gate(headers=more)) as address:
        for path in ("/framed", "/none"):
            _, _, headers = fetch(address, path)
            assert headers.get_all("X-Frame-Options") == ["sameorigin"]
            assert headers["Strict-Transport-Security"] == "max-age=60"


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


def test_an_address_in_use_is_one_sentence_and_leaves_no_socket_open() -> None:
    with socket.create_server(LOCAL) as taken, socket.create_server(LOCAL) as free:
        port, free_port = taken.getsockname()[1], free.getsockname()[1]
        free.close()
        with pytest.raises(ListenError) as caught:
            Server([("127.0.0.1", free_port), ("127.0.0.1", port)], routes()).start()
        socket.create_server(("127.0.0.1", free_port)).close()

    expected = f"cannot listen on 127.0.0.1:{port}: address already in use; --web.listen-address chooses another"
    assert str(caught.value) == expected


def test_an_unknown_address_is_one_sentence() -> None:
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


def test_stop_before_start_does_nothing() -> None:
    Server([LOCAL], routes()).stop()


def test_the_host_of_an_absolute_target_counts() -> None:
    table = own_names_only(routes(), ["127.0.0.1"])
    with serving(table) as address:
        for target, host, status in (
            ("http://localhost/metrics", "evil.example", 200),
            ("http://evil.example/metrics", "localhost", 403),
            ("http://user@localhost/metrics", "localhost", 400),
        ):
            with client(address) as connection:
                connection.putrequest("GET", target, skip_host=True)
                connection.putheader("Host", host)
                connection.endheaders()
                assert connection.getresponse().status == status


def test_a_client_that_sends_too_long_headers_can_read_the_answer() -> None:
    """The server reads on until the client closes the connection; otherwise the kernel drops the answer."""
    with serving() as address, socket.create_connection(address, timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 100_000)
        assert connection.recv(1000).startswith(b"HTTP/1.1 431 ")
