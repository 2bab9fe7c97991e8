"""TLS, checked by sslscan, logins, and the renewal of certificates while a real Prometheus scrapes."""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import bcrypt
import pytest

from tests.certificates import Authority
from tests.e2e.documents import blocks
from tests.e2e.programs import Daemon, daemon, prometheus, wait_for
from tests.needs import need

pytestmark = pytest.mark.e2e

PASSWORD = "correct horse"
CONFIG = """\
tls_server_config:
  cert_file: server.pem
  key_file: server.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: ca.pem
  client_allowed_sans: [prometheus.example]
basic_auth_users:
  prometheus: {hash}
"""
OPEN = CONFIG.replace("  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n", "").replace(
    "  client_allowed_sans: [prometheus.example]\n", ""
)


class Site:
    """A folder with certificates and a web configuration, and requests to the daemon that uses them."""

    def __init__(self, folder: Path, text: str = CONFIG) -> None:
        self.folder = folder
        self.authority = Authority()
        (folder / "ca.pem").write_bytes(self.authority.pem)
        self.authority.issue(folder, "server", "127.0.0.1")
        self.authority.issue(folder, "client", "prometheus.example")
        (folder / "password").write_text(PASSWORD)
        self.file = folder / "web.yml"
        self.file.write_text(text.format(hash=bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(10)).decode()))

    def client(self, certificate: bool = True) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        if certificate:
            context.load_cert_chain(self.folder / "client.pem", self.folder / "client.key")
        return context

    def ask(
        self, running: Daemon, path: str = "/metrics", tls: ssl.SSLContext | None = None, password: str = PASSWORD
    ) -> tuple[int, bytes]:
        """Return status and body. Raises OSError if the connection fails."""
        token = base64.b64encode(f"prometheus:{password}".encode()).decode()
        address = running.url.removeprefix("http://")
        connection = http.client.HTTPSConnection(address, timeout=10, context=tls or self.client())
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"Authorization": f"Basic {token}"} if password else {})
            response = connection.getresponse()
            return response.status, response.read()

    def ready(self, running: Daemon) -> bool:
        assert running.process.poll() is None, running.log.read_text()
        with contextlib.suppress(OSError):
            return self.ask(running, "/-/ready", self.client())[0] == 200
        return False


@contextlib.contextmanager
def guarded(site: Site) -> Iterator[Daemon]:
    with daemon(site.folder, "--simulate=node", f"--web.config.file={site.file}", ready=False) as running:
        wait_for(lambda: site.ready(running), 20, "the daemon is ready")
        yield running


@pytest.mark.everything
def test_protocols_suites_and_curves(tmp_path: Path) -> None:
    site = Site(tmp_path, OPEN)
    with guarded(site) as running:
        address = running.url.removeprefix("http://")
        command = [need("sslscan"), "--no-colour", f"--xml={tmp_path / 'scan.xml'}", address]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        assert site.ready(running)
    found = ET.parse(tmp_path / "scan.xml")

    enabled = {(p.get("type"), p.get("version")) for p in found.iter("protocol") if p.get("enabled") == "1"}
    assert enabled == {("tls", "1.2"), ("tls", "1.3")}
    suites = {(c.get("sslversion"), c.get("cipher")) for c in found.iter("cipher")}
    assert {name for version, name in suites if version == "TLSv1.3"} == {
        *("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"),
    }
    assert {name for version, name in suites if version == "TLSv1.2"} == {
        *("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305"),
    }
    assert {group.get("name") for group in found.iter("group")} == {"secp256r1 (NIST P-256)"}
    assert [r.get("supported") for r in found.iter("renegotiation")] == ["0"]
    assert [h.get("vulnerable") for h in found.iter("heartbleed")] == ["0", "0"]


def test_prometheus_scrapes_with_certificate_and_password_and_loses_nothing_at_a_renewal(tmp_path: Path) -> None:
    site = Site(tmp_path)
    scrape = (
        f"scheme: https, tls_config: {{ca_file: {tmp_path}/ca.pem, cert_file: {tmp_path}/client.pem, "
        f"key_file: {tmp_path}/client.key}}, "
        f"basic_auth: {{username: prometheus, password_file: {tmp_path}/password}}, "
    )
    with guarded(site) as running:
        address = running.url.removeprefix("http://")
        with prometheus(tmp_path, address, scrape=scrape) as server:
            wait_for(lambda: server.value("count_over_time(up[1m])"), 20, "the first scrape")
            before = shown(address, site)
            site.authority.issue(tmp_path, "server", "127.0.0.1")
            # No new connection may fail while the certificate changes.
            wait_for(lambda: site.ready(running) and shown(address, site) != before, 20, "the new certificate is shown")
            scrapes = server.value("count_over_time(up[1m])") or 0
            wait_for(lambda: (server.value("count_over_time(up[1m])") or 0) >= scrapes + 3, 20, "scrapes go on")
            assert server.value("min_over_time(up[1m])") == 1
            assert server.value("gpugauge_web_config_last_reload_successful") == 1
            assert server.value("count(gpu_up)") == 8

            (tmp_path / "server.key").write_text("garbage")
            wait_for(
                lambda: server.value("gpugauge_web_config_last_reload_successful") == 0,
                20,
                "the failed reload is shown",
            )
            assert server.value("min_over_time(up[1m])") == 1
        log = running.log.read_text()

    assert log.count("the previous one stays") == 1
    assert f"{site.file}:3: tls_server_config.key_file: " in log


