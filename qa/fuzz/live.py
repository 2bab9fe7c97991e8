"""Targets behind sockets: the real HTTP server and the real socket of the hook, each in its own thread."""

from __future__ import annotations

import json
import logging
import mmap
import os
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from fcntl import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SHRINK, fcntl
from functools import partial
from pathlib import Path

from tests.simulation import status
from tests.virtual import VirtualDaemon
from tests.website import USERS

from gpugauge.daemon.lifecycle import lifecycle_routes
from gpugauge.sessions.listener import Sessions
from gpugauge.simulator.scenario.load import load_scenario
from gpugauge.status.history import History
from gpugauge.status.node import build
from gpugauge.web.config.access import WebAccess
from gpugauge.web.guard import own_names, own_names_only
from gpugauge.web.page.routes import PATH as STATUS_PATH
from gpugauge.web.page.routes import page_routes, status_route
from gpugauge.web.routes import standard_routes
from gpugauge.web.server import Route, Server
from gpugauge.wire.record import RECORD_BYTES
from qa.fuzz.mutate import Tree, dumped
from qa.fuzz.target import Attempt, Target
from qa.fuzz.texts import BYE, HELLO, SNAP, WIRE_TOKENS

SOCKET_TIMEOUT_SECONDS = 20.0


@contextmanager
def errors_of_threads() -> Iterator[list[str]]:
    """Yield the list of errors logged inside the context; errors of other threads are visible in the log only."""
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(self.format(record))

    handler = Handler(logging.ERROR)
    logging.getLogger().addHandler(handler)
    try:
        yield found
    finally:
        logging.getLogger().removeHandler(handler)


def _routes(folder: Path) -> dict[str, Route]:
    daemon, history = VirtualDaemon(load_scenario("node"), folder), History()
    snapshot = [daemon.second() for _ in range(3)][-1]
    daemon.close()
    daemon.exposition.stale_after = 1e12
    routes = standard_routes(daemon.exposition, "/metrics", lambda: None)
    view = partial(build, history=history)
    routes |= page_routes(lambda: snapshot, view, lambda: None, "/metrics", "node")
    routes[STATUS_PATH] = status_route(lambda: snapshot, partial(status, history=history))
    routes |= lifecycle_routes(None, _reloaded, lambda: True, own_names(["127.0.0.1"]))
    return own_names_only(routes, ["127.0.0.1"])


def _reloaded() -> Future[str]:
    done: Future[str] = Future()
    done.set_result("")
    return done


def _http(folder: Path, stack: ExitStack) -> Attempt:
    (folder / "web.yml").write_text(USERS)
    (folder / "proc").mkdir()
    routes, errors = _routes(folder / "proc"), stack.enter_context(errors_of_threads())
    servers = [
        Server([("127.0.0.1", 0)], routes),
        Server([("127.0.0.1", 0)], routes, access=WebAccess(folder / "web.yml")),
    ]
    for server in servers:
        server.start()
        stack.callback(server.stop)

    def attempt(data: bytes) -> None:
        answer = _exchange(servers[len(data) % 2].addresses[0], data)
        assert not answer or answer.startswith(b"HTTP/1.1 "), answer[:80]
        assert not errors, errors.pop()

    return attempt


def _exchange(address: tuple[str, int], data: bytes) -> bytes:
    with socket.create_connection(address, timeout=SOCKET_TIMEOUT_SECONDS) as connection:
        # Closed with a reset, so that a hundred thousand connections do not use up the ports.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        answer = bytearray()
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                answer += part
        except ConnectionError:  # closed by the server before the end of the request
            pass
        return bytes(answer)


