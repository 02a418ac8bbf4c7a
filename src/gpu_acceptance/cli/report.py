"""Verbs of `report`: make the report of a run, compare two runs, and treat the files of a run as evidence (verify, sign, redact)."""

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpu_acceptance.base.files import write_atomically
from gpu_acceptance.base.text import one_line, plural
from gpu_acceptance.cli.arguments import UNREADABLE, Verbs, add_verb, existing_file, existing_folder, fail, matching, new_file, note
from gpu_acceptance.cli.run_folder import UsageError, add_run, find_run, read_run, refuse_another_run, say_verdict
from gpu_acceptance.folder.corroboration import find_unlike_journals
from gpu_acceptance.folder.files import RESULTS, RecordError, read_results, write_results
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
    refuse_changed,
    write_manifest,
)
from gpu_acceptance.folder.rebuild import copy_journals, find_journals, journal_paths, last_written, only_copies, read_run_folder, rebuild
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.build import REPORT, build_compare_page, write_page
from gpu_acceptance.report.ending import INTERNAL_ERROR, describe
from gpu_acceptance.report.event_files import find_missing, write_event_files
from gpu_acceptance.report.exports import write_exports
from gpu_acceptance.report.redaction import redact_run
from gpu_acceptance.report.summary_text import shortened
from gpu_acceptance.report.words import parse_moment
from gpu_acceptance.verdict.comparison import Comparison, compare

CHANGED = 1
_KINDS: dict[Kind, str] = {"differs": "changed", "missing": "missing", "extra": "extra", "unlike": "unlike the results"}


def add_verbs(verbs: Verbs) -> None:
    """Add the verbs of `report`."""
    build = add_verb(verbs, "build", _build)
    again = "rebuild a results.json that was itself rebuilt; a results.json of the run's own reporter is never replaced"
    build.add_argument("--from-journals", action="store_true", help=again)
    curves = "also write the run's curves for TensorBoard, into tensorboard/ beside the report; needs the extra tensorboard"
    build.add_argument("--tensorboard", action="store_true", help=curves)
    add_run(build)
    merge = add_verb(verbs, "merge", _merge)
    merge.add_argument("out", metavar="OUT", type=Path, help="the folder to join them in; journals of an earlier merge in it count too")
    merge.add_argument("dirs", metavar="DIR", nargs="+", type=existing_folder, help="the run folder of one node")
    verb = add_verb(verbs, "compare", _compare)
    verb.add_argument("--html", metavar="FILE", type=new_file, help="also write the comparison as a page; an existing file is replaced")
    verb.add_argument("before", metavar="BEFORE", type=Path, help="folder of the earlier run, or a folder of runs: its newest run")
    verb.add_argument("after", metavar="AFTER", type=Path, help="folder of the later run, or a folder of runs: its newest run")
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


def _build(options: argparse.Namespace) -> int:
    """Build report.html and the files beside it from results.json, or everything from the journals.

    Build report.html and the files for other tools (summary.txt, figures.csv, metrics.prom, junit.xml) from the results.json beside them,
    and from nothing else; print the path of the page. A run that left no results.json is rebuilt from its journals: results.json and
    report.html are written, the verdict line is printed, each problem of a journal follows on standard error, and the run's exit code is
    returned. A rebuilt run is never ACCEPTED. A run whose ranks never met has no report: the reason is printed on standard error, and the
    exit code is 6.
    """
    if options.tensorboard and (missing := find_missing()):
        raise UsageError(missing)
    run_dir = find_run(options.dir)
    if (run_dir / RESULTS).exists() and not options.from_journals:
        record, manifest = read_run(run_dir), find_manifest(run_dir)
        print(write_page(run_dir))
        for one in differences(run_dir, manifest, REPORT) if manifest else ():
            note(f"{one}: no longer the page that {MANIFEST} names, which stays as it is")
        code = max([fail(problem, UNREADABLE) for problem in write_exports(run_dir, record)], default=0)
    else:
        _refuse_replacing(run_dir)
        code = _rebuild(run_dir, [run_dir], f"it left no {RESULTS}")
    if options.tensorboard:
        try:
            print(one_line(write_event_files(run_dir, read_results(run_dir))))
        except Exception as error:  # a package or a disk can raise anything; the verdict of a rebuilt run stands without these files
            problem = fail(f"no event files in {run_dir}: {describe(error)}", UNREADABLE)
            return code or problem
    return code


def _merge(options: argparse.Namespace) -> int:
    """Join the journals of several nodes, and build the report of their run.

    Copy the journals of one run, left on several nodes, into OUT/journal, and rebuild the run there as `report build` does. Identical
    copies of a journal count once; a folder that holds only copies is named. Two journals of one rank that differ, and journals of
    different runs, are an error: nothing is written. A run whose own reporter lost no rank is an error too: its results.json is the proof.
    """
    _refuse_replacing(options.out)
    for folder in options.dirs:
        if not journal_paths(folder):
            raise UsageError(f"{folder}: no run in this folder: no journal/rank-*.jsonl")
        path = folder / RESULTS
        if path.exists() and _is_whole(read_results(path)):
            raise UsageError(f"{path}: the run's own reporter wrote it and lost no rank: there is nothing to join")
    sources = [*([options.out] if journal_paths(options.out) else []), *options.dirs]
    copies = only_copies(options.dirs)
    code = _rebuild(options.out, sources, f"joined from {plural(len(options.dirs) - len(copies), 'folder')}")
    for folder in copies:
        note(f"{folder}: nothing but copies of journals of the folders before it")
    return code


