from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from gpugauge.driver.frames import MAX_FRAME, receive_frame, send_frame


@pytest.fixture
def channel() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_what_is_sent_is_received(channel: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = channel
    send_frame(theirs, {"id": 1, "text": "é\ud800"})
    send_frame(theirs, {})

    assert [receive_frame(ours), receive_frame(ours)] == [{"id": 1, "text": "é\ud800"}, {}]


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 5000, b"9" * 5000])
def test_garbage_is_a_value_error(body: bytes, channel: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = channel
    theirs.sendall(len(body).to_bytes(4, "big") + body)

    with pytest.raises(ValueError, match=r"."):
        receive_frame(ours)


def test_a_frame_that_is_no_object_is_a_type_error(channel: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = channel
    theirs.sendall(b"\0\0\0\2[]")

    with pytest.raises(TypeError):
        receive_frame(ours)


def test_too_long_a_frame_is_refused_before_it_is_read(channel: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = channel
    theirs.sendall((MAX_FRAME + 1).to_bytes(4, "big"))

    with pytest.raises(ValueError, match="longer than"):
        receive_frame(ours)


def test_the_end_in_the_middle_of_a_frame(channel: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = channel
    theirs.sendall(b"\0\0\0\x09{}")
    theirs.close()

    with pytest.raises(EOFError):
        receive_frame(ours)
