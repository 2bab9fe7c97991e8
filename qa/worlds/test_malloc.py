"""The parameters of glibc's malloc that the daemon sets, by what they do in a process of their own."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, json, threading
from gpugauge.daemon import app

names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in names]

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
libc.mallinfo2.restype = Info
for parameter, value in app._MALLOC.items():
    assert libc.mallopt(parameter, value) == 1
found, kib = {}, 1024
before = libc.mallinfo2().hblks
blocks = [libc.malloc(300 * kib), libc.malloc(600 * kib)]
found["mapped"] = libc.mallinfo2().hblks - before
libc.free(blocks[1])
libc.mallopt(-2, 0)  # the heap grows by what is needed
last = libc.malloc(170 * kib)
before = libc.mallinfo2().arena
libc.free(last)
found["kept after 170 KiB"] = before == libc.mallinfo2().arena
threads = [threading.Thread(target=lambda: libc.malloc(kib)) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.tmpfile.restype, libc.malloc_info.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
libc.rewind.argtypes, out = [ctypes.c_void_p], libc.tmpfile()
libc.malloc_info(0, out)
libc.rewind(out)
text = ctypes.create_string_buffer(1 << 16)
libc.fread.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
libc.fread(text, 1, len(text), out)
found["heaps"] = text.value.count(b"<heap nr")
print(json.dumps(found))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_one_heap_and_fixed_thresholds() -> None:
    # Before the daemon sets its own, those of glibc hold, whatever was freed during the imports.
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    command = [sys.executable, "-c", PROGRAM]
    made = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=env)

    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout) == {"mapped": 1, "kept after 170 KiB": True, "heaps": 1}
