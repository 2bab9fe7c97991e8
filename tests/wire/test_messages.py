"""Messages: encoding and decoding, rejection of invalid messages, compatibility of minor versions."""

import contextlib
import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpugauge.wire import messages as wire
from gpugauge.wire.decoding import decode
from tests.drawn import cases

SESSION = "0123456789abcdef" * 2

MESSAGES = (
    wire.Hello(SESSION, 0, 42, 4026531836, 1700000000.5, {"torch": "2.13.0+cpu", "rank": "0"}),
    wire.Snap(
        SESSION,
        7,
        123456789,
        wire.Progress(3, 0.25, 1700000001.5, (0, 2, 1)),
        wire.Progress(4, 0.5),
        (wire.Parameters("cuda:0", "bfloat16", 2, 30, 60),),
        (wire.Device(0, "GPU-1", 10, 20, 30, 15, 5, 0, 1), wire.Device(1)),
        0,
    ),
    wire.Snap(SESSION, 8),
    wire.Snap(SESSION, 8, samples=7, tokens=70, flops={"stated": 0.0, "parameters": 1e18}),
    wire.Snap(SESSION, 8, loader=wire.Loader(7)),
    wire.Snap(SESSION, 8, loader=wire.Loader(7, 5, *(0.5,) * 5, 2, 2, 0.25, 0.75, 1 << 20, 3.5, 0.125)),
    wire.Bye(SESSION, 9, "finished"),
)


def raw(**changes: Any) -> bytes:
    body: dict[str, Any] = {"v": [1, 0], "kind": "snap", "session": SESSION, "sequence": 1}
    body.update(changes)
    return json.dumps({key: value for key, value in body.items() if value is not ...}).encode()


def test_decode_returns_the_encoded_message() -> None:
    assert [decode(wire.encode(message)) for message in MESSAGES] == list(MESSAGES)


def test_the_largest_snapshot_of_a_hook_fits() -> None:
    large = 2**62
    counts = (large,) * wire.LOG2_BUCKETS
    figures = ("allocated", "allocated_peak", "reserved", "active", "inactive_split", "retries", "ooms")
    device = wire.Device(
        15, "GPU-" + "f" * 36, **dict.fromkeys(figures, large), name="NVIDIA H200 " * 3, capability="12.0"
    )
    parameters = wire.Parameters("cuda:15", "float8_e4m3fn", large, large, large)
    progress = wire.Progress(large, 1e9 / 3, 1e9 / 3, counts)
    facts = {f"a_rather_long_name_{i}": "x" * 40 for i in range(35)}
    snap = wire.Snap(
        *(SESSION, large, large, progress, progress, (parameters,) * 16, (device,) * 16, 10, facts, "optimizer"),
        *((parameters,) * 16, 1e9 / 3, 1e9 / 3, large),
        samples=large,
        tokens=large,
        flops=dict.fromkeys(wire.FLOP_SOURCES, 1e36 / 3),
        loader=wire.Loader(large, large, *(1e9 / 3,) * 5, large, large, 1e9 / 3, 1 / 3, large, 1e9 / 3, 1e9 / 3),
    )
    assert snap == decode(wire.encode(snap))


def test_a_newer_minor_version_is_understood() -> None:
    newer = raw(v=[1, 9], mood="good", devices=[{"index": 0, "power": {"watts": 3}}], steps={"count": 2, "p99": 1})
    assert wire.Snap(SESSION, 1, steps=wire.Progress(2), devices=(wire.Device(0),)) == decode(newer)
    flops = raw(v=[1, 9], flops={"guessed": "many", "stated": 5})
    assert wire.Snap(SESSION, 1, flops={"stated": 5.0}) == decode(flops)


