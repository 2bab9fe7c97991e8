"""Names of pods from the names of their log files: the only place on a node that joins uid and container id to names
without asking an API server. Nothing is opened; listing two folders is enough.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from gpugauge.workload.identity import clean

_MAX_ENTRIES = 20000
# The kubelet's `<pod>_<namespace>_<container>-<id>.log`; names have no underscore. A long one loses its end, the id.
_CONTAINER = re.compile(r"([^_]+)_([^_]+)_([^_]+)-([0-9a-f]{64})\.log")
_POD = re.compile(r"([^_]+)_([^_]+)_([0-9a-f-]{32,36})")


@dataclass(frozen=True, slots=True)
class Place:
    """A container in Kubernetes; its own name may be unknown."""

    namespace: str
    pod: str
    container: str = ""


@dataclass(frozen=True, slots=True)
class PodNames:
    """Places by container id and by pod uid."""

    containers: dict[str, Place] = field(default_factory=dict)
    pods: dict[str, Place] = field(default_factory=dict)


def read_names(log: Path) -> PodNames:
    """List `containers` and `pods` below /var/log, or one of them. Raises OSError if neither can be listed."""
    names, errors = PodNames(), []
    try:
        for match in filter(None, map(_CONTAINER.fullmatch, _entries(log / "containers"))):
            names.containers[match[4]] = Place(clean(match[2]), clean(match[1]), clean(match[3]))
    except OSError as error:
        errors.append(error)
    try:
        for match in filter(None, map(_POD.fullmatch, _entries(log / "pods"))):
            names.pods[match[3]] = Place(clean(match[1]), clean(match[2]))
    except OSError as error:
        errors.append(error)
    if len(errors) == 2:
        raise errors[1]
    return names


def _entries(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in islice(entries, _MAX_ENTRIES)]
