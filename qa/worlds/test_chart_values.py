"""The Helm chart with drawn addresses of the daemon, and with values that are null."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests import needs
from tests.drawn import seeds
from tests.e2e.test_chart import CHART, Objects, made

from gpugauge.settings.kinds import ListenAddress, parse_listen_address, split_list

pytestmark = pytest.mark.e2e

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
EVERYTHING: dict[str, Any] = {"rules": {"enabled": True}, "dashboards": {"enabled": True}, "tls": {"secretName": "web"}}
HOSTS = ("", "0.0.0.0", "[::]", "10.1.2.3", "127.0.0.1", "localhost", "[::1]")


def paths(values: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from paths(value, (*above, key))


def daemon(objects: Objects) -> dict[str, Any]:
    pod: dict[str, Any] = objects["DaemonSet", "gpugauge"]["spec"]["template"]
    return pod | {"daemon": next(each for each in pod["spec"]["containers"] if each["name"] == "gpugauge")}


@seeds(range(40))
def test_a_value_that_is_null_is_none(seed: int) -> None:
    """Helm removes the default of such a value, so that the templates find nothing."""
    draw = random.Random(seed)
    values: dict[str, Any] = {key: dict(value) for key, value in EVERYTHING.items() if draw.random() < 0.7}
    values["monitor"] = {"kind": draw.choice(["annotations", "podMonitor", "serviceMonitor"])}
    for path in draw.sample(list(paths(VALUES)), draw.choice((1, 1, 2, 5))):
        inner: Any = values
        for key in path[:-1]:
            inner = inner.setdefault(key, {}) if inner is not None else None
        if inner is not None:
            inner[path[-1]] = None
    objects = made(values)

    assert all(word not in str(list(objects.values())) for word in ("%!", "<nil>", "<no value>"))
    policy = values.get("networkPolicy", {})
    assert (("NetworkPolicy", "gpugauge") in objects) is (policy is not None and policy.get("enabled", True) is True)
    assert daemon(objects)["daemon"]["image"].startswith("gpugauge:")


@seeds(range(40))
def test_the_port_and_the_probes_follow_the_daemon(seed: int) -> None:
    draw = random.Random(seed)
    texts = [
        draw.choice(HOSTS) + draw.choice(("", ":9100", ":10478", ":0", ":65535")) for _ in range(draw.choice((1, 1, 2)))
    ]
    setting = draw.choice((",", ", ")).join(text or ":9100" for text in texts)
    path = draw.choice((None, "/gpus"))
    values = {"settings": {"web.listen_address": setting} | ({"web.telemetry_path": path} if path else {})}
    # The addresses as the daemon reads them.
    parts = split_list(setting)
    assert isinstance(parts, tuple)
    read = [each for each in map(parse_listen_address, parts) if isinstance(each, ListenAddress)]
    ports = [each.port for each in read if each.host not in {"127.0.0.1", "localhost", "::1"}]
    if not ports or not ports[0]:
        with pytest.raises(needs.helm().HelmError, match="the probes and Prometheus connect over the network"):
            made(values)
        return
    annotated, monitored = made(values), made(values | {"monitor": {"kind": "podMonitor"}})
    pod = daemon(annotated)

    assert pod["daemon"]["ports"] == [{"name": "metrics", "containerPort": ports[0]}]
    assert {pod["daemon"][f"{probe}Probe"]["httpGet"]["port"] for probe in ("startup", "liveness", "readiness")} == {
        "metrics"
    }
    assert annotated["Service", "gpugauge"]["spec"]["ports"][0]["port"] == ports[0]
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(ports[0])
    assert pod["metadata"]["annotations"]["prometheus.io/path"] == (path or "/metrics")
    assert monitored["PodMonitor", "gpugauge"]["spec"]["podMetricsEndpoints"][0].get("path") == path
