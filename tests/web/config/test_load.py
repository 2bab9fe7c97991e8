from __future__ import annotations

import random
import ssl
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpugauge.settings.kinds import ConfigError
from gpugauge.web.config import tls as tls_module
from gpugauge.web.config.access import WebConfig, load_web_config
from tests.certificates import Authority, key_pem, new_key
from tests.drawn import EVERYTHING, seeds

HASH = "$2y$10$" + "a" * 53
TLS = "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("web")
    authority = Authority()
    authority.issue(folder, "server", "localhost")
    authority.issue(folder, "other", "localhost")
    (folder / "ca.pem").write_bytes(authority.pem)
    (folder / "locked.key").write_bytes(key_pem(new_key(), b"password"))
    (folder / "empty.pem").touch()
    (folder / "garbage.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    return folder


def read(folder: Path, text: str) -> WebConfig:
    path = folder / "web.yml"
    path.write_text(text)
    return load_web_config(path)


def context(folder: Path, text: str) -> ssl.SSLContext:
    tls = read(folder, TLS + text).tls
    assert tls is not None
    return tls


def suites(tls: ssl.SSLContext) -> set[str]:
    return {str(suite["name"]) for suite in tls.get_ciphers() if suite["protocol"] != "TLSv1.3"}


@pytest.mark.parametrize("text", ["", "# nothing\n", "tls_server_config: {}\n", "basic_auth_users:\n"])
def test_an_empty_file_protects_nothing(folder: Path, text: str) -> None:
    config = read(folder, text)

    assert (config.tls, config.client_names, config.users, config.headers) == (None, None, {}, ())
    assert config.files == (folder / "web.yml",)


def test_defaults_of_tls(folder: Path) -> None:
    tls = context(folder, "")

    assert (tls.minimum_version, tls.maximum_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
    assert tls.verify_mode == ssl.CERT_NONE
    assert tls.options & ssl.OP_NO_RENEGOTIATION
    assert tls.options & ssl.OP_NO_COMPRESSION
    assert tls.options & ssl.OP_CIPHER_SERVER_PREFERENCE
    assert len(suites(tls)) == 6
    assert all(name.startswith("ECDHE-") and ("GCM" in name or "CHACHA20" in name) for name in suites(tls))
    assert read(folder, TLS).files == (folder / "web.yml", folder / "server.pem", folder / "server.key")


def test_all_keys_of_tls(folder: Path) -> None:
    text = (
        "  min_version: TLS12\n  max_version: TLS12\n  prefer_server_cipher_suites: false\n"
        "  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]\n"
        "  curve_preferences: [CurveP384]\n  client_ca_file: ca.pem\n"
        "  client_auth_type: RequireAndVerifyClientCert\n  client_allowed_sans: [prometheus.example]\n"
    )
    tls = context(folder, text)

    assert (tls.minimum_version, tls.maximum_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2)
    assert not tls.options & ssl.OP_CIPHER_SERVER_PREFERENCE
    assert suites(tls) == {"ECDHE-RSA-AES128-SHA", "ECDHE-ECDSA-AES256-GCM-SHA384"}
    assert tls.verify_mode == ssl.CERT_REQUIRED
    assert len(tls.get_ca_certs()) == 1
    assert read(folder, TLS + text).client_names == frozenset({"prometheus.example"})


@pytest.mark.parametrize(
    ("text", "verify"),
    [
        ("  client_auth_type: NoClientCert\n", ssl.CERT_NONE),
        ("  client_auth_type: RequestClientCert\n", ssl.CERT_NONE),
        ("  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: ca.pem\n", ssl.CERT_OPTIONAL),
        ("  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n", ssl.CERT_REQUIRED),
    ],
)
def test_client_certificates(folder: Path, text: str, verify: ssl.VerifyMode) -> None:
    assert context(folder, text).verify_mode == verify


@seeds(range(10))
def test_empty_values_are_as_absent_ones(folder: Path, seed: int) -> None:
    """Templates write every key, as the configuration of Prometheus' exporters allows."""
    chance = random.Random(seed)
    empty = [f'  {key}: ""\n' for key in ("cert", "key", "client_ca", "client_ca_file", "client_auth_type")]
    with_tls = read(folder, TLS + "".join(chance.sample(empty, chance.randint(1, 5))))
    assert with_tls.tls is not None
    assert with_tls.tls.verify_mode == ssl.CERT_NONE
    empty += ['  cert_file: ""\n', '  key_file: ""\n']
    assert read(folder, "tls_server_config:\n" + "".join(chance.sample(empty, chance.randint(1, 7)))).tls is None


@pytest.mark.parametrize(("written", "sent"), [("0", "0"), ("'0'", "0"), ("1; mode=block", "1; mode=block")])
def test_a_header_that_is_a_number_in_yaml(folder: Path, written: str, sent: str) -> None:
    config = read(folder, f"http_server_config:\n  headers:\n    X-XSS-Protection: {written}\n")

    assert config.headers == (("X-XSS-Protection", sent),)


def test_a_bundle_with_comments_in_any_language(folder: Path) -> None:
    bundle = "# F\u0151tan\u00fas\u00edtv\u00e1ny\n" + (folder / "ca.pem").read_text()
    (folder / "bundle.pem").write_text(bundle, encoding="utf-8")
    text = "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: bundle.pem\n"

    assert len(context(folder, text).get_ca_certs()) == 1


def test_tls_without_proc_is_refused_in_a_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_module, "_PROC", str(folder / "none"))

    with pytest.raises(ConfigError, match=r"cert_file: TLS needs /proc, which is not mounted"):
        context(folder, "")


@pytest.mark.parametrize("name", ["CurveP256", "CurveP384", "CurveP521", "X25519"])
def test_each_curve_alone(folder: Path, name: str) -> None:
    if name == "X25519" and sys.version_info < (3, 11):
        with pytest.raises(
            ConfigError, match=r"yml:4: .*curve_preferences: the ssl module of Python 3\.10\.\d+ cannot"
        ):
            context(folder, f"  curve_preferences: [{name}]\n")
        return
    assert context(folder, f"  curve_preferences: [{name}]\n")


def test_suites_of_tls_1_3_alone_disable_1_2(folder: Path) -> None:
    tls = context(folder, "  cipher_suites: [TLS_AES_128_GCM_SHA256]\n")

    assert tls.minimum_version == ssl.TLSVersion.TLSv1_3


def test_certificates_inline(folder: Path) -> None:
    def block(name: str) -> str:
        return "|\n" + "".join(f"    {line}\n" for line in (folder / name).read_text().splitlines())

    text = (
        f"tls_server_config:\n  cert: {block('server.pem')}  key: {block('server.key')}  client_ca: {block('ca.pem')}"
        "  client_auth_type: RequireAndVerifyClientCert\n"
    )
    config = read(folder, text)

    assert config.tls is not None
    assert config.files == (folder / "web.yml",)


# The names of Go's crypto/tls, which the exporters of Prometheus use, and those of OpenSSL (IANA's registry).
_SUITES = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
}


