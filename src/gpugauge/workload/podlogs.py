"""Names of pods, from the names of their log files. Without an API server this is the only place on a node that joins
pod uid and container id to names. Two folders are listed; no file is opened.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from gpugauge.workload.identity import clean

_MAX_LOG_FILES = 20000
# The kubelet writes `<pod>_<namespace>_<container>-<id>.log`; names contain no underscore. Long file names are cut and
# then have no id.
_CONTAINER = re.compile(r"([^_]+)_([^_]+)_([^_]+)-([0-9a-f]{64})\.log")
_POD = re.compile(r"([^_]+)_([^_]+)_([0-9a-f-]{32,36})")


@dataclass(frozen=True, slots=True)
class Place:
    """A pod, or one of its containers if its name is known."""

    namespace: str
    pod: str
    container: str = ""


@dataclass(frozen=True, slots=True)
class PodNames:
    """Places by container id and by pod uid."""

    containers: dict[str, Place] = field(default_factory=dict)
    pods: dict[str, Place] = field(default_factory=dict)


def read_names(log: Path) -> PodNames:
    """Return the names in the folders `containers` and `pods` below `log`. Raises OSError if neither can be listed."""
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
        return [entry.name for entry in islice(entries, _MAX_LOG_FILES)]
