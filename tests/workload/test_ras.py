"""NCCL's RAS, by a double of its protocol. Who answers badly is in qa/worlds/test_nccl.py."""

from __future__ import annotations

import os
from pathlib import Path

from qa.worlds.ras import NEW, OLD, Ras, answer, communicator, missing, rank, says
from qa.worlds.trees import proc

from gpugauge.workload.processfiles import HostProcess
from gpugauge.workload.procfs import Procfs
from gpugauge.workload.ras import Launches, inquire


def test_a_port_of_the_same_user_says_who_is_behind_and_missing(tmp_path: Path) -> None:
    made, procfs, network = proc(tmp_path), Procfs(str(tmp_path)), Path("/proc/self/ns/net").readlink().name[5:-1]
    text = answer(communicator([rank(0, 41, 9), rank(1, 42, 12)], [missing(2, 7, dead=True)]))
    said = {"a": Launches(21, behind=3, rank="0", host="127.0.0.1", dead=1, size=3)}
    # What NCCL before 2.29.2 is asked can crash it, and another user may say what he likes.
    for version, uid, found in ((NEW, os.getuid(), said), (OLD, os.getuid(), {}), (NEW, os.getuid() + 1, {})):
        with Ras(says(text), version) as ras:
            made.process(41, uid=uid, network=network, environ={"NCCL_RAS_ADDR": f"localhost:{ras.port}"})
            stat = procfs.stat(41)
            assert stat
            assert inquire(procfs, ["a"], {"a": HostProcess("a", 41, stat)}) == found
            assert ("STATUS" in ras.lines) == bool(found)
