"""Which versions `build.sh` asks Go's module proxy for, without the proxy and without Go."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from qa.cluster.cluster import CONTROL, NEWEST

# As Kubernetes' own go.mod names modules: those of its repository have no version.
MODULES = """module k8s.io/kubernetes

require (
\tgithub.com/other/module v0.0.0
\tk8s.io/api v0.0.0
\tk8s.io/cloud-provider v0.0.0 // indirect
\tk8s.io/utils v0.0.0-20241104100929-3ea5e8cea738
)

replace k8s.io/api => ./staging/src/k8s.io/api
"""
GO = """#!/bin/bash
case "$*" in
  *download*prometheus*) printf '\\t"Dir": "%s",\\n' "$FOLDER/operator" ;;
  *download*) printf '\\t"Dir": "%s",\\n' "$FOLDER/kubernetes" ;;
  build*) shift 4; [ "$1" = -o ] && cp go.mod "$2" && chmod +x "$2" ;;
esac
"""


def test_modules_of_kubernetes_have_the_version_of_the_release_and_others_their_own(tmp_path: Path) -> None:
    definitions = tmp_path / "operator" / "example" / "prometheus-operator-crd"
    for folder in ("qa/cluster", "tests/e2e", "kubernetes", "bin", str(definitions)):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("build.sh"), tmp_path / "qa" / "cluster")
    for name, text in (("tests/e2e/fetch-debian", "#!/bin/true\n"), ("bin/go", GO)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "kubernetes" / "go.mod").write_text(MODULES)
    (tmp_path / "kubernetes" / "go.sum").touch()
    for kind in ("podmonitors", "servicemonitors", "prometheusrules"):
        (definitions / f"monitoring.coreos.com_{kind}.yaml").touch()
    cache, path = tmp_path / "cache", f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "CLUSTER": str(cache), "FOLDER": str(tmp_path), "PATH": path}
    environment.pop("KUBERNETES", None)
    subprocess.run([tmp_path / "qa" / "cluster" / "build.sh"], env=environment, check=True, timeout=60)
    built = {each.name: each.read_text() for each in (cache / NEWEST).iterdir() if each.is_file()}

    version = f"v0.{NEWEST.removeprefix('1.')}"
    assert built.keys() == {*CONTROL, "kubelet"}
    assert {*built.values()} == {
        MODULES.replace("module k8s.io/kubernetes", "module cluster")
        .replace("k8s.io/api v0.0.0", f"k8s.io/api {version}")
        .replace("k8s.io/cloud-provider v0.0.0", f"k8s.io/cloud-provider {version}")
        .replace("./staging/src/k8s.io/api", f"k8s.io/api {version}")
    }
    assert len([*(cache / NEWEST / "crds").iterdir()]) == 3