class Descriptors:
    """Descriptors that accompany a message, by the word before the message in an input."""

    def __init__(self, stack: ExitStack) -> None:
        page = _memory(F_SEAL_SHRINK | F_SEAL_GROW)
        loose, large = _memory(0), os.memfd_create("large", os.MFD_ALLOW_SEALING)
        os.ftruncate(large, 1 << 30)
        fcntl(large, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
        reader, writer = os.pipe()
        write_only = os.open(f"/proc/self/fd/{page}", os.O_WRONLY)
        path_only = os.open(f"/proc/self/fd/{page}", os.O_PATH)
        folder = os.open("/", os.O_RDONLY)
        self.by_name = {
            b"none": (),
            b"page": (page,),
            b"loose": (loose,),
            b"large": (large,),
            b"pipe": (reader,),
            b"writeonly": (write_only,),
            b"path": (path_only,),
            b"folder": (folder,),
            b"many": (page, reader, folder, loose),
        }
        for descriptor in {page, loose, large, reader, writer, write_only, path_only, folder}:
            stack.callback(os.close, descriptor)


def _memory(seals: int) -> int:
    descriptor = os.memfd_create("page", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, RECORD_BYTES)
    with mmap.mmap(descriptor, RECORD_BYTES) as memory:
        memory[:4] = b"gpg1"
    fcntl(descriptor, F_ADD_SEALS, seals)
    return descriptor


def _sessions(folder: Path, stack: ExitStack) -> Attempt:
    sessions = Sessions(str(folder / "hook.sock"), linger_seconds=0.0, connections=64, connects=1e9)
    sessions.start()
    stack.callback(sessions.stop)
    errors = stack.enter_context(errors_of_threads())
    descriptors = Descriptors(stack).by_name

    def attempt(data: bytes) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as hook:
            hook.settimeout(SOCKET_TIMEOUT_SECONDS)
            hook.connect(str(sessions.path))
            try:
                for line in data.split(b"\n")[:40]:
                    word, _, message = line.partition(b" ")
                    socket.send_fds(hook, [message or b"{}"], descriptors.get(word, ()))
                hook.shutdown(socket.SHUT_WR)
                assert hook.recv(1) == b""  # closed, so all messages were read
            except ConnectionError:  # closed by the daemon before the end
                pass
        assert not errors, errors.pop()
        for session in sessions.view():  # raises if the thread has ended
            assert session.hello.session.isprintable()

    return attempt


def _datagrams(tree: Tree) -> bytes:
    """Return [[descriptor, message], …] as the lines of an input."""
    pairs = [pair for pair in tree if isinstance(pair, list) and len(pair) == 2] if isinstance(tree, list) else []
    return b"\n".join(str(word).encode(errors="replace") + b" " + dumped(message) for word, message in pairs)


_MESSAGES = tuple(map(json.loads, (HELLO, SNAP, BYE)))
_COURSE = [["page", _MESSAGES[0]], ["none", _MESSAGES[1]], ["none", _MESSAGES[1]], ["none", _MESSAGES[2]]]
_NAMES = (b"page ", b"loose ", b"large ", b"pipe ", b"writeonly ", b"path ", b"folder ", b"many ")

LIVE = (
    Target(
        "hook connections",
        _sessions,
        (),
        (_datagrams(_COURSE), *(name + HELLO + b"\nnone " + SNAP for name in _NAMES)),
        (*WIRE_TOKENS, b"\n", b"\nnone " + HELLO, b"\nnone " + BYE, *_NAMES),
        (_COURSE,),
        _datagrams,
    ),
    Target(
        "HTTP requests",
        _http,
        (),
        (
            b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/plain;version=0.0.4;q=0.5\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: localhost:10478\r\nAuthorization: Basic YWxpY2U6c2VjcmV0\r\n\r\n",
            b"GET /api/v1/status?x=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept-Encoding: gzip;q=1, *;q=0\r\n\r\n",
            b"POST /-/release?for=10m HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n"
            b"Content-Length: 2\r\n\r\n{}",
            b"POST /-/reload HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            b"HEAD /-/ready HTTP/1.0\r\n\r\n",
        ),
        (
            *(
                b"\r\n",
                b"\n",
                b"\r",
                b"\0",
                b"\xff",
                b": ",
                b" ",
                b"\t",
                b"%00",
                b"%ff",
                b"?",
                b"#",
                b"//",
                b"/../",
                b"\r\n ",
            ),
            *(
                b"GET ",
                b"POST ",
                b"OPTIONS * ",
                b"HTTP/1.1",
                b"HTTP/9.9",
                b"http://localhost/metrics",
                b"Expect: 100-continue",
            ),
            *(
                b"Content-Length: -1",
                b"Content-Length: 99999999999",
                b"Content-Length: 1, 1",
                b"Content-Length: \xc2\xb2",
            ),
            *(
                b"Transfer-Encoding: chunked",
                b"Transfer-Encoding: gzip",
                b"ffffffffffffffff\r\n",
                b"0\r\n\r\n",
                b"-1\r\n",
            ),
            *(
                b"Accept: ",
                b"application/openmetrics-text",
                b";q=",
                b"nan",
                b"1e999",
                b"Accept-Encoding: ",
                b"gzip",
                b"*;q=0",
            ),
            *(
                b"Authorization: Basic ",
                b"YTpi",
                b"Host: ",
                b"[::1]:",
                b"localhost:99999",
                b"Origin: null",
                b"X: " + b"y" * 4000,
            ),
        ),
    ),
)
