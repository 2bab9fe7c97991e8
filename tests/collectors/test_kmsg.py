import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpugauge.collectors.kmsg import KernelLog, KernelXid, parse, pci_address

LOST = b"2,17,90001,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
FAULT = b"4,18,90002,c;NVRM: Xid (PCI:0000:86:00): 31, pid=4242, name=python3, Ch 00000008, intr 00000000.\n"


@pytest.mark.parametrize(
    ("record", "found"),
    [
        (LOST, [KernelXid("0000:3b:00", 79)]),
        (LOST + b" SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n", [KernelXid("0000:3b:00", 79)]),
        (b"6,1,2,-,caller=T1;NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, Contained\n", [KernelXid("0000:3b:00", 94)]),
        (b"6,1,2,-;NVRM: Xid (0000:03:00): 13, 0001 00000000\n", [KernelXid("0000:03:00", 13)]),
        (b"6,1,2,-;NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT\n", [KernelXid("0018:01:00", 149)]),
        (b"6,1,2,-;NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.\n", []),
        (b"6,1,2,-;usb 1-1: NVRM: Xid (PCI:0000:3b:00): 79\n", []),
        (b"12,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, written by a program\n", []),
        (b"\xff\xfe;;\n", []),
        (b"6" * 5000 + b",1,2,-;NVRM: Xid (PCI:0000:3b:00): 79\n", []),
    ],
)
def test_parse(record: bytes, found: list[KernelXid]) -> None:
    assert parse(record) == found


@pytest.mark.parametrize(
    ("bus_id", "address"),
    [
        ("00000000:3B:00.0", "0000:3b:00"),
        ("0000:3b:00", "0000:3b:00"),
        ("00010000:01:00.0", "10000:01:00"),
        ("00000018:01:00.0", "0018:01:00"),
    ],
)
def test_driver_and_kernel_addresses_are_equal(bus_id: str, address: str) -> None:
    assert pci_address(bus_id) == address


@pytest.fixture
def log(tmp_path: Path) -> Iterator[KernelLog]:
    (tmp_path / "kmsg").write_bytes(FAULT)
    kernel = KernelLog(tmp_path / "kmsg")
    yield kernel
    kernel.close()


def test_records_before_the_start_are_ignored(log: KernelLog, tmp_path: Path) -> None:
    assert log.read(0.0) == []
    with (tmp_path / "kmsg").open("ab") as file:
        file.write(LOST)

    assert log.read(1.0) == [KernelXid("0000:3b:00", 79)]
    assert log.read(2.0) == []
    assert log.up


def test_overwritten_records_are_skipped(log: KernelLog, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[bytes | OSError] = [OSError(errno.EPIPE, ""), LOST, BlockingIOError(errno.EAGAIN, "")]

    def read(_file: int, _size: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    log.read(0.0)
    monkeypatch.setattr(os, "read", read)

    assert log.read(1.0) == [KernelXid("0000:3b:00", 79)]
    assert (log.up, answers) == (True, [])


def test_unreadable_log_is_opened_again_later(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "kmsg")
    assert log.read(0.0) == []
    assert (log.up, log.error) == (False, f"{tmp_path}/kmsg: No such file or directory")

    (tmp_path / "kmsg").write_bytes(b"")
    log.read(1.0)
    assert not log.up
    log.read(61.0)
    assert (log.up, log.error) == (True, "")
    log.close()


def test_log_that_fails_is_closed(log: KernelLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_file: int, _size: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    log.read(0.0)
    monkeypatch.setattr(os, "read", fail)

    assert log.read(1.0) == []
    assert not log.up
