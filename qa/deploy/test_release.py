"""`make release-image` with a real registry of this machine: what is written agrees with what the registry has."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.documents import ROOT, fresh_checkout
from tests.e2e.programs import free_port, http, wait_for
from tests.needs import helm, need

from gpugauge import __version__
from qa.deploy.containers import Podman, podman

pytestmark = pytest.mark.deploy

MANIFESTS = ", ".join(
    f"application/vnd.{kind}+json"
    for kind in (
        *("docker.distribution.manifest.v2", "docker.distribution.manifest.list.v2"),
        *("oci.image.manifest.v1", "oci.image.index.v1"),
    )
)
# What stands for cosign, which needs a key and a transparency log: it writes its arguments.
COSIGN = '#!/bin/sh\necho "$@" >> "$COSIGN_CALLS"\n'


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """Return the address of an empty registry."""
    address = f"localhost:{free_port()}"
    storage = {"filesystem": {"rootdirectory": str(tmp_path / "registry")}}
    config = {"version": 0.1, "storage": storage, "http": {"addr": address}, "log": {"level": "warn"}}
    (tmp_path / "registry.yml").write_text(yaml.safe_dump(config))
    with (tmp_path / "registry.log").open("wb") as log:
        command = [need("docker-registry"), "serve", str(tmp_path / "registry.yml")]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for(lambda: http(f"http://{address}/v2/")[0] == 200, 20, "the registry answers")
        yield address
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    with podman(tmp_path_factory.mktemp("podman")) as runner:
        yield runner


def digest(registry: str, name: str, tag: str) -> str:
    """Return the digest that the registry has for a tag."""
    request = urllib.request.Request(f"http://{registry}/v2/{name}/manifests/{tag}", headers={"Accept": MANIFESTS})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.headers["Docker-Content-Digest"])


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_what_a_release_says_of_its_image_is_true(engine: Podman, registry: str, tmp_path: Path) -> None:
    source = fresh_checkout(tmp_path)
    git(source, "add", "--all")
    git(source, "commit", "--quiet", "--allow-empty", "--message=release")
    (tmp_path / "registries.conf").write_text(f'[[registry]]\nlocation = "{registry}"\ninsecure = true\n')
    (tmp_path / "cosign").write_text(COSIGN)
    # podman has a variable for the file of registries, skopeo has none.
    skopeo = f'exec {need("skopeo")} --registries-conf={tmp_path / "registries.conf"} "$@"'
    (tmp_path / "skopeo").write_text(f"#!/bin/sh\n{skopeo}\n")
    for program in ("cosign", "skopeo"):
        (tmp_path / program).chmod(0o755)
    calls, dist = tmp_path / "calls", tmp_path / "dist"
    environment = engine.environment("build.conf") | {
        "CONTAINERS_REGISTRIES_CONF": str(tmp_path / "registries.conf"),
        "COSIGN_CALLS": str(calls),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    base = f"{registry}/python:3.13-slim"
    subprocess.run([need("podman"), "push", "--quiet", "localhost/build:1", base], env=environment, check=True)
    engine("rmi", "localhost/build:1")

    def release(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "deploy/release/image.py", f"--base={base}", f"--dist={dist}", *more]
        command.append(f"--to=docker://{registry}/gpugauge:{__version__}")
        return subprocess.run(command, cwd=source, env=environment, check=False, capture_output=True, text=True)

    (source / "README.md").write_text("changed\n")
    assert "has changes that are not committed" in release().stderr
    git(source, "checkout", "README.md")
    dist.mkdir()
    contents = dist / f"gpugauge-{__version__}.cdx.json"
    assert "run `make sbom` first" in release("--sign").stderr
    contents.write_text("{}")
    done = release("--sign")
    assert done.returncode == 0, done.stdout + done.stderr

    image = f"{registry}/gpugauge@{digest(registry, 'gpugauge', __version__)}"
    provenance = dist / f"gpugauge-{__version__}.provenance.json"
    assert done.stdout == f"{image}\n"
    assert (dist / f"gpugauge-{__version__}.image.txt").read_text() == f"{image}\n"
    assert calls.read_text().splitlines() == [
        f"sign --yes --recursive {image}",
        f"attest --yes --type=cyclonedx --predicate={contents} {image}",
        f"attest --yes --type=slsaprovenance1 --predicate={provenance} {image}",
    ]
    materials = materials_of(json.loads(provenance.read_text()))
    commit = git(source, "rev-parse", "HEAD")
    assert materials.pop(f"@refs/tags/v{__version__}") == {"gitCommit": commit}
    assert materials.pop(f"{registry}/python") == {"sha256": digest(registry, "python", "3.13-slim").partition(":")[2]}
    locks = {f"#{path}": source / path for path in ("deploy/requirements/image.txt", "deploy/requirements/build.txt")}
    assert materials == {
        name: {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()} for name, file in locks.items()
    }
    assert applied(source, dist / f"gpugauge-{__version__}.image") == {image}
    engine("rmi", "--all", "--force")
    version = subprocess.run(
        [need("podman"), "run", "--rm", image, "--version"], env=environment, check=True, capture_output=True, text=True
    )
    assert version.stdout.startswith(f"gpugauge {__version__} (revision {commit}; ")


def test_the_list_of_contents_is_the_lock_of_the_image(tmp_path: Path) -> None:
    source = fresh_checkout(tmp_path)
    subprocess.run(["make", "--no-print-directory", "sbom"], cwd=source, check=True, capture_output=True)

    listed = json.loads((source / "dist" / f"gpugauge-{__version__}.cdx.json").read_text())
    lock = (source / "deploy/requirements/image.txt").read_text()
    locked = re.findall(r"^([\w.-]+)==([\w.]+)", lock, re.MULTILINE)
    hashes = {found for each in listed["components"] for found in re.findall("[0-9a-f]{64}", json.dumps(each))}
    assert sorted((each["name"], each["version"]) for each in listed["components"]) == sorted(locked)
    assert hashes == set(re.findall(r"sha256:([0-9a-f]{64})", lock))
    assert (listed["metadata"]["component"]["name"], listed["bomFormat"]) == ("gpugauge", "CycloneDX")


def materials_of(provenance: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the digests of what the image was built from, by the end of its address."""
    found = {each["uri"]: each["digest"] for each in provenance["buildDefinition"]["resolvedDependencies"]}
    begins = ("git+https://github.com/gpugauge/gpugauge", "pkg:docker/")
    return {uri.removeprefix(begins[0]).removeprefix(begins[1]): digest for uri, digest in found.items()}


