"""`report sign` and `report verify --allowed-signers`, with keys of OpenSSH made here."""

import shutil
import subprocess

import pytest

from gpu_acceptance.folder.files import read_results
from gpu_acceptance.folder.manifest import read_manifest, write_manifest
from tests.cli.test_verbs import leave_run, run

pytestmark = pytest.mark.needs("openssh-client")


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """A folder with the keys of a buyer and of a stranger, one that needs a passphrase, and files that name them."""
    folder = tmp_path_factory.mktemp("keys")
    for name, passphrase in (("buyer", ""), ("stranger", ""), ("locked", "not given")):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "", "-f", folder / name], check=True)
    public = {name: (folder / f"{name}.pub").read_text().strip() for name in ("buyer", "stranger")}
    (folder / "allowed").write_text(f"# who signs\nvendor@example.org {public['stranger']}\nbuyer@example.org {public['buyer']}\n")
    (folder / "stranger-alone").write_text(f"vendor@example.org {public['stranger']}\n")
    (folder / "for-commits").write_text(f'buyer@example.org namespaces="git" {public["buyer"]}\n')
    (folder / "two-names").write_text(f"other@example.com,*@example.org {public['buyer']}\n")
    (folder / "broken").write_text("\x1b[2Jno key\n")
    return folder


@pytest.fixture
def run_dir(tmp_path):
    return leave_run(tmp_path)


@pytest.fixture
def signed(run_dir, keys, capsys):
    assert run(capsys, "report", "sign", run_dir, f"--key={keys / 'buyer'}")[0] == 0
    return run_dir


def verify(capsys, folder, allowed):
    code, out, err = run(capsys, "report", "verify", f"--allowed-signers={allowed}", folder)
    return code, out + err


def test_a_signature_says_who_vouches_for_all_files(run_dir, keys, capsys):
    line = f"{read_results(run_dir).conclusion.line}\n"
    tail = f" | SHA256SUMS sha256 {read_manifest(run_dir).sha256} | {run_dir}\n"
    assert run(capsys, "report", "sign", run_dir, f"--key={keys / 'buyer'}") == (0, f"{line}SIGNED: SHA256SUMS.sig{tail}", "")
    code, out = verify(capsys, run_dir, keys / "allowed")
    assert code == 0
    assert out.startswith(f"{line}VERIFIED by the signature of buyer@example.org (ED25519 key SHA256:")
    assert out.endswith(f"): 9 files as SHA256SUMS names them{tail}")
    code, out, _ = run(capsys, "report", "verify", run_dir)
    assert code == 0
    assert out.startswith(f"{line}CONSISTENT: ")
    assert "whether it is the run's own, SHA256SUMS.sig counts with --allowed-signers" in out


def test_openssh_itself_takes_the_signature(signed, keys):
    with (signed / "SHA256SUMS").open("rb") as file:
        command = ["ssh-keygen", "-Y", "verify", "-f", keys / "allowed", "-I", "buyer@example.org", "-n", "gpu-acceptance"]
        subprocess.run([*command, "-s", signed / "SHA256SUMS.sig"], stdin=file, check=True)


def test_one_of_several_names_of_a_key_is_enough(signed, keys, capsys):
    code, out = verify(capsys, signed, keys / "two-names")
    assert code == 0, out


def changed(folder):
    (folder / "junit.xml").touch()


def signed_again(folder):
    changed(folder)
    write_manifest(folder)


def linked(folder):
    (folder / "SHA256SUMS.sig").rename(folder.parent / "elsewhere")
    (folder / "SHA256SUMS.sig").symlink_to(folder.parent / "elsewhere")


def removed(folder):
    (folder / "SHA256SUMS.sig").unlink()


def replaced_by(text):
    return lambda folder: (folder / "SHA256SUMS.sig").write_text(text)


BY_NOBODY = "DIFFERS SHA256SUMS.sig: not by a key that {allowed} names: "
OF_ANOTHER = "DIFFERS SHA256SUMS.sig: not a signature of this SHA256SUMS: "


