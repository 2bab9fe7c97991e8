"""Requests to a server with TLS: its answers, refusals and silence, and what becomes of the token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from qa.worlds.podlists import draw

from gpugauge.daemon.machine import pod_metadata
from gpugauge.settings.model import Kubernetes
from gpugauge.workload.kubernetes import source as kubernetes
from gpugauge.workload.kubernetes.source import PodSource, PodSourceError, of_api, of_kubelet
from tests.certificates import Authority
from tests.workload.kubernetes.server import FakeKubelet, serving


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[FakeKubelet]:
    (tmp_path / "token").write_text("secret\n")
    with serving(tmp_path) as fake:
        yield fake


@pytest.fixture
def source(kubelet: FakeKubelet, tmp_path: Path) -> PodSource:
    return replace(of_kubelet("127.0.0.1", "127.0.0.1", tmp_path, None, verify=True), port=kubelet.port, timeout=5.0)


def test_the_wanted_pods_are_returned(kubelet: FakeKubelet, source: PodSource) -> None:
    drawn = draw(1)
    kubelet.body, wanted = drawn.body(), set(drawn.random.sample([*drawn.truth], 5))

    assert source.pods(wanted).keys() == wanted
    kubelet.silent_after = len(kubelet.body.encode())  # the connection stays open
    assert source.pods({"another"}) == {}
    assert kubelet.requests[0] == ("/pods", "Bearer secret")


def test_the_token_is_read_for_each_request(kubelet: FakeKubelet, source: PodSource, tmp_path: Path) -> None:
    source.pods(())
    (tmp_path / "token").write_text("rotated")
    source.pods(())

    assert [authorization for _, authorization in kubelet.requests] == ["Bearer secret", "Bearer rotated"]


def test_an_answer_without_pods_is_one_sentence(kubelet: FakeKubelet, source: PodSource) -> None:
    for kubelet.status, kubelet.body, sentence in (
        (401, "", "refuses the token \\(401\\): it expired, or the API server is not reached"),
        (403, "", "refuses \\(403\\): the ServiceAccount needs get of nodes/pods"),
        (500, "", "answers 500"),
        (302, "", "answers 302"),
        (200, "no JSON", "is no list of pods"),
        (200, "[" * 100_000, "is no list of pods"),
        (200, '{"items": [' + "[" * 100_000, "is no list of pods"),
        (200, '{"items": [{}', "is no list of pods"),
        (200, " " * 70_000, "has more than 65536 bytes"),
    ):
        asked = replace(source, max_bytes=65_536) if len(kubelet.body) == 70_000 else source
        with pytest.raises(PodSourceError, match=sentence):
            asked.pods(())


def test_a_server_that_falls_silent(kubelet: FakeKubelet, source: PodSource) -> None:
    for kubelet.silent_after in (0, 5):
        with pytest.raises(PodSourceError, match=r"does not answer within 0\.3 s"):
            replace(source, timeout=0.3).pods(())


def test_no_server(kubelet: FakeKubelet, source: PodSource, tmp_path: Path) -> None:
    with pytest.raises(PodSourceError, match="cannot be asked: Connection refused"):
        replace(source, port=1).pods(())
    (tmp_path / "token").unlink()
    with pytest.raises(PodSourceError, match="token is not readable"):
        source.pods(())
    assert kubelet.requests == []


def test_a_kubelet_that_signs_its_own_certificate(
    kubelet: FakeKubelet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its file has the certificate and that of an authority that it made for it, as client-go writes it."""
    monkeypatch.setattr(kubernetes, "KUBELET_PORT", kubelet.port)
    own, cluster = tmp_path / "kubelet.crt", tmp_path / "ca.crt"
    own.write_bytes((tmp_path / "kubelet.pem").read_bytes() + cluster.read_bytes())
    cluster.write_bytes(Authority("the cluster").pem)

    def up(file: Path | None) -> bool | None:
        found = pod_metadata(
            Kubernetes(pods="kubelet", node_address="127.0.0.1", service_account=tmp_path, kubelet_ca_file=file)
        )
        assert found
        found.refresh()
        return found.source.up

    assert up(None) is False
    assert "certificate of the kubelet is not valid" in caplog.text
    assert "set kubernetes.kubelet_ca_file" in caplog.text
    assert kubelet.requests == []
    assert up(own)


def test_an_unknown_certificate_gets_no_token(kubelet: FakeKubelet, source: PodSource, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with serving(other):
        pass
    with pytest.raises(PodSourceError, match="certificate of the kubelet is not valid"):
        replace(source, authority=other / "ca.crt").pods(())
    with pytest.raises(PodSourceError, match=r"Hostname|IP address"):
        replace(source, name="gpu-1").pods(())
    with pytest.raises(PodSourceError, match="cannot be used"):
        replace(source, authority=tmp_path / "missing").pods(())

    assert kubelet.requests == []
    assert replace(source, authority=None).pods(()) == {}
    assert len(kubelet.requests) == 1


def test_the_api_is_asked_for_metadata_of_one_node(kubelet: FakeKubelet, tmp_path: Path) -> None:
    of_api("127.0.0.1", kubelet.port, "gpu-1", tmp_path).pods(())
    kubelet.status = 403
    with pytest.raises(PodSourceError, match="the API server refuses \\(403\\): the ServiceAccount needs list of pods"):
        of_api("127.0.0.1", kubelet.port, "gpu-1", tmp_path).pods(())

    assert kubelet.requests[0][0] == "/api/v1/pods?fieldSelector=spec.nodeName%3Dgpu-1&resourceVersion=0"
    # A server answers 406 to any other spelling.
    assert kubelet.accepts[0] == "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
