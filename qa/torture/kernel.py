"""System calls on another process: stop one of its threads, copy its descriptors, block it in the kernel."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
# linux/include/uapi/linux/ptrace.h
_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_WALL = 0x40000000
_PIDFD_GETFD = 438  # the same number on every architecture
# linux/include/uapi/linux/fuse.h: struct fuse_in_header; opcodes; struct fuse_out_header, fuse_attr and fuse_init_out.
_IN_HEADER = struct.Struct("=IIQQIIIHH")
_OUT_HEADER = struct.Struct("=IiQ")
GETATTR, INIT = 3, 26
_FORCE, _DETACH_MOUNT = 1, 2  # umount2(2)
_ATTRIBUTES = struct.Struct("=6QIII7I")
INIT_ANSWER = struct.pack("=IIIIHHIIHHI7I", 7, 31, 0, 0, 0, 0, 4096, 0, 0, 0, 0, *[0] * 7)
_READ_BYTES = 1 << 18  # more than any request


def _ptrace(request: int, tid: int) -> None:
    if _libc.ptrace(request, tid, None, None) < 0:
        raise OSError(ctypes.get_errno(), f"ptrace {request:#x} of {tid}")


@contextlib.contextmanager
def stopped_thread(tid: int) -> Iterator[None]:
    """Stop one thread of another process inside the context. Enter and leave it from the same thread (ptrace)."""
    _ptrace(_SEIZE, tid)
    _ptrace(_INTERRUPT, tid)
    os.waitpid(tid, _WALL)
    try:
        yield
    finally:
        _ptrace(_DETACH, tid)


def waits_for_time(pid: int, tid: int) -> bool:
    """Return whether a thread sleeps, and so does not hold the lock of the interpreter."""
    status = Path(f"/proc/{pid}/task/{tid}/status").read_text()
    return "State:\tS" in status


def descriptor_of(pid: int, number: int) -> int:
    """Return a copy of another process's descriptor."""
    pidfd = os.pidfd_open(pid)
    try:
        copy: int = _libc.syscall(_PIDFD_GETFD, pidfd, number, 0)
    finally:
        os.close(pidfd)
    if copy < 0:
        raise OSError(ctypes.get_errno(), f"descriptor {number} of {pid}")
    return copy


def worker_channel(worker: int) -> socket.socket:
    """Return the worker's end of its pipe to the daemon."""
    words = Path(f"/proc/{worker}/cmdline").read_bytes().split(b"\0")
    return socket.socket(fileno=descriptor_of(worker, int(words[words.index(b"--fd") + 1])))


@contextlib.contextmanager
def hanging_folder(folder: Path) -> Iterator[Path]:
    """Mount a file system that never answers requests about a file, and yield a file in it.

    A process that accesses the file is in uninterruptible sleep (D) until the context is left, whatever signals it
    receives. Needs root and /dev/fuse.
    """
    folder.mkdir()
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if _libc.mount(b"torture", str(folder).encode(), b"fuse", 0, options) < 0:
        error = ctypes.get_errno()
        os.close(device)
        raise OSError(error, "mounting a FUSE file system")
    threading.Thread(target=_answer_folder_only, args=(device,), daemon=True).start()
    try:
        yield folder / "file"
    finally:
        # MNT_FORCE aborts the connection, which wakes the waiting processes; then the mount is detached.
        for flag in (_FORCE, _DETACH_MOUNT):
            _libc.umount2(str(folder).encode(), flag)
        os.close(device)


def _answer_folder_only(device: int) -> None:
    """Answer the handshake and requests about the folder itself, and nothing else."""
    with contextlib.suppress(OSError):
        while True:
            opcode, unique, node = request_of(device)
            if opcode == INIT:
                replied(device, unique, INIT_ANSWER)
            elif opcode == GETATTR and node == 1:
                replied(device, unique, struct.pack("=QII", 1, 0, 0) + attributes(node, 0o40755))


def request_of(device: int) -> tuple[int, int, int]:
    """Return opcode, number and node of the next request to a FUSE file system. Raises OSError at its end."""
    _, opcode, unique, node, *_ = _IN_HEADER.unpack_from(os.read(device, _READ_BYTES))
    return opcode, unique, node


def replied(device: int, unique: int, body: bytes) -> None:
    """Answer a request."""
    os.write(device, _OUT_HEADER.pack(_OUT_HEADER.size + len(body), 0, unique) + body)


def attributes(node: int, mode: int, size: int = 0) -> bytes:
    """Return the attributes of a file or folder of root (struct fuse_attr)."""
    return _ATTRIBUTES.pack(node, size, 0, 0, 0, 0, 0, 0, 0, mode, 2, 0, 0, 0, 4096, 0)