@pytest.mark.parametrize(
    ("harm", "allowed", "said"),
    [
        (changed, "allowed", "EXTRA junit.xml\nCHANGED: 1 extra | "),
        (signed_again, "allowed", f"{OF_ANOTHER}Signature verification failed: incorrect signature"),
        (lambda _: None, "stranger-alone", f"{BY_NOBODY}No principal matched."),
        (lambda _: None, "for-commits", OF_ANOTHER),
        (lambda _: None, "broken", BY_NOBODY),
        (replaced_by(""), "allowed", BY_NOBODY),
        (replaced_by("garbage"), "allowed", BY_NOBODY),
        (replaced_by("-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n"), "allowed", BY_NOBODY),
        (replaced_by("\x1b[2J\0"), "allowed", BY_NOBODY),
        (linked, "allowed", "DIFFERS SHA256SUMS.sig: is a link\n"),
        (
            lambda folder: (folder / "SHA256SUMS.sig").unlink(),
            "allowed",
            "MISSING SHA256SUMS.sig: this run is not signed\nCHANGED: 1 missing | ",
        ),
    ],
)
def test_what_is_no_signature_of_these_files_by_an_allowed_key_does_not_count(signed, keys, capsys, harm, allowed, said):
    harm(signed)
    code, out = verify(capsys, signed, keys / allowed)
    assert code == 1
    assert out.startswith(said.format(allowed=keys / allowed))
    assert all(line.isprintable() for line in out.splitlines())


def test_neither_a_changed_run_is_signed_nor_one_without_a_manifest(run_dir, keys, capsys):
    changed(run_dir)
    code, out, _ = run(capsys, "report", "sign", run_dir, f"--key={keys / 'buyer'}")
    assert code == 1
    assert out.startswith("EXTRA junit.xml\nCHANGED: 1 extra | ")
    (run_dir / "SHA256SUMS").unlink()
    code, _, err = run(capsys, "report", "sign", run_dir, f"--key={keys / 'buyer'}")
    assert code == 3
    assert "no SHA256SUMS: nothing says what this run left" in err
    assert not (run_dir / "SHA256SUMS.sig").exists()


def test_a_signature_is_never_replaced(signed, keys, capsys):
    before = (signed / "SHA256SUMS.sig").read_bytes()
    line = f"{signed}/SHA256SUMS.sig: is there already; a signature is never replaced: move it away to sign again"
    assert run(capsys, "report", "sign", signed, f"--key={keys / 'stranger'}") == (4, "", f"gpu-acceptance: {line}\n")
    assert (signed / "SHA256SUMS.sig").read_bytes() == before


@pytest.mark.parametrize("key", ["allowed", "locked"])
def test_a_key_that_cannot_be_used(run_dir, keys, capsys, monkeypatch, key):
    monkeypatch.setenv("SSH_ASKPASS", "/bin/false")
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")
    code, out, err = run(capsys, "report", "sign", run_dir, f"--key={keys / key}")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert err.startswith(f"gpu-acceptance: {keys / key}: ssh-keygen made no signature with it: ")
    assert not (run_dir / "SHA256SUMS.sig").exists()


def test_a_file_of_signers_that_is_not_there(signed, capsys, tmp_path):
    line = f"gpu-acceptance report verify: --allowed-signers: {tmp_path}/nobody: no such file\n"
    assert verify(capsys, signed, tmp_path / "nobody") == (4, line)


def test_without_openssh(signed, keys, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("ssh-keygen") is None
    line = "gpu-acceptance: ssh-keygen is not in the PATH of this machine; it comes with OpenSSH (Debian, Ubuntu: openssh-client)\n"
    assert verify(capsys, signed, keys / "allowed") == (3, line)
    (signed / "SHA256SUMS.sig").unlink()
    assert run(capsys, "report", "sign", signed, f"--key={keys / 'buyer'}") == (3, "", line)


def test_an_openssh_that_does_not_answer_holds_nobody_up(signed, keys, capsys, monkeypatch, tmp_path):
    (tmp_path / "ssh-keygen").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "ssh-keygen").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("gpu_acceptance.folder.manifest._ANSWERS_WITHIN_S", 0.2)
    assert verify(capsys, signed, keys / "allowed") == (3, f"gpu-acceptance: {tmp_path}/ssh-keygen did not answer within 0.2 s\n")
