"""Keys for TLS and Flower: valid, readable by their owner only, never overwritten."""

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedrecall import UserError
from fedrecall.flower.certificates import check_certificates, make_certificates


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    made = make_certificates(folder, ["127.0.0.1", "server.example"], 2)
    assert sorted(p.name for p in made) == sorted(p.name for p in folder.iterdir())
    return folder


def shaken(server: Path, authority: Path, name: str) -> None:
    """Make a TLS handshake on loopback: the server of one folder, a client that trusts the authority of another."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server / "server.pem", server / "server.key")
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            context.wrap_socket(theirs, server_side=True).close()
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client = ssl.create_default_context(cafile=authority / "ca.crt")
        client.verify_flags |= ssl.VERIFY_X509_STRICT
        client.wrap_socket(ours, server_hostname=name).close()
    finally:
        ours.close()
        thread.join()


@pytest.mark.parametrize("name", ["127.0.0.1", "server.example"])
def test_a_server_certificate_has_all_its_names(keys: Path, name: str) -> None:
    shaken(keys, keys, name)


def test_another_name_and_another_authority_fail_the_handshake(keys: Path, tmp_path: Path) -> None:
    make_certificates(tmp_path, ["127.0.0.1"], 0)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shaken(keys, keys, "elsewhere.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(tmp_path, keys, "127.0.0.1")


def test_node_keys_are_what_flower_reads(keys: Path) -> None:
    private = load_ssh_private_key((keys / "node-1").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.curve.name == "secp384r1"
    public = load_ssh_public_key((keys / "node-1.pub").read_bytes())
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert public.public_numbers() == private.public_key().public_numbers()


def test_secrets_are_for_their_owner_only(keys: Path) -> None:
    for name in ("ca.key", "server.key", "node-0", "node-1"):
        assert stat.S_IMODE((keys / name).stat().st_mode) == 0o600


def test_existing_keys_are_kept_and_a_node_can_be_added(keys: Path) -> None:
    before = {path: path.read_bytes() for path in keys.iterdir()}
    made = make_certificates(keys, ["127.0.0.1"], 3)
    assert sorted(path.name for path in made) == ["node-2", "node-2.pub"]
    assert {path: path.read_bytes() for path in before} == before


def test_a_missing_public_key_is_made_of_the_private_one(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["127.0.0.1"], 2)
    private, public = ((tmp_path / name).read_bytes() for name in ("node-1", "node-1.pub"))
    (tmp_path / "node-1.pub").unlink()
    assert make_certificates(tmp_path, ["127.0.0.1"], 2) == [tmp_path / "node-1.pub"]
    assert ((tmp_path / "node-1").read_bytes(), (tmp_path / "node-1.pub").read_bytes()) == (private, public)
    (tmp_path / "node-1.pub").unlink()
    (tmp_path / "node-1").write_text("no key")
    with pytest.raises(UserError) as error:
        make_certificates(tmp_path, ["127.0.0.1"], 2)
    assert (error.value.code, error.value.key) == ("flower.invalid_certificate", str(tmp_path / "node-1"))


def test_without_the_authoritys_key_no_certificate_is_made(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["127.0.0.1"], 0)
    for name in ("ca.key", "server.pem"):
        (tmp_path / name).unlink()
    with pytest.raises(UserError) as error:
        make_certificates(tmp_path, ["127.0.0.1"], 0)
    assert (error.value.code, error.value.key) == ("flower.missing_authority", str(tmp_path))
    assert "ca.key" in str(error.value)


@pytest.mark.parametrize("host", ["", " ", "-", "a b", "https://server.example", "server.example:9092"])
def test_a_host_that_is_neither_a_name_nor_an_address(host: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        make_certificates(tmp_path, ["server.example", host], 0)
    assert (error.value.code, error.value.key) == ("cli.invalid_option", "--host")
    assert list(tmp_path.iterdir()) == []


def test_a_certificate_for_another_host_past_its_date_or_damaged_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_certificates(tmp_path, ["server.example"], 0)
    before = (tmp_path / "server.pem").read_bytes()
    with pytest.raises(UserError) as error:
        make_certificates(tmp_path, ["server.example", "other.example"], 1)
    assert error.value.code == "flower.invalid_certificate"
    assert "other.example" in str(error.value)
    assert (tmp_path / "server.pem").read_bytes() == before
    (tmp_path / "server.pem").unlink()
    monkeypatch.setattr("fedrecall.flower.certificates.SERVER_DAYS", 0)
    make_certificates(tmp_path, ["server.example"], 0)
    with pytest.raises(UserError) as error:
        make_certificates(tmp_path, ["server.example"], 0)
    assert error.value.code == "flower.invalid_certificate"
    (tmp_path / "server.pem").write_text("no certificate")
    with pytest.raises(UserError) as error:
        make_certificates(tmp_path, ["server.example"], 0)
    assert error.value.code == "flower.invalid_certificate"


def test_certificates_that_expire_soon_are_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_certificates(tmp_path, ["server.example"], 0)
    assert check_certificates(tmp_path, ["server.example"]) == []
    with pytest.raises(UserError) as error:
        check_certificates(tmp_path, ["other.example"])
    assert (error.value.code, error.value.key) == ("flower.invalid_certificate", str(tmp_path / "server.pem"))
    (tmp_path / "server.pem").unlink()
    monkeypatch.setattr("fedrecall.flower.certificates.SERVER_DAYS", 20)
    make_certificates(tmp_path, ["server.example"], 0)
    (warning,) = check_certificates(tmp_path)
    assert warning.startswith(f"{tmp_path / 'server.pem'}: expires on ")
    make_certificates(tmp_path / "others", ["server.example"], 0)
    (tmp_path / "ca.crt").write_bytes((tmp_path / "others" / "ca.crt").read_bytes())
    with pytest.raises(UserError) as error:
        check_certificates(tmp_path)
    assert "is not signed by" in str(error.value)
    with pytest.raises(UserError):
        check_certificates(tmp_path / "nothing")
