"""deploy/compose.yaml, parsed by docker-compose, and the references between its services. No Docker runs here."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from tests.e2e.documents import ROOT, blocks, fresh_checkout, shell
from tests.needs import need

pytestmark = [pytest.mark.e2e, pytest.mark.everything]

DEPLOY = ROOT / "deploy"
FILES = ("compose.yaml", "compose.gpu.yaml")


def read(*files: Path) -> subprocess.CompletedProcess[str]:
    options = [option for file in files for option in ("-f", str(file))]
    return subprocess.run([need("docker-compose"), *options, "config"], check=False, capture_output=True, text=True)


def services(*names: str) -> dict[str, Any]:
    done = read(*(DEPLOY / name for name in names))
    assert (done.returncode, done.stderr) == (0, "")
    result: dict[str, Any] = yaml.safe_load(done.stdout)["services"]
    return result


def mounts(service: dict[str, Any]) -> dict[str, Path]:
    """Return the mounts of files of the checkout: path in the container, path in the checkout."""
    split = [volume.split(":") for volume in service.get("volumes", [])]
    return {target: Path(source) for source, target, _ in split if source.startswith(str(ROOT))}


def mounted(service: dict[str, Any], path: str) -> Path:
    """Return the file of the checkout that is at `path` in the service's container."""
    (file,) = [
        source / PurePosixPath(path).relative_to(target)
        for target, source in mounts(service).items()
        if PurePosixPath(path).is_relative_to(target)
    ]
    assert file.exists(), file
    return file


def test_a_misspelt_key_is_found(tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text((DEPLOY / "compose.yaml").read_text().replace("read_only:", "readonly:"))

    assert "Unsupported config option for services.gpugauge: 'readonly'" in read(file).stderr


@pytest.mark.parametrize("files", [FILES[:1], FILES])
def test_mounts_exist_and_are_read_only(files: tuple[str, ...]) -> None:
    for service in services(*files).values():
        assert all(path.exists() for path in mounts(service).values())
        assert all(volume.endswith(":ro") for volume in service.get("volumes", []) if volume.startswith(str(ROOT)))


def test_every_file_that_is_named_is_mounted() -> None:
    found = services(FILES[0])
    for name in ("prometheus", "alertmanager"):
        (option,) = [word for word in found[name]["command"] if word.startswith("--config.file=")]
        mounted(found[name], option.removeprefix("--config.file="))
    grafana = found["grafana"]
    mounted(grafana, grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    (provider,) = yaml.safe_load(mounted(grafana, "/etc/grafana/provisioning/dashboards/gpugauge.yaml").read_text())[
        "providers"
    ]
    assert sorted(mounted(grafana, provider["options"]["path"]).glob("*.json"))


def test_the_users_of_the_containers_read_what_is_mounted_whatever_the_umask_of_the_checkout(tmp_path: Path) -> None:
    checkout = fresh_checkout(tmp_path)
    start, _ = blocks("install-container.md", "With Prometheus, Alertmanager and Grafana")
    subprocess.run(["chmod", "-R", "go-rwx", checkout], check=True)
    (tmp_path / "docker").symlink_to("/bin/true")

    shell(start, checkout, {"PATH": f"{tmp_path}:{os.environ['PATH']}"})

    places = [checkout / path.relative_to(ROOT) for s in services(FILES[0]).values() for path in mounts(s).values()]
    assert len(places) == 4
    for path in (each for place in places for each in (place, *place.rglob("*"))):
        needed = 0o5 if path.is_dir() else 0o4
        assert path.stat().st_mode & needed == needed, path


def test_services_use_each_others_ports() -> None:
    found = services(FILES[0])
    ports = {name: service["ports"][0].split(":")[-1].removesuffix("/tcp") for name, service in found.items()}
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus-compose.yaml").read_text())
    static = config["scrape_configs"][0]["static_configs"] + config["alerting"]["alertmanagers"][0]["static_configs"]
    targets = dict(target.split(":") for entry in static for target in entry["targets"])
    datasource = mounted(found["grafana"], "/etc/grafana/provisioning/datasources/prometheus.yaml")
    url = urlsplit(yaml.safe_load(datasource.read_text())["datasources"][0]["url"])

    assert targets | {url.hostname: str(url.port)} == {
        name: ports[name] for name in ("gpugauge", "alertmanager", "prometheus")
    }
    # On the loopback address, because no service has a password.
    assert all(port.startswith("127.0.0.1:") for service in found.values() for port in service["ports"])


def test_the_exporter_has_no_capabilities_and_simulates_by_default() -> None:
    simulated, real = services(FILES[0])["gpugauge"], services(*FILES)["gpugauge"]

    for service in (simulated, real):
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    assert simulated["command"] == ["serve", "--simulate=bottlenecks"]
    assert real["command"] == ["serve"]
    assert "deploy" not in simulated
    assert real["deploy"]["resources"]["reservations"]["devices"][0]["driver"] == "nvidia"
