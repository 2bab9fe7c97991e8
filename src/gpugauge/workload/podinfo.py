"""The pod in which the daemon runs as a sidecar, from the files of a downward API volume.

Kubernetes writes one file for each field: `namespace`, `name`, `uid`, and `labels` with a line `key="value"` for each
label (https://kubernetes.io/docs/concepts/workloads/pods/downward-api/).
"""

from __future__ import annotations

import json
from pathlib import Path

from gpugauge.workload.controllers import Pod
from gpugauge.workload.identity import clean

_MAX_BYTES = 65536


class PodInfoError(Exception):
    """The folder does not describe a pod; the message states which file is missing, and what to do."""


def read_pod(folder: Path) -> Pod:
    """Return the pod that a folder describes. Raises PodInfoError."""
    try:
        namespace, name = (clean(_read(folder / field)) for field in ("namespace", "name"))
    except OSError as error:
        raise PodInfoError(
            f"{error.filename}: {error.strerror}: kubernetes.pod_info is the folder of a downwardAPI volume with the "
            "files namespace, name, uid and labels"
        ) from error
    if not namespace or not name:
        raise PodInfoError(f"{folder}: namespace and name of the pod must not be empty")
    return Pod(namespace, name, _optional(folder / "uid").strip(), _labels(_optional(folder / "labels")))


def _labels(text: str) -> dict[str, str]:
    """Return the labels; a line that is not `key="value"` is ignored."""
    found = {}
    for line in text.splitlines():
        key, equals, quoted = line.partition("=")
        try:
            value = json.loads(quoted) if equals else ""
        except ValueError:
            continue
        if isinstance(value, str) and value:
            found[key] = clean(value)
    return found


def _optional(path: Path) -> str:
    try:
        return _read(path)
    except OSError:
        return ""


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MAX_BYTES).decode(errors="replace")
