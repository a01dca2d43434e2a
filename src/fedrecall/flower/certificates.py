"""Keys of a federation: a certificate authority, the server's certificate, and a key pair for every node.

Existing files are never changed. To add a node, run the command again; to renew a certificate, remove it first.
"""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from fedrecall.errors import UserError, first_line, missing_extra
from fedrecall.files import write_atomic

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise missing_extra("cryptography", "flower") from error

AUTHORITY_DAYS = 3650  # validity of the authority's certificate

SERVER_DAYS = 365  # validity of the server's certificate

WARNING_DAYS = 30  # days before the end of a certificate's validity at which it is warned of


def make_certificates(folder: Path, hosts: Sequence[str], nodes: int) -> list[Path]:
    """Make the missing files of ca.crt, ca.key, server.pem, server.key and node-0, node-0.pub, ...; returns new paths.

    `hosts` are the names and addresses by which nodes reach the server.
    """
    if not hosts:
        raise UserError(
            "cli.missing_option",
            "--host: the name by which the nodes reach the server is missing",
            "--host",
            "pass --host NAME",
        )
    names = [_host(host) for host in hosts]
    made: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "ca.crt").exists():
            made += _authority(folder)
        if not (folder / "server.pem").exists():
            made += _server(folder, hosts)
        else:
            _check_server(folder / "server.pem", dict(zip(hosts, names, strict=True)))
        for number in range(nodes):
            made += _node(folder / f"node-{number}")
    except OSError as error:
        raise UserError(
            "flower.cannot_write",
            f"{folder}: cannot write keys: {error.strerror} ({error.filename})",
            str(folder),
            "choose another folder, or change its permissions",
        ) from None
    return made


def check_certificates(folder: Path, hosts: Sequence[str] = ()) -> list[str]:
    """Return a warning for each certificate in a folder that expires within WARNING_DAYS.

    A certificate that has expired, is for another host or is of another authority is an error. A node's folder has
    only ca.crt.
    """
    found = [path for path in (folder / "ca.crt", folder / "server.pem") if path.exists()]
    if not found:
        message = f"{folder}: there is neither ca.crt nor server.pem"
        raise UserError("flower.invalid_certificate", message, str(folder), "name the folder of the certificates")
    certificates = {path.name: _valid_certificate(path) for path in found}
    if "server.pem" in certificates:
        _check_server(folder / "server.pem", {host: _host(host) for host in hosts})
        if "ca.crt" in certificates:
            try:
                certificates["server.pem"].verify_directly_issued_by(certificates["ca.crt"])
            except (ValueError, TypeError, InvalidSignature):
                reason = f"{folder / 'server.pem'}: it is not signed by the authority of {folder / 'ca.crt'}"
                hint = "use the files that one call of fedrecall flower certs made"
                raise UserError("flower.invalid_certificate", reason, str(folder / "server.pem"), hint) from None
    soon = datetime.now(UTC) + timedelta(days=WARNING_DAYS)
    ends = {path: certificates[path.name].not_valid_after_utc for path in found}
    return [
        f"{path}: expires on {end:%Y-%m-%d}, in {(end - datetime.now(UTC)).days} days: remove it"
        f"{' and server.key' if path.name == 'server.pem' else ''}, and run fedrecall flower certs again"
        for path, end in ends.items()
        if end < soon
    ]


def _authority(folder: Path) -> list[Path]:
    key, name = ec.generate_private_key(ec.SECP384R1()), _name("fedrecall federation authority")
    builder = _certificate(name, name, key.public_key(), AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return [_write_private(folder / "ca.key", _pem(key)), _write_public(folder / "ca.crt", _signed(builder, key))]


def _server(folder: Path, hosts: Sequence[str]) -> list[Path]:
    try:
        authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        signer = form.load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise UserError(
            "flower.missing_authority",
            f"{folder}: no ca.crt with its ca.key to sign the server's certificate with ({first_line(error)})",
            str(folder),
            "restore both, or make all keys in an empty folder",
        ) from None
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise UserError(
            "flower.missing_authority",
            f"{folder / 'ca.key'}: not a key that `fedrecall flower certs` made",
            str(folder / "ca.key"),
            "restore ca.crt and ca.key, or make all keys in an empty folder",
        )
    key = ec.generate_private_key(ec.SECP384R1())
    builder = _certificate(_name(hosts[0]), authority.subject, key.public_key(), SERVER_DAYS)
    builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = builder.add_extension(issuer, critical=False)
    return [
        _write_private(folder / "server.key", _pem(key)),
        _write_public(folder / "server.pem", _signed(builder, signer)),
    ]


def _check_server(path: Path, names: dict[str, x509.GeneralName]) -> None:
    """Raise an error if the server's certificate has expired, or is not for all of these hosts."""
    hint = f"remove {path.name} and server.key, then run fedrecall flower certs"
    certificate = _valid_certificate(path)
    try:
        covered = list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound as error:
        reason = f"{path}: not a server's certificate ({first_line(error)})"
        raise UserError("flower.invalid_certificate", reason, str(path), hint) from None
    if others := [host for host, name in names.items() if name not in covered]:
        reason = f"{path}: the certificate is not for {', '.join(others)}"
        raise UserError("flower.invalid_certificate", reason, str(path), hint)


def _valid_certificate(path: Path) -> x509.Certificate:
    """Read a certificate; raise an error if it is none, or has expired."""
    hint = f"remove {path.name} and its key, then run fedrecall flower certs"
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (ValueError, OSError) as error:
        reason = f"{path}: not a certificate ({first_line(error)})"
        raise UserError("flower.invalid_certificate", reason, str(path), hint) from None
    if certificate.not_valid_after_utc < datetime.now(UTC):
        reason = f"{path}: the certificate expired on {certificate.not_valid_after_utc:%Y-%m-%d}"
        raise UserError("flower.invalid_certificate", reason, str(path), hint)
    return certificate


def _node(path: Path) -> list[Path]:
    """Write the missing files of a key pair as Flower's SuperNodes read them: ECDSA on P-384, in OpenSSH's format."""
    made, public_path = list[Path](), path.with_suffix(".pub")
    if not path.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
        made.append(_write_private(path, private))
    elif not public_path.exists():
        key = _node_key(path)
    else:
        return made
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    return [*made, _write_public(public_path, public + b"\n")]


def _node_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read the private key of a node whose public key is missing."""
    try:
        key = form.load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        reason = f"{path}: not a key that `fedrecall flower certs` made, and {path.stem}.pub is missing"
        hint = f"restore {path.stem}.pub, or remove {path.name} and run fedrecall flower certs again"
        raise UserError("flower.invalid_certificate", reason, str(path), hint)
    return key


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    # Valid since an hour ago, because clocks of machines differ.
    return builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=days))


def _signed(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> bytes:
    return builder.sign(key, hashes.SHA384()).public_bytes(form.Encoding.PEM)


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ip_address(host))
    with suppress(ValueError):
        if re.fullmatch(r"[\w*][\w.*-]*", host, re.ASCII):
            return x509.DNSName(host)
    raise UserError(
        "cli.invalid_option",
        f"--host = {host!r}: neither a name nor an address",
        "--host",
        "pass the DNS name or IP address by which the nodes reach the server",
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())


def _write_public(path: Path, content: bytes) -> Path:
    write_atomic(path, content)
    return path


def _write_private(path: Path, content: bytes) -> Path:
    """Write a file that only its owner can read; it is created with these permissions."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    return path
