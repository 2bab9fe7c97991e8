"""Environment variables with our prefix that nothing reads: they would have no effect."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

# Kubernetes sets GPUGAUGE_SERVICE_HOST, GPUGAUGE_PORT_10478_TCP_ADDR and others in every pod beside a service that is
# called gpugauge; https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_.+)?)?)")
# Variables that other parts read and that may be set for a whole machine: the hook in a training process, the command
# line before the settings are read, the build of the package, and the scripts for Slurm.
OTHER_VARIABLES = frozenset(
    {
        *("GPUGAUGE_HOOK", "GPUGAUGE_HOOK_SOCKET", "GPUGAUGE_HOOK_RECAP", "GPUGAUGE_HOOK_COUNT_FLOPS"),
        *("GPUGAUGE_RUN_ID", "GPUGAUGE_JOB"),
        *("GPUGAUGE_CONFIG_FILE", "GPUGAUGE_REVISION", "GPUGAUGE_JOBS", "GPUGAUGE_PROC"),
    }
)


def unknown_variables(environ: Mapping[str, str], known: Collection[str]) -> Iterator[str]:
    """Yield the names of variables with our prefix that are not in `known`, nor set by Kubernetes."""
    for name in environ:
        if name.startswith("GPUGAUGE_") and name not in known and not _SERVICE_LINK.fullmatch(name):
            yield name
