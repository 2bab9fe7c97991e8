"""Builds the image of a release, pushes it, and writes what says what it is: `make release-image`. Needs podman
and skopeo.

    python3 deploy/release/image.py --to docker://registry.example/gpugauge:1.2.3 [--platforms linux/amd64] [--sign]

The base image is looked up and used by its digest. `dist` then has, for version X.Y.Z:
gpugauge-X.Y.Z.image.txt         the name of the image by digest
gpugauge-X.Y.Z.provenance.json   from what it was built: the predicate of SLSA's provenance, version 1
gpugauge-X.Y.Z.image/            a kustomize component that makes the manifests use the image by its digest
With --sign, cosign signs the image and attests the provenance and the list of `make sbom`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import secrets
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_LOCKS = ("deploy/requirements/image.txt", "deploy/requirements/build.txt")
_BUILD_TYPE = "https://github.com/gpugauge/gpugauge/blob/main/deploy/release/image.py"
_SOURCE = "git+https://github.com/gpugauge/gpugauge"


class ReleaseError(Exception):
    """The image cannot be made; the message gives the command or the file, and the reason."""


def run(*command: str) -> str:
    """Return the standard output of a command. Raises ReleaseError."""
    try:
        done = subprocess.run(command, cwd=_ROOT, check=False, stdout=subprocess.PIPE, text=True)
    except FileNotFoundError:
        raise ReleaseError(f"{command[0]} is not installed") from None
    if done.returncode:
        raise ReleaseError(f"failed with {done.returncode}: {' '.join(command)}")
    return done.stdout.strip()


def by_digest(image: str) -> str:
    """Return the image of a name with a tag as NAME@sha256:…, from the registry (the digest of all platforms) or from
    podman's storage.
    """
    if "@sha256:" in image:
        return image
    if image.startswith("localhost/"):
        found = run("podman", "image", "inspect", "--format={{.Digest}}", image)
    else:
        found = run("skopeo", "inspect", "--no-tags", "--format={{.Digest}}", f"docker://{image}")
    return f"{without_tag(image)}@{found}"


def without_tag(image: str) -> str:
    """Return the name of an image without its tag; the port of a registry is no tag."""
    return re.sub(r":[\w.-]+$", "", image)


def provenance(version: str, commit: str, base: str, began: datetime, ended: datetime) -> dict[str, Any]:
    """Return the predicate: how the image was built, and each thing that went into it with its digest."""
    name, _, digest = base.partition("@sha256:")
    source = {"uri": f"{_SOURCE}@refs/tags/v{version}", "digest": {"gitCommit": commit}}
    locks = [
        {"uri": f"{_SOURCE}#{path}", "digest": {"sha256": hashlib.sha256((_ROOT / path).read_bytes()).hexdigest()}}
        for path in _LOCKS
    ]
    return {
        "buildDefinition": {
            "buildType": _BUILD_TYPE,
            "externalParameters": {"source": source["uri"], "dockerfile": "Dockerfile", "baseImage": base},
            "resolvedDependencies": [source, {"uri": f"pkg:docker/{name}", "digest": {"sha256": digest}}, *locks],
        },
        "runDetails": {
            "builder": {"id": _BUILD_TYPE, "version": {"podman": run("podman", "--version").split()[-1]}},
            "metadata": {"startedOn": began.isoformat(), "finishedOn": ended.isoformat()},
        },
    }


def component(image: str) -> str:
    """Return a kustomize component that replaces the image of the manifests by this one."""
    name, _, digest = image.partition("@")
    return (
        "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\n"
        f"images:\n  - name: gpugauge\n    newName: {name}\n    digest: {digest}\n"
    )


def build(base: str, build_base: str | None, platforms: str | None, version: str, commit: str) -> str:
    """Build the image for each platform, by default this machine's, and return the name of their list."""
    arguments = {"BASE_IMAGE": base, "VERSION": version, "REVISION": commit}
    if build_base:
        arguments["BUILD_IMAGE"] = by_digest(build_base)
    options = [f"--build-arg={key}={value}" for key, value in arguments.items()]
    options += [f"--platform={platforms}"] if platforms else []
    # A new name, because a list that an earlier run left has the images of that run.
    images = f"localhost/gpugauge-release:{secrets.token_hex(8)}"
    run("podman", "build", "--format=docker", "--quiet", f"--manifest={images}", *options, ".")
    return images


def push(images: str, to: str) -> str:
    """Push the list and its images, and return its name by digest."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "digest"
        run("podman", "manifest", "push", "--all", "--quiet", f"--digestfile={file}", images, to)
        digest = file.read_text().strip()
    return f"{without_tag(to.removeprefix('docker://'))}@{digest}"


def sign(image: str, version: str, dist: Path) -> None:
    """Sign the image, and attest its list of contents and its provenance. Raises ReleaseError without the list."""
    contents = dist / f"gpugauge-{version}.cdx.json"
    if not contents.exists():
        raise ReleaseError(f"{contents} is missing: run `make sbom` first")
    run("cosign", "sign", "--yes", "--recursive", image)
    for kind, file in (("cyclonedx", contents), ("slsaprovenance1", dist / f"gpugauge-{version}.provenance.json")):
        run("cosign", "attest", "--yes", f"--type={kind}", f"--predicate={file}", image)


def release(base: str, build_base: str | None, platforms: str | None, to: str, dist: Path) -> tuple[str, str]:
    """Build and push the image and write the files. Return version and name by digest. Raises ReleaseError."""
    (version,) = re.findall(r'^__version__ = "(.+)"$', (_ROOT / "src/gpugauge/__init__.py").read_text(), re.MULTILINE)
    if run("git", "status", "--porcelain"):
        raise ReleaseError("the checkout has changes that are not committed: the provenance would name a wrong commit")
    commit, began = run("git", "rev-parse", "HEAD"), datetime.now(timezone.utc)
    base = by_digest(base)
    image = push(build(base, build_base, platforms, version, commit), to)
    predicate = provenance(version, commit, base, began, datetime.now(timezone.utc))
    folder = dist / f"gpugauge-{version}.image"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kustomization.yaml").write_text(component(image))
    (dist / f"gpugauge-{version}.image.txt").write_text(f"{image}\n")
    (dist / f"gpugauge-{version}.provenance.json").write_text(json.dumps(predicate, indent=1) + "\n")
    return version, image


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="docker.io/library/python:3.13-slim", help="base image, by tag or digest")
    parser.add_argument("--build-base", help="image for the build, if the base has no venv")
    parser.add_argument("--platforms", help="linux/amd64,linux/arm64; others than this machine's need qemu-user-static")
    parser.add_argument("--to", required=True, help="destination, as for `podman push`")
    parser.add_argument("--dist", type=Path, default=_ROOT / "dist", help="folder of the files that are written")
    parser.add_argument("--sign", action="store_true", help="sign and attest with cosign")
    options = parser.parse_args()
    try:
        version, image = release(options.base, options.build_base, options.platforms, options.to, options.dist)
        if options.sign:
            sign(image, version, options.dist)
    except (OSError, ReleaseError) as error:
        sys.stderr.write(f"release-image: {error}\n")
        return 1
    sys.stdout.write(f"{image}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