def shown(address: str, site: Site) -> str:
    host, port = address.split(":")
    connection = http.client.HTTPSConnection(host, int(port), timeout=10, context=site.client())
    with contextlib.closing(connection):
        connection.connect()
        assert isinstance(connection.sock, ssl.SSLSocket)
        certificate = connection.sock.getpeercert()
        assert certificate is not None
        return str(certificate["serialNumber"])


def test_client_without_login_or_certificate_receives_no_metrics(tmp_path: Path) -> None:
    site = Site(tmp_path)
    paths = ["/metrics", "/", "/page.js", "/api/v1/status", "/-/healthy", "/-/ready", "/-/reload", "/none"]
    other = Authority("another authority")
    other.issue(tmp_path, "foreign", "prometheus.example")
    foreign = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    foreign.load_cert_chain(tmp_path / "foreign.pem", tmp_path / "foreign.key")
    with guarded(site) as running:
        for path in paths:
            status, body = site.ask(running, path, password="")
            assert (status, b"gpu_" in body) == (401, False)
            for context in (site.client(certificate=False), foreign):
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    site.ask(running, path, context)
        assert site.ask(running, password="wrong")[0] == 401
        site.authority.issue(tmp_path, "client", "other.example")
        assert site.ask(running)[0] == 403
        plain = http.client.HTTPConnection(running.url.removeprefix("http://"), timeout=10)
        plain.request("GET", "/metrics")
        with contextlib.closing(plain), pytest.raises(ConnectionError):
            plain.getresponse()
        log = running.log.read_text()

    assert PASSWORD not in log
    assert len(log.splitlines()) == 1  # refused clients do not fill the log


def test_guessed_passwords_delay_no_scraper(tmp_path: Path) -> None:
    site = Site(tmp_path, OPEN)
    stop, guessed, statuses = threading.Event(), [0], []

    def guess(number: int) -> None:
        while not stop.is_set():
            guessed[0] += 1
            statuses.append(site.ask(running, password=f"{number}-{guessed[0]}")[0])

    with guarded(site) as running:
        guessers = [threading.Thread(target=guess, args=(number,)) for number in range(8)]
        for guesser in guessers:
            guesser.start()
        scrapes = [site.ask(running)[0] for _ in range(50)]
        stop.set()
        for guesser in guessers:
            guesser.join()

    assert scrapes == [200] * 50
    assert set(statuses) <= {401, 429}
    assert 401 in statuses


def test_the_document(tmp_path: Path) -> None:
    need("openssl")
    folder = tmp_path / "etc"
    (script,) = [block for block in blocks("security.md", "Switch on TLS and a password") if "openssl" in block]
    script = script.replace("/etc/gpugauge", str(folder)).replace("/opt/gpugauge/bin/python3", sys.executable)
    script = script.replace("gpugauge server.key", f"{os.getgid()} server.key").replace("-g gpugauge", "")
    command = [need("bash"), "-e"]
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD + "\n")
    script_file = tmp_path / "script"
    script_file.write_text(script)
    with secret.open() as typed:
        # Without a terminal, getpass reads standard input.
        done = subprocess.run(
            [*command, str(script_file)], stdin=typed, check=False, capture_output=True, start_new_session=True
        )
    assert done.returncode == 0, done.stderr.decode()
    (tmp_path / "password").write_text(PASSWORD)
    (entry,) = [block for block in blocks("security.md", "Switch on TLS and a password", "yaml") if "scheme" in block]
    scrape = entry.replace("ca_file: ", f"ca_file: {tmp_path}/etc/").replace(
        "password_file: ", f"password_file: {tmp_path}/"
    )
    scrape = ", ".join(scrape.splitlines()) + ", "
    with (
        daemon(tmp_path, "--simulate=node", f"--web.config.file={folder / 'web.yml'}", ready=False) as running,
        prometheus(tmp_path, running.url.removeprefix("http://"), scrape=scrape) as server,
    ):
        wait_for(lambda: server.value("max_over_time(up[1m])") == 1, 30, "Prometheus scrapes it")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("tls_server_confg: {}\n", "web.yml:1: tls_server_confg: unknown key; did you mean tls_server_config?"),
        ("basic_auth_users:\n  alice: plain\n", "web.yml:2: basic_auth_users.alice: expected a bcrypt hash"),
    ],
)
def test_a_bad_file_ends_the_start_with_one_sentence(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "web.yml").write_text(text)
    with daemon(tmp_path, "--simulate=node", f"--web.config.file={tmp_path / 'web.yml'}", ready=False) as running:
        code = running.process.wait(20)
        log = running.log.read_text()

    assert code == 2
    assert error in log
    assert len(log.splitlines()) == 1
