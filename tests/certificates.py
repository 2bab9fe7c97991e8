"""Certificates for tests: an authority in memory, and the certificates that it signs as PEM files."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_DAY = dt.timedelta(days=1)
_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey, password: bytes | None = None) -> bytes:
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


class Authority:
    """A certificate authority; `pem` is its own certificate."""

    def __init__(self, name: str = "an authority") -> None:
        self._key = new_key()
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self.pem = _pem(self._signed(self._name, self._key, x509.BasicConstraints(ca=True, path_length=None)))

    def issue(self, folder: Path, stem: str, *names: str) -> tuple[Path, Path]:
        """Write `stem.pem` and `stem.key` for the DNS names or addresses into the folder; return both paths."""
        key = new_key()
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, stem)])
        extension = x509.SubjectAlternativeName([_general(name) for name in names])
        certificate, secret = folder / f"{stem}.pem", folder / f"{stem}.key"
        certificate.write_bytes(_pem(self._signed(subject, key, extension)))
        secret.write_bytes(key_pem(key))
        return certificate, secret

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.timezone.utc)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - _DAY).not_valid_after(now + _DAY)
        # From Python 3.13 on, a client wants all that RFC 5280 demands.
        authority = isinstance(extension, x509.BasicConstraints)
        builder = builder.add_extension(extension, critical=authority)
        own, issuer = key.public_key(), self._key.public_key()
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(own), critical=False)
        builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
        if authority:
            usage = dict.fromkeys(_USAGES, False) | {"key_cert_sign": True, "crl_sign": True}
            builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
        return builder.sign(self._key, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _general(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    if "@" in name:
        return x509.RFC822Name(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
