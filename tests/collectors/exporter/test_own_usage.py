import os
import subprocess
import time
from pathlib import Path

import pytest

from gpugauge.collectors.exporter.exporter import read_usage
from gpugauge.workload.procfs import Procfs


def test_usage_of_this_process() -> None:
    found = read_usage(os.getpid())

    assert found
    assert 0 < found.cpu <= time.process_time() + 0.1  # clock ticks
    assert 1 << 20 < found.resident < 1 << 40
    assert found.descriptors == pytest.approx(len(list(Path("/proc/self/fd").iterdir())), abs=2)
    assert found.started is not None
    assert 0 <= time.time() - found.started < 86400


def test_ended_process_has_no_usage() -> None:
    process = subprocess.Popen(["true"])
    process.wait()

    assert read_usage(process.pid) is None


def test_unreadable_values_are_none(tmp_path: Path) -> None:
    stat = f"7 (a ) b) S 1 {'0 ' * 9}250 50 0 0 20 0 1 0 1234 0 3 0"
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text(stat)

    found = read_usage(7, Procfs(str(tmp_path)))

    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    assert found
    assert (300 / ticks, 3 * page, None, None) == (found.cpu, found.resident, found.descriptors, found.started)
