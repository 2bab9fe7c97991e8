"""The client never waits, and it connects again after a restart of the daemon."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpugauge.hook.client import Client
from gpugauge.hook.clock import NS_PER_SECOND
from tests.needs import give_up


def server(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.settimeout(5)
    listener.bind(str(path))
    listener.listen(1)
    return listener


def hello() -> tuple[bytes, None]:
    return b"hello", None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture
def client(path: Path) -> Iterator[Client]:
    client = Client(("/nowhere/s", str(path)))
    yield client
    client.close()


def test_hello_comes_first(path: Path, client: Client) -> None:
    with server(path) as listener:
        assert client.connect(0, hello)
        assert client.send(0, b"snap")
        with listener.accept()[0] as connection:
            assert [connection.recv(99), connection.recv(99)] == [b"hello", b"snap"]


def test_hello_without_the_record_where_descriptors_are_refused(path: Path, client: Client) -> None:
    with server(path) as listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, 83, 0)  # SO_PASSRIGHTS
        except OSError:
            give_up("needs Linux 6.16 or newer")
        assert client.connect(0, lambda: (b"hello", listener.fileno()))
        with listener.accept()[0] as connection:
            assert socket.recv_fds(connection, 99, 1)[:2] == (b"hello", [])


def test_every_publication_tries_to_connect_to_an_absent_daemon(path: Path, client: Client) -> None:
    assert not client.connect(0, hello)
    assert not client.send(0, b"lost")
    with server(path):
        assert client.connect(1, hello)


def test_messages_to_a_daemon_that_does_not_read_are_dropped(path: Path, client: Client) -> None:
    with server(path):
        assert client.connect(0, hello)
        assert [client.send(0, b"x" * 10_000) for _ in range(500)] == [True] * 500


def test_the_client_does_not_wait_for_a_full_accept_queue(path: Path, client: Client) -> None:
    with server(path):
        others = [Client((str(path),)) for _ in range(5)]
        opened = [other.connect(0, hello) for other in others]
        assert opened[-1] is False
        for other in others:
            other.close()


def test_a_restarted_daemon_is_found_at_once(path: Path, client: Client) -> None:
    with server(path) as listener:
        assert client.connect(0, hello)
        listener.accept()[0].close()
    with server(path):
        now = 60 * NS_PER_SECOND
        assert not client.send(now, b"snap")
        assert client.connect(now, hello)


def test_pauses_grow_after_rejections(path: Path, client: Client) -> None:
    now = 0
    pauses = []
    with server(path) as listener:
        for _ in range(7):
            assert client.connect(now, hello)
            listener.accept()[0].close()
            lost = now
            assert not client.send(now, b"snap")
            while not client.connect(now, hello):
                now += NS_PER_SECOND
            pauses.append((now - lost) // NS_PER_SECOND)
            client.close()
            listener.accept()[0].close()
    assert pauses == [1, 2, 4, 8, 16, 30, 30]


def test_an_error_in_hello_leaves_no_connection(path: Path, client: Client) -> None:
    with server(path):
        with pytest.raises(ZeroDivisionError):
            client.connect(0, lambda: (bytes(1 // 0), None))
        assert not client.connected
