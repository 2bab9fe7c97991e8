"""Attacks at the port, without a login."""

from __future__ import annotations

import base64
import contextlib
import itertools
import socket
import threading
import time
from functools import partial

from qa.torture.users.target import Attack, Target

_COLLECTORS, _PAUSE_SECONDS = 600, 2.0
# 20 addresses of 20 sites, of the range for benchmarks (RFC 2544).
ADDRESSES = "198.18.0.0/15"
_GUESSERS = [f"198.18.{number}.1" for number in range(20)]
_SLOW = 800
_ANSWERS = 200  # not read


def _request(path: str = "/metrics", login: str = "") -> bytes:
    authorization = f"Authorization: Basic {base64.b64encode(login.encode()).decode()}\r\n" if login else ""
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{authorization}\r\n".encode()


def _open(target: Target, source: str = "") -> socket.socket:
    client = socket.socket()
    client.settimeout(5)
    if source:
        client.bind((source, 0))
    client.connect(("127.0.0.1", target.port))
    return client


def _collectors(target: Target) -> None:
    """Keep 600 connections, and collect a 401 over each every 2 s."""
    clients = dict[int, socket.socket]()
    while True:
        began = time.monotonic()
        for number in range(_COLLECTORS):
            with contextlib.suppress(OSError):
                if number not in clients:
                    clients[number] = _open(target)
                clients[number].sendall(_request())
        for number, client in list(clients.items()):
            with contextlib.suppress(OSError):
                if client.recv(65536):
                    continue
            client.close()
            del clients[number]
        time.sleep(max(0.0, began + _PAUSE_SECONDS - time.monotonic()))


def _guess(target: Target, sources: list[str]) -> None:
    """Send wrong passwords from all addresses, one at a time from each."""

    def guess(source: str) -> None:
        for number in itertools.count():
            with contextlib.suppress(OSError), _open(target, source) as client:
                client.sendall(_request(login=f"user{number % 20}:wrong{number}"))
                client.recv(65536)

    threads = [threading.Thread(target=guess, args=(source,), daemon=True) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _slow_requests(target: Target) -> None:
    """Keep 800 connections with unfinished headers, and send a line over each now and then."""
    clients = list[socket.socket]()
    while True:
        clients = [client for client in clients if _sent(client, b"X: y\r\n")]
        with contextlib.suppress(OSError):
            while len(clients) < _SLOW:
                client = _open(target)
                client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n")
                clients.append(client)
        time.sleep(1)


def _sent(client: socket.socket, data: bytes) -> bool:
    """Send over a connection; return whether it was open."""
    try:
        client.send(data)
    except OSError:
        client.close()
        return False
    return True


def _unread_answers(target: Target) -> None:
    """Ask for the page again and again, and read nothing."""
    clients = list[socket.socket]()
    while True:
        with contextlib.suppress(OSError):
            clients.append(_open(target))
            clients[-1].sendall(_request("/") * 50)
        time.sleep(0.05)
        while len(clients) > _ANSWERS:
            clients.pop(0).close()


def _churn(target: Target) -> None:
    """Open a connection for each request, one after the other."""
    while True:
        with contextlib.suppress(OSError), _open(target) as client:
            client.sendall(_request("/-/ready"))
            client.recv(65536)


ATTACKS: dict[str, Attack] = {
    name: partial(partial, act)
    for name, act in (
        ("401 collectors", _collectors),
        ("wrong passwords", partial(_guess, sources=_GUESSERS)),
        # Not from the address of the scraper, with which it would share its turns (docs/security.md).
        ("wrong passwords from this machine", partial(_guess, sources=[f"127.0.{n}.1" for n in range(1, 21)])),
        ("slow requests", _slow_requests),
        ("unread answers", _unread_answers),
        ("a connection for each request", _churn),
    )
}
