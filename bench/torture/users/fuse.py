"""A FUSE file system that a user without rights mounts in a user namespace of its own.

Its file opens, but a close of it (FLUSH) is never answered: the process that closes it is in state D as long as the
file system is mounted.
"""

from __future__ import annotations

import ctypes
import os
import socket
import stat
import struct
import time
from pathlib import Path

from bench.torture.honest import end_with_parent
from bench.torture.kernel import GETATTR, INIT, INIT_ANSWER, attributes, replied, request_of
from bench.torture.users.target import become

_libc = ctypes.CDLL(None, use_errno=True)
_NEWNS, _NEWUSER = 0x00020000, 0x10000000  # clone(2)
_DEVICE = os.makedev(10, 229)
_LOOKUP, _OPEN, _RELEASE, _OPENDIR = 1, 14, 18, 27
_FOLDER, _FILE = stat.S_IFDIR | 0o777, stat.S_IFREG | 0o666
_KEPT_SECONDS = 3600


def closing_hangs(folder: Path, uid: int, count: int) -> tuple[list[int], int]:
    """Return `count` descriptors of a file whose close hangs until a child process is killed, and the child's pid.

    Needs root, because /dev/fuse is closed to users on some machines. The child does everything else as the user `uid`.
    Raises OSError.
    """
    device = folder / f"fuse-{uid}"
    os.mknod(device, stat.S_IFCHR | 0o666, _DEVICE)
    device.chmod(0o666)  # as on most machines
    (folder / f"mount-{uid}").mkdir()
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            become(uid)
            _serve(device, folder / f"mount-{uid}", there, count)
        finally:
            os._exit(1)
    there.close()
    with here:
        found = list[int]()
        while len(found) < count:
            data, descriptors, _, _ = socket.recv_fds(here, 1, 16)
            if not data:
                raise OSError(0, "no FUSE file system can be mounted in a user namespace")
            found += descriptors
    return found, child


def _serve(device: Path, mount: Path, there: socket.socket, count: int) -> None:
    uid = os.getuid()
    _checked(_libc.unshare(_NEWUSER | _NEWNS), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {uid} 1")):
        Path(f"/proc/self/{name}").write_text(text)
    fuse = os.open(device, os.O_RDWR)
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    _checked(_libc.mount(b"torture", str(mount).encode(), b"fuse", 0, options), "mount")
    # The process that answers opens no file: a process that waits for its own answer could not be ended.
    if os.fork() == 0:
        end_with_parent()
        os.close(fuse)
        for _ in range(count):
            socket.send_fds(there, [b"x"], [os.open(mount / "file", os.O_RDWR)])
        time.sleep(_KEPT_SECONDS)
        os._exit(0)
    there.close()
    while True:
        opcode, unique, node = request_of(fuse)
        if opcode == INIT:
            body = INIT_ANSWER
        elif opcode == _LOOKUP:
            body = struct.pack("=4Q2I", 2, 0, 60, 60, 0, 0) + attributes(2, _FILE)
        elif opcode == GETATTR:
            body = struct.pack("=QII", 60, 0, 0) + attributes(node, _FOLDER if node == 1 else _FILE)
        elif opcode in {_OPEN, _OPENDIR}:
            body = struct.pack("=QII", 1, 0, 0)
        elif opcode == _RELEASE:
            body = b""
        else:  # FLUSH; requests that have no answer; others are not expected
            continue
        replied(fuse, unique, body)


def _checked(result: int, what: str) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), what)
