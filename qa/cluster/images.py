"""The images of the cluster's pods: ours, as the Dockerfile builds it, and one with python3 only for trainings."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from tests.e2e.documents import ROOT

from qa.cluster.cluster import cache
from qa.deploy.containers import podman

# The names in deploy/kubernetes and in the documents. The kubelet pulls none: they are there.
OURS = ("docker.io/library/gpugauge:0.2.0", "registry.example/gpugauge:0.2.0")
BASE, PAUSE = "localhost/base:1", "localhost/pause:1"


def images() -> Path:
    """Return a folder with the images of this working tree, built if it has changed. Needs the package index then."""
    folder = cache() / "images" / _digest()
    if not folder.exists():
        part = folder.with_suffix(".part")
        part.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch, podman(Path(scratch)) as runner:
            runner.build(OURS[0], BASE_IMAGE=BASE, BUILD_IMAGE="localhost/build:1")
            runner("tag", OURS[0], OURS[1])
            # The container that holds the namespaces of a pod waits.
            made = runner.out("create", BASE, "sleep", "infinity")
            runner("commit", '--change=CMD ["sleep", "infinity"]', made, PAUSE)
            runner("save", "--multi-image-archive", f"--output={part / 'images.tar'}", *OURS, BASE, PAUSE)
        part.rename(folder)
    return folder


def _digest() -> str:
    """Return a hash of all that the image is built from."""
    content = hashlib.sha256()
    for place in ("src", "Dockerfile", "pyproject.toml", "deploy/requirements"):
        path = ROOT / place
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                content.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return content.hexdigest()[:16]