@cases(
    ("data", "reason", "expected"),
    [
        (b"GET / HTTP/1.1\r\n", "foreign", "one JSON object"),
        (b"\xff\xfe", "foreign", "one JSON object"),
        (b"[" * 9000, "foreign", "one JSON object"),
        (b"[]", "foreign", "the message is a JSON object"),
        (b"{}", "foreign", "major version is 1"),
        (raw(v=[2, 0]), "foreign", "major version is 1"),
        (b" " * (wire.MAX_MESSAGE_BYTES + 1), "oversized", "at most 16384 bytes"),
        (raw(v="1"), "malformed", "v in the message is a list"),
        (raw(kind="greeting"), "malformed", "hello, snap, answer, bye"),
        (raw(kind=...), "malformed", "kind in the message is 1 to 64"),
        (raw(session=...), "malformed", "session in the message is 1 to 64"),
        (raw(session="x" * 65), "malformed", "session in the message is 1 to 64"),
        (raw(session="line\nbreak"), "malformed", "printable"),
        (raw(session="\ud800"), "malformed", "printable"),
        (raw(sequence=-1), "malformed", "sequence in the message is a whole number"),
        (raw(sequence=True), "malformed", "whole number"),
        (raw(sequence=2**63), "malformed", "whole number"),
        (raw(sequence=None), "malformed", "sequence in the message is missing"),
        (raw(steps={"count": 1, "seconds": float("nan")}), "malformed", "seconds in steps is a finite number"),
        (raw(flops={"stated": 2e36}), "malformed", "stated in flops is a finite number from 0 to 1e"),
        (raw(steps={"count": 1, "last": float("inf")}), "malformed", "last in steps is a finite number"),
        (raw(steps=[]), "malformed", "steps in the message is a dict"),
        (raw(steps={"count": 1, "log2": [0] * 35}), "malformed", "log2 of steps is a list of at most 34"),
        (raw(steps={"count": 1, "log2": [0.5]}), "malformed", "log2 of steps"),
        (raw(devices=[{"index": 0}] * 17), "malformed", "devices has at most 16"),
        (raw(devices=[7]), "malformed", "an entry of devices is a JSON object"),
        (raw(devices=[{"index": 0, "uuid": "\x1b[31m"}]), "malformed", "uuid in an entry of devices"),
        (raw(parameters=[{"device": "cpu"}]), "malformed", "dtype in an entry of parameters"),
        (raw(kind="hello", facts={"torch": 2}), "malformed", "facts are at most 64"),
        (raw(kind="hello", facts={str(i): "x" for i in range(65)}), "malformed", "facts are at most 64"),
        (raw(flops={"stated": -1}), "malformed", "stated in flops is a finite number"),
        (raw(flops=[]), "malformed", "flops in the message is a dict"),
        (raw(kind="hello", started=-1), "malformed", "started in the message is a finite number"),
        (raw(steps={"count": 1, "seconds": 1e19}), "malformed", "seconds in steps is a finite number from 0 to 2"),
    ],
)
def test_an_invalid_message_is_rejected_with_the_expectation(data: bytes, reason: str, expected: str) -> None:
    with pytest.raises(wire.WireError, match=expected) as caught:
        decode(data)
    assert reason == caught.value.reason


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.integers() | st.floats() | st.text(), st.lists).map(
        lambda value: raw(steps=value, devices=value, parameters=value)
    )
)
def test_decode_raises_only_wire_error(data: bytes) -> None:
    with contextlib.suppress(wire.WireError):
        assert isinstance(decode(data), (wire.Hello, wire.Snap, wire.Bye))


@given(st.dictionaries(st.text(st.characters(codec="ascii"), min_size=1, max_size=8), st.floats(0), max_size=64))
@example({str(number): 1.7e308 for number in range(2)})
@example({str(number): 2.0**62 for number in range(64)})
def test_sums_of_what_many_sessions_report_are_finite(waits: dict[str, float]) -> None:
    with contextlib.suppress(wire.WireError):
        message = decode(raw(waits=waits, exposed_wait_seconds=max(waits.values(), default=0.0)))
        assert isinstance(message, wire.Snap)
        seconds = [*(message.waits or {}).values(), message.exposed_wait_seconds or 0.0]
        assert math.isfinite(sum(seconds) * 100_000)


def test_a_message_that_is_too_long_is_not_encoded() -> None:
    many = {f"{i:064}": "y" * 64 for i in range(200)}
    with pytest.raises(wire.WireError, match="at most 16384 bytes"):
        wire.encode(wire.Hello(SESSION, 0, facts=many))


@cases(("seconds", "bucket"), [(0, 0), (2**-20, 0), (0.5, 19), (1, 20), (1.000000001, 21), (2, 21), (1e9, 33)])
def test_a_duration_belongs_to_the_bucket_whose_bound_it_does_not_exceed(seconds: float, bucket: int) -> None:
    assert bucket == wire.log2_bucket(int(seconds * 1e9))


def test_text_is_cleaned_for_sending() -> None:
    assert wire.clean("a\nb\x1b" + "x" * 100) == "a?b?" + "x" * 60


def test_the_environment_chooses_the_sockets() -> None:
    own = {"XDG_RUNTIME_DIR": "/run/user/1000"}
    assert wire.client_paths({}) == ("/run/gpugauge/hook.sock",)
    assert wire.client_paths(own) == ("/run/gpugauge/hook.sock", "/run/user/1000/gpugauge/hook.sock")
    assert wire.client_paths({**own, "GPUGAUGE_HOOK_SOCKET": "/tmp/s"}) == ("/tmp/s",)
    assert wire.server_path({**own, "GPUGAUGE_HOOK_SOCKET": "/tmp/s"}) == "/tmp/s"
    assert wire.server_path({}) == "/run/gpugauge/hook.sock"


@cases(("uid", "path"), [(0, "/run/gpugauge/hook.sock"), (1000, "/run/user/1/gpugauge/hook.sock")])
def test_a_users_own_daemon_listens_in_its_runtime_directory(
    uid: int, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: uid)
    assert path == wire.server_path({"XDG_RUNTIME_DIR": "/run/user/1"})