def test_each_suite_alone(folder: Path) -> None:
    assert {name: suites(context(folder, f"  cipher_suites: [{name}]\n")) for name in _SUITES} == {
        name: {suite} for name, suite in _SUITES.items()
    }


def test_headers_users_and_rate(folder: Path) -> None:
    config = read(
        folder,
        "http_server_config:\n  http2: true\n  headers:\n    X-Frame-Options: deny\n    X-XSS-Protection: ''\n"
        "    Strict-Transport-Security: max-age=31536000; includeSubDomains\n"
        f"basic_auth_users:\n  alice: {HASH}\n  b.ob: {HASH}\n  7: {HASH}\n  jürgen: {HASH}\n"
        "rate_limit:\n  interval: 1m0.5s\n  burst: 20\n",
    )

    assert dict(config.headers) == {
        "X-Frame-Options": "deny",
        "Strict-Transport-Security": "max-age=31536000; includeSubDomains",
    }
    assert config.users == dict.fromkeys((b"alice", b"b.ob", b"7", "jürgen".encode()), HASH.encode())
    assert (config.rate_limit.interval, config.rate_limit.burst) == (60.5, 20)
    assert HASH not in repr(config)


# What is wrong, the line, and what the sentence says about it.
WRONG = [
    ("tls_server_confg: {}\n", 1, "tls_server_confg: unknown key; did you mean tls_server_config?"),
    (TLS + "  cert_fil: x\n", 4, "tls_server_config.cert_fil: unknown key; did you mean tls_server_config.cert_file?"),
    ("basic_auth_user: {}\n", 1, "basic_auth_user: unknown key; did you mean basic_auth_users?"),
    ("http_server_config:\n  headers:\n    Server: x\n", 3, "http_server_config.headers.Server: unknown key"),
    ("tls_server_config:\n  min_version: TLS13\n", 1, "cert_file: TLS needs one of cert_file and cert"),
    ("tls_server_config:\n  cert_file: server.pem\n", 1, "key_file: TLS needs one of key_file and key"),
    (
        "tls_server_config:\n  key_file: server.key\n  cert_file: no.pem\n",
        3,
        "no.pem: cannot be read: No such file or directory",
    ),
    (TLS.replace("server.pem", '"\\0"'), 2, "cert_file: expected a path; PEM text itself is set as cert"),
    (TLS.replace("server.pem", "."), 2, "expected a PEM file, this is a folder"),
    (TLS.replace("server.pem", "empty.pem"), 2, "empty.pem: empty"),
    (TLS.replace("server.pem", "server.key"), 2, "cert_file: expected a certificate in PEM form"),
    (TLS.replace("server.pem", "garbage.pem"), 2, "cert_file: certificate and key cannot be used: "),
    (TLS.replace("server.key", "other.key"), 3, "key_file: this is not the key of the certificate"),
    (
        TLS.replace("server.key", "locked.key"),
        3,
        "key_file: the key is encrypted, and the daemon cannot ask for its password",
    ),
    (TLS + "  cert: x\n", 4, "cert: give either this or cert_file"),
    (TLS + "  min_version: TLS10\n", 4, "min_version: TLS10 is not served: it is broken (RFC 8996); expected TLS12 or"),
    (TLS + "  max_version: TLS11\n", 4, "tls_server_config.max_version: TLS11 is not served: it is broken"),
    (TLS + "  min_version: TLS1.2\n", 4, "min_version: must be 'TLS10', 'TLS11', 'TLS12' or 'TLS13', not 'TLS"),
    (TLS + "  min_version: TLS13\n  max_version: TLS12\n", 5, "max_version: TLS12 is below min_version, TLS13"),
    (TLS + "  cipher_suites: [RC4]\n", 4, "cipher_suites: RC4 is not one of TLS_AES_128_GCM_SHA256, "),
    (TLS + "  max_version: TLS12\n  cipher_suites: [TLS_AES_128_GCM_SHA256]\n", 5, "none of these is of TLS12"),
    (TLS + "  curve_preferences: [CurveP256, X25519]\n", 4, "curve_preferences: Python's ssl accepts one curve"),
    (TLS + "  curve_preferences: [P256]\n", 4, "curve_preferences[0]: must be 'CurveP256', "),
    (TLS + "  client_auth_type: RequireAnyClientCert\n", 4, "would accept any certificate"),
    (TLS + "  client_auth_type: RequireClientCert\n", 4, "would accept any certificate"),
    (TLS + "  client_auth_type: Always\n", 4, "client_auth_type: must be 'NoClientCert', "),
    (TLS + "  client_auth_type: RequireAndVerifyClientCert\n", 1, "client_ca_file: client_auth_type: RequireAndVerify"),
    (TLS + "  client_auth_type: VerifyClientCertIfGiven\n", 1, "client_ca_file: client_auth_type: VerifyClientCertIf"),
    (
        TLS + "  client_ca_file: ca.pem\n",
        1,
        "tls_server_config.client_auth_type: with NoClientCert, client_ca_file has no effect",
    ),
    (
        TLS + "  client_ca_file: garbage.pem\n  client_auth_type: RequireAndVerifyClientCert\n",
        4,
        "client_ca_file: expected certificates in PEM form",
    ),
    (
        TLS + "  client_ca_file: ca.pem\n  client_auth_type: VerifyClientCertIfGiven\n  client_allowed_sans: [a]\n",
        6,
        "client_allowed_sans: needs client_auth_type: RequireAndVerifyClientCert",
    ),
    (TLS + "  prefer_server_cipher_suites: maybe\n", 4, "prefer_server_cipher_suites: must be true or false"),
    ("tls_server_config: yes\n", 1, "tls_server_config: this is a section, its keys stand below it"),
    ("basic_auth_users: [alice]\n", 1, "basic_auth_users: this is a section, its keys stand below it"),
    ("basic_auth_users:\n  alice: secret\n", 2, "basic_auth_users.alice: expected a bcrypt hash: $2y$10$"),
    ("basic_auth_users:\n  alice:\n", 2, "basic_auth_users.alice: a bcrypt hash is missing here"),
    (f"basic_auth_users:\n  a: {HASH.replace('$10$', '$20$')}\n", 2, "basic_auth_users.a: cost 20 is not from 4 to 16"),
    (f"basic_auth_users:\n  a: {HASH}\n  a: {HASH}\n", 3, "basic_auth_users.a is set twice"),
    ("http_server_config: {headers: {X-Frame-Options: allow}}\n", 1, "X-Frame-Options: must be '', 'deny' or"),
    ('http_server_config: {headers: {X-XSS-Protection: "a\\r\\nb"}}\n', 1, "expected one line of plain ASCII text"),
    (
        "rate_limit: {interval: often}\n",
        1,
        "rate_limit.interval: a duration is written like 90s, 10m or 1h30m, not 'often'",
    ),
    ("rate_limit: {interval: 5}\n", 1, "rate_limit.interval: a duration is written like 90s, 10m or 1h30m, not '5'"),
    ("rate_limit: {interval: 1s}\n", 1, "rate_limit: with an interval, burst must be at least 1"),
    ("rate_limit: {interval: 1s, burst: -1}\n", 1, "rate_limit.burst: must be greater than or equal to 0"),
    ("- a\n", 1, "expected `key: value`; the keys of a web configuration file are tls_server_config, "),
    ("tls_server_config: [\n", 2, ""),
]


