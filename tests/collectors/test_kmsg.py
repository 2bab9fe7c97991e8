import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpugauge.collectors.kmsg import KernelLog
from gpugauge.driver.api import KernelXid
from gpugauge.driver.nvidia.bus import parse

LOST = b"2,17,90001,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
LOST_XID = KernelXid("0000:3b:00", 79, 0.090001)
LOADED = b"5,3,2,-;NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
OVER = (
    b"4,30,90005000,-;NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) "
    b"to 0x0 (None)\n"
)
FAULT = b"4,18,90002,c;NVRM: Xid (PCI:0000:86:00): 31, pid=4242, name=python3, Ch 00000008, intr 00000000.\n"


def test_parse() -> None:
    records: list[tuple[bytes, list[KernelXid]]] = [
        (LOST, [LOST_XID]),
        (LOST + b" SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n", [LOST_XID]),
        (LOADED, [KernelXid("", None, 0.000002)]),
        (OVER, [KernelXid("0000:3b:00", 154, 90.005, over=True)]),
        (OVER.replace(b"to 0x0 (None)", b"to 0x2 (Node Reboot Required)"), [KernelXid("0000:3b:00", 154, 90.005)]),
        (b"12" + LOADED[1:], []),
        (
            b"6,1,2,-,caller=T1;NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, Contained\n",
            [KernelXid("0000:3b:00", 94, 0.000002)],
        ),
        (b"6,1,2,-;NVRM: Xid (0000:03:00): 13, 0001 00000000\n", [KernelXid("0000:03:00", 13, 0.000002)]),
        (b"6,1,2,-;NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal\n", [KernelXid("0018:01:00", 149, 0.000002)]),
        (b"6,1,2,-;NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.\n", []),
        (b"6,1,2,-;usb 1-1: NVRM: Xid (PCI:0000:3b:00): 79\n", []),
        (b"12,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, written by a program\n", []),
        (b"\xff\xfe;;\n", []),
        (b"6" * 5000 + b",1,2,-;NVRM: Xid (PCI:0000:3b:00): 79\n", []),
    ]
    assert [parse(record) for record, _ in records] == [found for _, found in records]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[KernelLog]:
    (tmp_path / "kmsg").write_bytes(FAULT)
    kernel = KernelLog(tmp_path / "kmsg", parse)
    yield kernel
    kernel.close()


def test_records_before_the_start_are_the_past(log: KernelLog, tmp_path: Path) -> None:
    assert log.past() == []
    assert log.read(0.0) == []
    with (tmp_path / "kmsg").open("ab") as file:
        file.write(LOST)

    assert log.read(1.0) == [LOST_XID]
    assert log.read(2.0) == []
    assert log.up
    assert [found.xid for found in log.past()][:1] == [31]
    assert log.past() == []


def test_a_log_that_is_opened_again_has_no_second_past(log: KernelLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.read(0.0)
    assert [found.xid for found in log.past()] == [31]
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", _fails)
        log.read(1.0)
    assert not log.up
    log.read(100.0)

    assert (log.up, log.past()) == (True, [])


def test_a_long_past_is_returned_in_parts(log: KernelLog, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [FAULT] * 2500
    monkeypatch.setattr(os, "read", lambda _file, _size: records.pop() if records else b"")
    monkeypatch.setattr(log, "read", lambda _: [])
    log._open(0.0)

    assert [len(log.past()) for _ in range(4)] == [1000, 1000, 500, 0]


def test_a_pipe_has_no_past(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    pipe = KernelLog(tmp_path / "pipe", parse)
    assert pipe.read(0.0) == []
    with (tmp_path / "pipe").open("wb", buffering=0) as writer:
        pipe.read(0.0)
        writer.write(LOST)

        assert pipe.past() == []
        assert pipe.read(1.0) == [LOST_XID]
    pipe.close()


def _fails(_file: int, _size: int) -> bytes:
    raise OSError(errno.EIO, "Input/output error")


def test_overwritten_records_are_skipped(log: KernelLog, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[bytes | OSError] = [OSError(errno.EPIPE, ""), LOST, BlockingIOError(errno.EAGAIN, "")]

    def read(_file: int, _size: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    log.read(0.0)
    monkeypatch.setattr(os, "read", read)

    assert log.read(1.0) == [LOST_XID]
    assert (log.up, answers) == (True, [])


def test_unreadable_log_is_opened_again_later(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "kmsg", parse)
    assert log.read(0.0) == []
    assert (log.up, log.error) == (False, f"{tmp_path}/kmsg: No such file or directory")

    (tmp_path / "kmsg").write_bytes(b"")
    log.read(1.0)
    assert not log.up
    log.read(61.0)
    assert (log.up, log.error) == (True, "")
    log.close()


def test_log_that_fails_is_closed(log: KernelLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.read(0.0)
    monkeypatch.setattr(os, "read", _fails)

    assert log.read(1.0) == []
    assert not log.up
