"""The OpenSSL context of `tls_server_config`. What Python's ssl does not support is refused, never ignored."""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpugauge.settings.files import FileError, read_file
from gpugauge.web.config.model import TlsServer

# The suites that Go regards as secure (https://pkg.go.dev/crypto/tls#CipherSuites) and their names in OpenSSL. Those of
# TLS 1.3 are always enabled, as in Go.
_TLS13_SUITES = {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
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
# The default: forward secrecy and authenticated encryption only.
_DEFAULT_SUITES = [name for go, name in _SUITES.items() if "CBC" not in go]
_CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}
# OpenSSL's default list has finite fields of up to 8192 bits for TLS 1.3, with which a handshake costs 0.1 s of CPU
# time (D(HE)at, CVE-2022-40735). Every client supports this curve, and Python's ssl accepts no list.
_DEFAULT_CURVE = "CurveP256"
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
# A certificate that is requested but not verified admits every client, as without one.
_VERIFY = {
    "NoClientCert": ssl.CERT_NONE,
    "RequestClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}


_PROC = "/proc"


class TlsConfigError(Exception):
    """A key of `tls_server_config` that cannot be used, and the reason."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason)
        self.key = key


def tls_context(config: TlsServer, folder: Path) -> ssl.SSLContext:
    """Return the context of a server. Relative paths are relative to `folder`. Raises TlsConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    _set_versions(context, config)
    _set_ciphers(context, config)
    _set_curves(context, config)
    _set_client_auth(context, config, folder)
    _load_certificate(context, config, folder)
    return context


def files(config: TlsServer, folder: Path) -> tuple[Path, ...]:
    """Return the files that the section names."""
    named = (config.cert_file, config.key_file, config.client_ca_file)
    return tuple(folder / file for file in named if file is not None)


def _set_versions(context: ssl.SSLContext, config: TlsServer) -> None:
    for key, name in (("min_version", config.min_version), ("max_version", config.max_version)):
        if name not in _VERSIONS:
            raise TlsConfigError(key, f"{name} is not served: it is broken (RFC 8996); expected TLS12 or TLS13")
    low, high = _VERSIONS[config.min_version], _VERSIONS[config.max_version]
    if low > high:
        raise TlsConfigError("max_version", f"{config.max_version} is below min_version, {config.min_version}")
    if config.cipher_suites and not set(config.cipher_suites) - _TLS13_SUITES:
        if high < ssl.TLSVersion.TLSv1_3:
            raise TlsConfigError(
                "cipher_suites", f"none of these is of {config.max_version}, the highest version allowed"
            )
        low = ssl.TLSVersion.TLSv1_3  # TLS 1.2 has no suite left
    context.minimum_version, context.maximum_version = low, high


def _set_ciphers(context: ssl.SSLContext, config: TlsServer) -> None:
    for name in config.cipher_suites:
        if name not in _SUITES and name not in _TLS13_SUITES:
            raise TlsConfigError(
                "cipher_suites", f"{name} is not one of {', '.join(sorted([*_SUITES, *_TLS13_SUITES]))}"
            )
    chosen = [_SUITES[name] for name in config.cipher_suites if name in _SUITES]
    context.set_ciphers(":".join(chosen or _DEFAULT_SUITES))
    if config.prefer_server_cipher_suites:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE


def _set_curves(context: ssl.SSLContext, config: TlsServer) -> None:
    if len(config.curve_preferences) > 1:
        raise TlsConfigError("curve_preferences", "Python's ssl accepts one curve only; CurveP256 is the default")
    name = next(iter(config.curve_preferences), _DEFAULT_CURVE)
    try:
        context.set_ecdh_curve(_CURVES[name])
    except (ValueError, ssl.SSLError):
        python = ".".join(map(str, sys.version_info[:3]))
        raise TlsConfigError(
            "curve_preferences", f"the ssl module of Python {python} cannot use {name}; CurveP256 is the default"
        ) from None


def _set_client_auth(context: ssl.SSLContext, config: TlsServer, folder: Path) -> None:
    kind, authority = config.client_auth_type, _pem(config, "client_ca", folder)
    if kind not in _VERIFY:
        raise TlsConfigError(
            "client_auth_type",
            f"{kind} would accept any certificate, also a self-signed one; use RequireAndVerifyClientCert",
        )
    verify = _VERIFY[kind]
    if verify == ssl.CERT_NONE and authority:
        raise TlsConfigError(
            "client_auth_type", f"with {kind}, client_ca_file has no effect; use RequireAndVerifyClientCert"
        )
    if config.client_allowed_sans is not None and verify != ssl.CERT_REQUIRED:
        raise TlsConfigError("client_allowed_sans", "needs client_auth_type: RequireAndVerifyClientCert")
    if verify == ssl.CERT_NONE:
        return
    if not authority:
        raise TlsConfigError(
            "client_ca_file", f"client_auth_type: {kind} needs it, the authority that signs the clients' certificates"
        )
    context.verify_mode = verify
    # As in Go, an authority in the file need not be a root.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        # Bundles have comments between the certificates, in any language.
        context.load_verify_locations(cadata=authority.decode("ascii", "ignore"))
    except (ValueError, ssl.SSLError):
        raise TlsConfigError(_given(config, "client_ca"), "expected certificates in PEM form") from None


def _load_certificate(context: ssl.SSLContext, config: TlsServer, folder: Path) -> None:
    certificate, key = _pem(config, "cert", folder), _pem(config, "key", folder)
    for name, pem, mark in (("cert", certificate, b"CERTIFICATE-----"), ("key", key, b"PRIVATE KEY-----")):
        if not pem:
            raise TlsConfigError(f"{name}_file", f"TLS needs one of {name}_file and {name}")
        if mark not in pem:
            raise TlsConfigError(
                _given(config, name), f"expected a {'certificate' if name == 'cert' else 'key'} in PEM form"
            )
    if b"ENCRYPTED" in key:
        raise TlsConfigError(_given(config, "key"), "the key is encrypted, and the daemon cannot ask for its password")
    with _as_file(certificate) as certificate_path, _as_file(key) as key_path:
        try:
            # With a password OpenSSL never prompts for one, not even if the check above missed an encrypted key.
            context.load_cert_chain(certificate_path, key_path, password="")
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise TlsConfigError(_given(config, "key"), "this is not the key of the certificate") from None
            reason = (error.reason or "not readable").lower().replace("_", " ")
            raise TlsConfigError(_given(config, "cert"), f"certificate and key cannot be used: {reason}") from None
        except OSError:
            raise TlsConfigError(_given(config, "cert"), "TLS needs /proc, which is not mounted here") from None


def _given(config: TlsServer, name: str) -> str:
    return name if getattr(config, name) else f"{name}_file"


def _pem(config: TlsServer, name: str, folder: Path) -> bytes:
    """Return the inline text or the content of the file; empty if neither is set. Raises TlsConfigError."""
    inline: str = getattr(config, name)
    file: Path | None = getattr(config, f"{name}_file")
    if inline and file:
        raise TlsConfigError(name, f"give either this or {name}_file")
    if file is None:
        return inline.encode(errors="replace")
    if not str(file).isprintable():  # PEM text, which must not be shown
        raise TlsConfigError(f"{name}_file", f"expected a path; PEM text itself is set as {name}")
    path = folder / file
    try:
        content = read_file(path, "PEM file")
    except FileError as error:
        raise TlsConfigError(f"{name}_file", f"{path}: {error}") from None
    if not content:
        raise TlsConfigError(f"{name}_file", f"{path}: empty")
    return content


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Yield a path to bytes in memory: OpenSSL needs a path, and a key must not be written to a disk."""
    descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"{_PROC}/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
