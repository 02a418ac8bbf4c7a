"""Verbs about the files of a run as evidence: compare them with the manifest, sign them, and copy them without names of machines."""

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gpu_acceptance.base.files import write_atomically
from gpu_acceptance.base.text import one_line
from gpu_acceptance.cli.arguments import Verbs, add_verb, existing_file, existing_folder, matching, new_file
from gpu_acceptance.cli.run_folder import UsageError, add_run, find_run, refuse_another_run
from gpu_acceptance.folder.corroboration import find_unlike_journals
from gpu_acceptance.folder.files import RESULTS, RecordError, read_results
from gpu_acceptance.folder.manifest import (
    MANIFEST,
    SIGNATURE,
    Difference,
    Kind,
    Manifest,
    SignatureError,
    differences,
    find_manifest,
    find_signer,
    make_signature,
)
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.redaction import redact_run
from gpu_acceptance.report.summary_text import shortened
from gpu_acceptance.report.words import count

CHANGED = 1
_KINDS: dict[Kind, str] = {"differs": "changed", "missing": "missing", "extra": "extra", "unlike": "unlike the results"}


def add_verbs(verbs: Verbs) -> None:
    """Add `report verify`, `report sign` and `report redact`."""
    verify = add_verb(verbs, "verify", _verify)
    digest = matching(r"[0-9a-f]{64}", "64 hexadecimal digits")
    verify.add_argument("--sha256", metavar="DIGEST", type=digest, help="digest of the manifest, from the last line that the run printed")
    signers = "accepted signers; format: ssh-keygen(1), ALLOWED SIGNERS"
    verify.add_argument("--allowed-signers", metavar="FILE", type=existing_file, help=signers)
    add_run(verify)
    sign = add_verb(verbs, "sign", _sign)
    key = "a private key, or the public key of one that ssh-agent holds"
    sign.add_argument("--key", metavar="FILE", type=_key, required=True, help=key)
    sign.add_argument("dir", metavar="DIR", type=existing_folder, help="a run folder")
    redact = add_verb(verbs, "redact", _redact)
    names = "table of names and stand-ins; created or extended; keep it, and use it again for the next run"
    redact.add_argument("--names", metavar="FILE", type=new_file, required=True, help=names)
    redact.add_argument("dir", metavar="DIR", type=existing_folder, help="a run folder")
    redact.add_argument("out", metavar="OUT", type=Path, help="the new folder")


def _verify(options: argparse.Namespace) -> int:
    """List the files of a run that changed since the run.

    Compare all files of a run with its manifest, SHA256SUMS, and its results with the journals of its ranks. Print a line for each file
    that DIFFERS, is MISSING or EXTRA, and for each journal that is UNLIKE the results; else the verdict line that the results give, which
    a page beside them may not. Then the result. VERIFIED (exit code 0) needs proof that the manifest is the run's own, from --sha256 or a
    signature, because a changed file can come with a new manifest. Without that proof the result is CONSISTENT (exit code 0). CHANGED is
    exit code 1. Exit code 3: the manifest is missing or cannot be used.
    """
    run_dir = find_run(options.dir)
    manifest = manifest_of(run_dir)
    signer, faults = "", []
    if options.allowed_signers and not os.path.lexists(run_dir / SIGNATURE):
        faults.append(Difference("missing", SIGNATURE, "this run is not signed"))
    elif options.allowed_signers:
        try:
            signer = find_signer(run_dir, options.allowed_signers)
        except SignatureError as error:
            faults.append(Difference("differs", SIGNATURE, str(error)))
    if options.sha256 and options.sha256 != manifest.sha256:
        faults = [Difference("differs", MANIFEST, f"its sha256 is not {options.sha256}"), *faults]
    record = _confirmed(run_dir, manifest, *faults)
    if record is None:
        return CHANGED
    print(one_line(record.conclusion.line))
    files = f"{count(len(manifest.digests), 'file')} as {MANIFEST} names them"
    if proofs := [*(["--sha256"] if options.sha256 else []), *([f"the signature of {signer}"] if signer else [])]:
        result = f"VERIFIED by {' and '.join(proofs)}: {files}"
    else:
        hint = f"{SIGNATURE} counts with --allowed-signers" if os.path.lexists(run_dir / SIGNATURE) else "its digest says"
        result = f"CONSISTENT: {files}; whether it is the run's own, {hint}"
    _say(result, run_dir, manifest)
    return 0