def applied(source: Path, component: Path) -> set[str]:
    """Return the images of the DaemonSet of an overlay with the component."""
    folder = source / "own"
    folder.mkdir()
    document = {
        "resources": ["../deploy/kubernetes/overlays/standard"],
        "components": [os.path.relpath(component, folder)],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
    command = [need("kubectl"), "kustomize", "--load-restrictor=LoadRestrictionsNone", str(folder)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (daemon,) = [item for item in yaml.safe_load_all(text) if item["kind"] == "DaemonSet"]
    return {container["image"] for container in daemon["spec"]["template"]["spec"]["containers"]}


def test_the_chart_in_a_registry_is_that_of_the_repository(registry: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "deploy/release/chart.py"), f"--dist={tmp_path}", "--plain-http"]
    done = subprocess.run([*command, f"--to=oci://{registry}/charts"], check=False, capture_output=True, text=True)
    name = f"oci://{registry}/charts/gpugauge:{__version__}"
    assert (done.returncode, done.stdout) == (0, f"{name}\n"), done.stderr

    module = helm()
    (tmp_path / "pulled").mkdir()
    with module.RegistryClient(plain_http=True) as client:
        client.pull(f"oci://{registry}/charts/gpugauge", version=__version__, destination=tmp_path / "pulled")
    (archive,) = (tmp_path / "pulled").glob("*.tgz")
    pulled, ours = module.Chart.load(archive), module.Chart.load(ROOT / "deploy/helm/gpugauge")
    assert (pulled.metadata, pulled.templates, pulled.files) == (ours.metadata, ours.templates, ours.files)
