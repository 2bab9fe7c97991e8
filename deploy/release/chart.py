"""Writes the Helm chart as one file into dist, and pushes it to an OCI registry: `make release-chart`.

    python3 deploy/release/chart.py [--to oci://registry.example/charts]

Helm's own code does both, from the package helm-python-sdk. The login is that of `helm` or `docker`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from helm_python import HelmError, RegistryClient, package

_ROOT = Path(__file__).parents[2]


def release(to: str | None, dist: Path, plain_http: bool) -> str:
    """Write the chart, push it if there is a destination, and return its path or its name. Raises HelmError."""
    dist.mkdir(exist_ok=True)
    path: str = package(_ROOT / "deploy" / "helm" / "gpugauge", destination=dist)
    if to is None:
        return path
    with RegistryClient(plain_http=plain_http) as client:
        client.push(path, to, plain_http=plain_http)
    name, _, version = Path(path).stem.rpartition("-")
    return f"{to}/{name}:{version}"


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", help="folder of the registry, oci://…; without it nothing is pushed")
    parser.add_argument("--dist", type=Path, default=_ROOT / "dist", help="folder of the file")
    parser.add_argument("--plain-http", action="store_true", help="for a registry without TLS")
    options = parser.parse_args()
    try:
        sys.stdout.write(release(options.to, options.dist, options.plain_http) + "\n")
    except (OSError, HelmError) as error:
        sys.stderr.write(f"release-chart: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