def refused(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    return str(caught.value)


def test_sentence_about_a_bad_file(folder: Path) -> None:
    for text, line, says in WRONG:
        sentence = refused(folder, text)
        assert sentence.startswith(f"{folder / 'web.yml'}:{line}: ")
        assert says in sentence
        assert "\n" not in sentence


SECRETS = [
    "basic_auth_users:\n  alice: hunter2\n",
    "basic_auth_users:\n  alice: [hunter2]\n",
    "basic_auth_users: hunter2\n",
    "tls_server_config:\n  cert: hunter2\n  key: hunter2\n",
    "tls_server_config:\n  key: [hunter2]\n",
    "tls_server_config:\n  client_ca: [hunter2]\n",
    "tls_server_config:\n  cert: [hunter2]\n",
    "tls_server_config: hunter2\n",
    "tls_server_config:\n  cert_file: server.pem\n  key_file: |\n    hunter2\n    hunter2\n",
    "basic_auth_users:\n  alice: !hunter2 x\n",
    "basic_auth_users:\n  alice: !hunter2!x x\n",
    "basic_auth_users:\n  alice: *hunter2\n",
    "basic_auth_users:\n  alice: &hunter2 a\n  bob: &hunter2 b\n",
    "basic_auth_users:\n  alice: %hunter2\n",
    "basic_auth_users:\n  alice: |hunter2\n",
    "basic_auth_users:\n  alice: 'hunter2\n",
    'basic_auth_users:\n  alice: "\\hunter2"\n',
    "basic_auth_users:\n  alice: a: hunter2\n",
    "basic_auth_users:\n  alice\n  hunter2\n",
    "basic_auth_users: {alice: x] hunter2\n",
    "basic_auth_users:\n  alice: \x07hunter2\n",
]


def test_no_sentence_shows_a_secret(folder: Path) -> None:
    assert [text for text in SECRETS if "hunter2" in refused(folder, text)] == []


_WORDS = st.sampled_from(
    [
        *("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit", "headers", "cert_file", "key"),
        *("cert", "client_ca", "key_file", "client_auth_type", "min_version", "cipher_suites", "interval", "burst"),
        *("server.pem", "server.key", "RequireAndVerifyClientCert", "TLS13", HASH, "1s", "0", ".nan", "null", "~", "/"),
    ]
)
_TREES: st.SearchStrategy[object] = st.recursive(
    _WORDS | st.text(max_size=8) | st.none() | st.integers() | st.booleans() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS | st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(st.one_of(_TREES.map(yaml.safe_dump), st.text(), st.lists(_WORDS).map(": ".join)))
@settings(max_examples=300 if EVERYTHING else 100)
def test_any_file_is_read_or_refused_in_lines_that_name_it(folder: Path, text: str) -> None:
    path = folder / "fuzz.yml"
    path.write_bytes(text.encode(errors="surrogatepass"))
    try:
        load_web_config(path)
    except ConfigError as error:
        lines = str(error).split("\n")
        assert all(line.startswith((f"{path}:", "and ")) for line in lines)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"web\.yml: cannot be read: No such file or directory$"):
        load_web_config(tmp_path / "web.yml")
