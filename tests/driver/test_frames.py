from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from gpugauge.driver.frames import MAX_FRAME, Inbox, frame
from tests.drawn import cases


@pytest.fixture
def channel() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_what_is_sent_is_received(channel: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = channel
    theirs.sendall(frame({"id": 1, "text": "é\ud800"}) + frame({}))
    inbox = Inbox(ours)

    assert [inbox.receive(), inbox.receive()] == [{"id": 1, "text": "é\ud800"}, {}]


def test_one_receive_returns_many_frames(channel: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = channel
    theirs.sendall(b"".join(frame({"id": number}) for number in range(50)))
    inbox = Inbox(ours)
    inbox.fill()

    assert [(inbox.ready(), inbox.take()) for _ in range(50)] == [(True, {"id": number}) for number in range(50)]
    assert (inbox.ready(), inbox.take()) == (False, None)


@pytest.mark.parametrize("cut", [1, 4, 5, 9])
def test_frame_in_parts(cut: int, channel: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = channel
    sent = frame({"id": 1}) + frame({"id": 2})
    inbox = Inbox(ours)
    theirs.sendall(sent[:cut])
    inbox.fill()
    assert (inbox.ready(), inbox.take()) == (False, None)
    theirs.sendall(sent[cut:])

    assert [inbox.receive(), inbox.receive()] == [{"id": 1}, {"id": 2}]


def test_frame_longer_than_one_receive(channel: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = channel
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    theirs.sendall(frame({"text": "x" * 150_000}))

    assert len(Inbox(ours).receive()["text"]) == 150_000


@cases("body", [b"{", b"\xff", b"[" * 5000, b"9" * 5000])
def test_garbage_is_a_value_error(body: bytes, channel: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = channel
    theirs.sendall(len(body).to_bytes(4, "big") + body)

    with pytest.raises(ValueError, match=r"."):
        Inbox(ours).receive()


def test_a_frame_that_is_no_object_is_a_type_error(channel: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = channel
    theirs.sendall(b"\0\0\0\2[]")

    with pytest.raises(TypeError):
        Inbox(ours).receive()


def test_too_long_a_frame_is_refused_before_it_is_read(channel: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = channel
    theirs.sendall((MAX_FRAME + 1).to_bytes(4, "big"))

    with pytest.raises(ValueError, match="longer than"):
        Inbox(ours).receive()


def test_garbage_after_a_frame_is_not_awaited(channel: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = channel
    theirs.sendall(frame({"id": 1}) + b"\xff" * 64)
    inbox = Inbox(ours)

    assert inbox.receive() == {"id": 1}
    assert inbox.ready()


def test_the_end_in_the_middle_of_a_frame(channel: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = channel
    theirs.sendall(b"\0\0\0\x09{}")
    theirs.close()

    with pytest.raises(EOFError):
        Inbox(ours).receive()
