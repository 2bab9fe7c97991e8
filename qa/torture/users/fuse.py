"""A FUSE file system that a user without rights mounts in a user namespace of its own.

Its file opens, but neither a close (FLUSH) nor a read of it is ever answered: the process that closes it is in state D
as long as the file system is mounted. One that maps it while it is read holds the lock of its memory for as long, which
others need to read its command line or its environment.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from qa.torture.honest import end_with_parent
from qa.torture.kernel import GETATTR, INIT, INIT_ANSWER, attributes, replied, request_of
from qa.torture.users.target import become

_libc = ctypes.CDLL(None, use_errno=True)
_NEWNS, _NEWUSER = 0x00020000, 0x10000000  # clone(2)
_DEVICE = os.makedev(10, 229)
_LOOKUP, _OPEN, _RELEASE, _OPENDIR = 1, 14, 18, 27
_FOLDER, _FILE = stat.S_IFDIR | 0o777, stat.S_IFREG | 0o666
_DIRECT_IO = 1  # FOPEN_DIRECT_IO
_FILE_BYTES = 8192
_KEPT_SECONDS = 3600
_READ_SECONDS, _POLL_SECONDS = 0.5, 0.02


def closing_hangs(folder: Path, uid: int, count: int) -> tuple[list[int], int]:
    """Return `count` descriptors of a file whose close hangs until a child process is killed, and the child's pid.

    Needs root, because /dev/fuse is closed to users on some machines. The child does everything else as the user `uid`.
    Raises OSError.
    """
    here, child = _started(folder, uid, partial(_pass_open, count=count))
    with here:
        found = list[int]()
        while len(found) < count:
            data, descriptors, _, _ = socket.recv_fds(here, 1, 16)
            if not data:
                raise OSError(0, "no FUSE file system can be mounted in a user namespace")
            found += descriptors
    return found, child


def memory_hangs(folder: Path, uid: int, before: Callable[[], object] = lambda: None) -> tuple[int, int]:
    """Return the pids of a process that holds the lock of its memory, and of the child that ends it when it is killed.
    The process calls `before` before that. Needs root, as above. Raises OSError.
    """
    here, child = _started(folder, uid, partial(_map, before=before))
    with here:
        data = here.recv(16)
    if not data:
        raise OSError(0, "no FUSE file system can be mounted in a user namespace")
    held = int(data)
    while " D " not in Path(f"/proc/{held}/stat").read_text():
        time.sleep(_POLL_SECONDS)
    return held, child


def _started(folder: Path, uid: int, use: Callable[[Path, socket.socket], None]) -> tuple[socket.socket, int]:
    """Start the file system; a child of it calls `use` with the file and a socket. Return the other end, and a pid."""
    device = folder / f"fuse-{uid}"
    os.mknod(device, stat.S_IFCHR | 0o666, _DEVICE)
    device.chmod(0o666)  # as on most machines
    (folder / f"mount-{uid}").mkdir()
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            become(uid)
            _serve(device, folder / f"mount-{uid}", there, use)
        finally:
            os._exit(1)
    there.close()
    return here, child


def _pass_open(file: Path, there: socket.socket, count: int) -> None:
    for _ in range(count):
        socket.send_fds(there, [b"x"], [os.open(file, os.O_RDWR)])
    time.sleep(_KEPT_SECONDS)


def _map(file: Path, there: socket.socket, before: Callable[[], object]) -> None:
    before()
    read, mapped = (os.open(file, os.O_RDONLY) for _ in range(2))
    threading.Thread(target=os.pread, args=(read, 1, 0), daemon=True).start()  # its page stays locked
    time.sleep(_READ_SECONDS)
    there.send(b"%d" % os.getpid())
    mmap.mmap(mapped, 1, mmap.MAP_PRIVATE, mmap.PROT_READ)


def _serve(device: Path, mount: Path, there: socket.socket, use: Callable[[Path, socket.socket], None]) -> None:
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
        use(mount / "file", there)
        os._exit(0)
    there.close()
    opened = 0
    while True:
        opcode, unique, node = request_of(fuse)
        if opcode == INIT:
            body = INIT_ANSWER
        elif opcode == _LOOKUP:
            body = struct.pack("=4Q2I", 2, 0, 60, 60, 0, 0) + attributes(2, _FILE, _FILE_BYTES)
        elif opcode == GETATTR:
            body = struct.pack("=QII", 60, 0, 0) + (
                attributes(node, _FOLDER) if node == 1 else attributes(node, _FILE, _FILE_BYTES)
            )
        elif opcode == _OPENDIR:
            body = struct.pack("=QII", 1, 0, 0)
        elif opcode == _OPEN:
            # To map a file without a cache, the kernel waits for its pages that others read.
            body, opened = struct.pack("=QII", 1, _DIRECT_IO if opened else 0, 0), opened + 1
        elif opcode == _RELEASE:
            body = b""
        else:  # READ; FLUSH; requests that have no answer; others are not expected
            continue
        replied(fuse, unique, body)


def _checked(result: int, what: str) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), what)


def _hang_until_the_input_ends() -> None:
    held, child = memory_hangs(Path(sys.argv[1]), int(sys.argv[2]))
    print(held, flush=True)
    sys.stdin.read()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


if __name__ == "__main__":
    _hang_until_the_input_ends()
