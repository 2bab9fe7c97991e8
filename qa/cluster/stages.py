"""The stages of the cluster's test, by price: a table of what each one needs and shows."""

from __future__ import annotations

import os
import shutil
from typing import NamedTuple

from qa.cluster.cluster import CONTROL, programs


class Stage(NamedTuple):
    """Tests that need the same parts of a cluster."""

    name: str
    shows: str
    file: str
    nodes: bool
    ci: bool = False  # fast enough for each run of CI: the others take ten minutes
    since: tuple[int, ...] = (1, 20)  # the oldest Kubernetes; with an older one, conftest.py names what is left out


STAGES = (
    Stage("api", "what the API server makes of every folder and of the chart", "test_api.py", nodes=False, ci=True),
    Stage("document", "the commands of docs/install-kubernetes.md, in order", "test_document.py", nodes=True),
    Stage("identity", "the owners of pods, from two kubelets and the API", "test_identity.py", nodes=True),
    Stage("hook", "the hook by the device plugin, on two kubelets", "test_hook.py", nodes=True),
    Stage("job", "pods of a Job that do not run as root: one job, one notification", "test_job.py", nodes=True),
    Stage(
        "sidecar", "native sidecars: a Job that completes, one that fails", "test_sidecar.py", nodes=True, since=(1, 29)
    ),
)
_API = ("etcd", "kubectl", "ip", "unshare")
_NODES = ("containerd", "ctr", "runc", "podman", "mmdebstrap")


def split(cached: bool) -> tuple[list[Stage], list[tuple[Stage, str]]]:
    """Return the stages that can run, of those of CI if `cached`, and the others with the reason."""
    runs, lacking = [], []
    for stage in STAGES:
        missing = _missing(stage)
        if cached and not stage.ci:
            lacking.append((stage, "not part of .ci/run, but of .ci/cluster"))
        elif missing:
            lacking.append((stage, f"missing: {', '.join(missing)}; .ci/cluster brings it"))
        else:
            runs.append(stage)
    return runs, lacking


def _missing(stage: Stage) -> list[str]:
    if os.geteuid() != 0:
        return ["root"]
    built = [*CONTROL, *(["kubelet"] if stage.nodes else [])]
    missing = [name for name in built if not os.access(programs() / name, os.X_OK)]
    return missing + [name for name in [*_API, *(_NODES if stage.nodes else ())] if not shutil.which(name)]
