"""Jobs by device, from the files of a scheduler's prolog, in the layout of dcgm-exporter's `--hpc-job-mapping-dir`.

There is one file per device, named by its index (`0`; `0.2` for GPU instance 2 of GPU 0) or uuid, with a job id on each
line. Some prologs write the uid as a second word.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from gpugauge.workload.identity import Workload, clean

_INDEX = re.compile(r"\d{1,4}(?:\.\d{1,4})?")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z-]{1,80}")
_MAX_FILES, _MAX_BYTES, _MAX_JOBS = 1024, 65536, 64


def read_jobs(folder: Path, user_name: Callable[[int], str]) -> dict[str, tuple[Workload, ...]]:
    """Return the jobs by `index:0`, `index:0.2` or uuid. A file that cannot be read has no jobs. Raises OSError if the
    folder cannot be listed.
    """
    with os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, _MAX_FILES)]
    devices = {}
    for name in names:
        if _INDEX.fullmatch(name) or _UUID.fullmatch(name):
            lines = _read(folder / name).splitlines()
            jobs = dict.fromkeys(_job(line.split(), user_name) for line in lines if line.strip())
            if jobs:
                devices[f"index:{name}" if name[0].isdigit() else name] = tuple(islice(jobs, _MAX_JOBS))
    return devices


def _job(words: list[bytes], user_name: Callable[[int], str]) -> Workload:
    user = words[1] if len(words) > 1 and words[1].isdigit() and len(words[1]) <= 10 else None
    return Workload("slurm", job_id=clean(words[0]), user=clean(user_name(int(user))) if user else "")


def _read(path: Path) -> bytes:
    """Return the content of a regular file, otherwise nothing: reading a pipe could block."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _MAX_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)