def _is_whole(record: RunRecord) -> bool:
    """Return True if the run's own reporter heard every rank: journals add nothing. If it lost ranks, journals tell what it missed."""
    outcomes = {one.outcome for row in record.rows for attempt in row.attempts for one in attempt.ranks}
    return not record.rebuilt and record.conclusion.exit_code != INTERNAL_ERROR and Outcome.LOST not in outcomes


def _rebuild(out: Path, sources: Sequence[Path], why: str) -> int:
    """Write the run that the journals of all sources tell of, once all of them are known to fit together."""
    journals = find_journals(sources)
    contents = [content for source in sources for content in read_run_folder(source)]
    record = rebuild(contents, ended_at=last_written(contents), why=why)
    refuse_another_run(record.plan.run_id, out, out / RESULTS)
    copy_journals(journals, out)
    write_results(out, record)
    write_page(out)
    unwritten = write_exports(out, record)
    write_manifest(out)
    for problem in dict.fromkeys([*unwritten, *(problem for content in contents for problem in content.problems)]):
        note(problem)
    return say_verdict(record, out)


def _refuse_replacing(run_dir: Path) -> None:
    """The file of the run's own reporter is the proof, and an unreadable one might be: neither is replaced."""
    path = run_dir / RESULTS
    if not path.exists():
        if os.path.lexists(run_dir / MANIFEST):
            raise RecordError(f"{run_dir / MANIFEST}: of a run whose {RESULTS} is gone; move it away to rebuild the run from its journals")
        return
    refuse_changed(run_dir)
    try:
        rebuilt = read_results(path).rebuilt
    except RecordError as error:
        raise RecordError(f"{error}; it is not replaced: move it away to rebuild the run from its journals") from None
    if not rebuilt:
        raise UsageError(f"{path}: the run's own reporter wrote it; it is not replaced: move it away to rebuild the run from its journals")


def _compare(options: argparse.Namespace) -> int:
    """Compare a later run with an earlier one.

    Compare two runs of one cluster, as after a repair. Printed are the settings that differ, the failures that are GONE, NEW, STILL there
    or NOT COMPARED, what passed before and is NOT TESTED AGAIN, and the figures that moved by more than noise (3 times the spread of both,
    and 2 %). A slot is compared with the same slot, even with another GPU in it. Exit code 0: nothing is worse. 1: a failure is new or a
    figure is worse. 6: the runs, some of their failures, or something that passed before cannot be compared. 4: AFTER began before BEFORE.
    """
    before, after = read_run(find_run(options.before)), read_run(find_run(options.after))
    if before.plan.run_id == after.plan.run_id:
        raise UsageError(f"{options.before} and {options.after}: both are of run {before.plan.run_id}")
    first, second = (parse_moment(one.plan.started_at) for one in (before, after))
    if first and second and second < first:  # in this order the failures of the later run would be reported as gone
        began = f"{after.plan.started_at}, and {options.before} at {before.plan.started_at}"
        raise UsageError(f"{options.after} began at {began}: name the earlier run first")
    for folder in options.html.resolve().parents if options.html else ():
        if any((folder / name).exists() for name in (MANIFEST, RESULTS)) or journal_paths(folder):
            raise UsageError(f"{options.html}: in the folder of a run, which a new file would change; name another place")
    comparison = compare(before, after)
    for line in _lines(comparison):
        print(one_line(line))
    if options.html:
        write_atomically(options.html, build_compare_page(comparison))
    return comparison.exit_code


def _lines(comparison: Comparison) -> Iterator[str]:
    """Yield the runs, their differences, bad news, good news, and the result."""
    for word, record in (("BEFORE", comparison.before), ("AFTER", comparison.after)):
        yield f"{word} {record.plan.run_id}: {record.conclusion.line}"
    failures, moved = comparison.failures, comparison.in_direction
    open_ones = (("NOT COMPARED", failures.not_compared), ("NOT TESTED AGAIN", comparison.lost))
    bad = (("NEW", failures.new), ("WORSE", moved("worse")), *open_ones, ("STILL", failures.still))
    good = (("GONE", failures.gone), ("BETTER", moved("better")), ("MOVED", moved("moved")))
    for word, found in (("DIFFERS", comparison.differing), *bad, *good):
        yield from shortened([f"{word} {one}" for one in found], elsewhere=f" {word}")
    yield comparison.line


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
    files = f"{plural(len(manifest.digests), 'file')} as {MANIFEST} names them"
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