def _key(text: str) -> Path:
    """ssh-keygen takes NAME for NAME.pub if an agent has the private key."""
    public = Path(f"{text}.pub")
    return Path(text) if public.is_file() else existing_file(text)


def _sign(options: argparse.Namespace) -> int:
    """Sign the manifest of a run with your own SSH key.

    Sign SHA256SUMS with `ssh-keygen -Y sign`, in the namespace gpu-acceptance, into SHA256SUMS.sig beside it. Nothing is signed where a
    file differs from the manifest: exit code 1. An existing signature is never replaced. To check it: `report verify
    --allowed-signers=FILE DIR`.
    """
    run_dir, path = options.dir, options.dir / SIGNATURE
    manifest = manifest_of(run_dir)
    record = _confirmed(run_dir, manifest)
    if record is None:
        return CHANGED
    if os.path.lexists(path):
        raise UsageError(f"{path}: is there already; a signature is never replaced: move it away to sign again")
    write_atomically(path, make_signature(run_dir, options.key))
    print(one_line(record.conclusion.line))
    _say(f"SIGNED: {SIGNATURE}", run_dir, manifest)
    return 0


def _redact(options: argparse.Namespace) -> int:
    """Copy a run without the names of machines, to give it away.

    Write a copy of the run in DIR to the new folder OUT. Stand-ins replace host names, serial numbers, UUIDs, GUIDs, addresses, user names
    and paths, the same in all files. OUT has a manifest of its own; its redaction.json holds the digests of the run's own manifest and of
    each replaced name. FILE holds the names and the salts of their digests. A run that changed since it ended is not redacted: exit code
    1.
    """
    run_dir, out, names = options.dir, options.out, options.names
    if os.path.lexists(out):
        raise UsageError(f"{out}: is there already; name a folder that is not there yet")
    for folder in (run_dir, out):
        if folder.resolve() in names.resolve().parents or folder.resolve() in out.resolve().parents:
            raise UsageError(f"{names} and {out}: neither may be in a folder that is given away or is a run")
    manifest = find_manifest(run_dir)
    if manifest and _confirmed(run_dir, manifest) is None:
        return CHANGED
    _say(f"REDACTED: {one_line(str(names))} says what stands for what, keep it", out, redact_run(run_dir, out, names))
    return 0


def _confirmed(run_dir: Path, manifest: Manifest, *faults: Difference) -> RunRecord | None:
    """Return the record of a run whose files match its manifest and whose journals confirm it; else print the differences.

    `faults`: differences that are already known. Raises RecordError.
    """
    if changes := [*faults, *differences(run_dir, manifest)]:
        _say_changes(run_dir, manifest, changes)
        return None
    record = read_results(run_dir)
    refuse_another_run(record.plan.run_id, run_dir, run_dir / RESULTS)
    unlike = [Difference("unlike", one.name, f"rank {one.rank}: it {one.what}") for one in find_unlike_journals(run_dir, record)]
    if unlike:
        _say_changes(run_dir, manifest, unlike)
    return None if unlike else record


def manifest_of(run_dir: Path) -> Manifest:
    """Return the manifest of a run. Raises RecordError without one."""
    manifest = find_manifest(run_dir)
    if manifest is None:
        raise RecordError(
            f"{run_dir}: no {MANIFEST}: nothing says what this run left; its reporter was killed, or is of an earlier version"
        )
    return manifest


def _say_changes(run_dir: Path, manifest: Manifest, changes: Sequence[Difference]) -> None:
    for line in shortened([str(one) for one in changes], elsewhere=""):
        print(line)
    kinds = Counter(one.kind for one in changes)
    result = ", ".join(f"{kinds[kind]} {text}" for kind, text in _KINDS.items() if kinds[kind])
    if {one.name for one in changes if one.kind != "extra"} >= manifest.digests.keys():
        result += ": not one file as it names it, a manifest of another run"
    _say(f"CHANGED: {result}", run_dir, manifest)


def _say(result: str, run_dir: Path, manifest: Manifest) -> None:
    print(f"{result} | {MANIFEST} sha256 {manifest.sha256} | {one_line(str(run_dir))}")
