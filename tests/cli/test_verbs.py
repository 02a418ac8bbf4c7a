"""The command line: one line, the run's own exit code, never the verdict of another run."""

import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpu_acceptance import __version__
from gpu_acceptance.cli import report
from gpu_acceptance.cli import verbs as cli
from gpu_acceptance.cli.verbs import main
from gpu_acceptance.folder.files import write_results
from gpu_acceptance.folder.manifest import write_manifest
from gpu_acceptance.report.remedies import table
from gpu_acceptance.thresholds.profile import profile_names, shipped_dir
from tests.report import samples
from tests.run.test_suite import ROOT

VERBS = (
    "run, drill, verdict, report, init, inventory, snapshot, health, watch, pods, meet, remedy, explain, limits, fabric, judge, profiles"
)
OF_REPORT = "build, merge, compare, verify, sign, redact"
NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def leave_run(reports, run_id=samples.RUN_ID, sample=samples.accepted, **conclusion):
    """A run folder with its results, journals and manifest, the conclusion changed where asked."""
    record = sample(run_id=run_id)
    run_dir = samples.leave(reports / run_id, record)
    if conclusion:
        write_results(run_dir, record.model_copy(update={"conclusion": record.conclusion.model_copy(update=conclusion)}))
    write_manifest(run_dir)
    return run_dir


def without_age(line):
    """The line without how long ago the run ended, which grows between two calls."""
    text, found = re.subn(r" \| ended [0-9.]+ s ago", "", line)
    assert found == 1
    return text


def run(capsys, *arguments):
    """Exit code, standard output, standard error."""
    try:
        code = cli.main([str(argument) for argument in arguments])
    except SystemExit as exit_:
        code = exit_.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_profiles_lists_what_is_shipped(capsys):
    code, out, _ = run(capsys, "profiles")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == profile_names(shipped_dir())
    assert next(line for line in out.splitlines() if line.startswith("h200-sxm ")).endswith("  NVIDIA H200")


def test_a_broken_profile_is_named(tmp_path, capsys, monkeypatch):
    (tmp_path / "base.yaml").write_text("limits: [")
    monkeypatch.setattr(cli, "shipped_dir", lambda: tmp_path)
    code, _, err = run(capsys, "profiles")
    assert (code, err.count("\n")) == (4, 1)
    assert "base.yaml" in err


LABEL = "a label with its value, such as batch.kubernetes.io/job-name=a-job"
TIME = "more than 0 seconds, as 90, 90s, 15m or 2h"
NOT_ALLOWED = {  # an option -> what is allowed, and texts that are not
    "watch --interval": ("0.1 to 3600 seconds", ("0", "nan", "3601", "1e3")),
    "watch --count": ("1 to 999999999", ("0", "-1", "x")),
    "health --expect-gpus": ("1 to 9999", ("0", "eight", "-1", "1e1", "99999")),
    "pods --labels": (LABEL, ("a.io/uid=", "a=b,c=d", "a=b&fieldSelector=x")),
    "pods --number": ("1 to 99999", ("0", "1:4")),
    "pods --timeout": (TIME, ("soon", "0")),
    "report verify --sha256": ("64 hexadecimal digits", ("", "abc", "0" * 63, "G" * 64)),
}


@pytest.mark.parametrize(("option", "text"), [(option, text) for option, (_, texts) in NOT_ALLOWED.items() for text in texts])
def test_a_value_that_is_not_allowed(capsys, option, text):
    *verb, name = option.split()
    said = f"gpu-acceptance {' '.join(verb)}: {name}: {text!r} is not allowed; allowed: {NOT_ALLOWED[option][0]}\n"
    assert run(capsys, *verb, f"{name}={text}") == (4, "", said)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), f"gpu-acceptance: name a verb; known: {VERBS}"),
        (("verdct",), f"gpu-acceptance: unknown verb 'verdct'; known: {VERBS}; did you mean 'verdict'?"),
        (("juge",), f"gpu-acceptance: unknown verb 'juge'; known: {VERBS}; did you mean 'judge'?"),
        (("report",), f"gpu-acceptance report: name a verb; known: {OF_REPORT}"),
        (("report", "bild"), f"gpu-acceptance report: unknown verb 'bild'; known: {OF_REPORT}; did you mean 'build'?"),
        (("report", "merge", "out"), "gpu-acceptance report merge: the following arguments are required: DIR"),
        (
            ("report", "build", "--tensorbord"),
            "gpu-acceptance report build: --tensorbord: unknown option; known: --help, --from-journals, --tensorboard; "
            "did you mean '--tensorboard'?",
        ),
        (("report", "merge", "out", "dir\nx"), "gpu-acceptance report merge: DIR: dir\\nx: no such folder"),
        (("verdict", "a", "b"), "gpu-acceptance verdict: b: one argument too many; --help shows those that there are"),
        (("verdict", "--force"), "gpu-acceptance verdict: --force: unknown option; known: --help"),
        (
            ("health", "x", "--expect-gpu=8"),
            "gpu-acceptance health: --expect-gpu=8: unknown option; known: --help, --hardware, --limits, --allow-busy, --expect-gpus; "
            "did you mean '--expect-gpus'?",
        ),
    ],
)
def test_usage_errors_are_one_line_and_end_with_4(capsys, arguments, message):
    assert run(capsys, *arguments) == (4, "", f"{message}\n")


PATHS = {  # a verb -> the arguments before and after a path
    **dict.fromkeys(("verdict", "inventory", "health", "report build", "report verify"), ((), ())),
    "report merge": (("out",), ()),
    "report compare": ((), (".",)),
    "report sign": (("--key=key",), ()),
    "report redact": (("--names=names",), ("out",)),
}


@pytest.mark.parametrize("verb", PATHS)
def test_a_path_that_is_not_there_is_a_usage_error_of_every_verb(tmp_path, capsys, monkeypatch, verb):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key").touch()
    before, after = PATHS[verb]
    code, out, err = run(capsys, *verb.split(), *before, "nowhere", *after)
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert "nowhere: no such f" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("report", "verify", "--allowed-signers=nowhere", "."), "report verify: --allowed-signers: nowhere: no such file"),
        (("report", "verify", "--allowed-signers=.", "."), "report verify: --allowed-signers: .: is a folder; allowed: a file"),
        (("report", "sign", "--key=nowhere", "."), "report sign: --key: nowhere: no such file"),
        (("report", "redact", "--names=no/names", ".", "out"), "report redact: --names: no/names: no such folder: no"),
        (("report", "compare", "--html=no/page.html", ".", "."), "report compare: --html: no/page.html: no such folder: no"),
        (("snapshot", "no/node.json"), "snapshot: FILE: no/node.json: no such folder: no"),
        (("snapshot", "/dev/null"), "snapshot: FILE: /dev/null: not a regular file, so it is not replaced"),
    ],
)
def test_a_file_that_an_option_names_is_looked_for_first(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, *arguments) == (4, "", f"gpu-acceptance {message}\n")


def test_half_of_a_key_is_enough_where_the_other_is_with_an_agent(tmp_path):
    (tmp_path / "key.pub").touch()
    assert report._key(str(tmp_path / "key")) == tmp_path / "key"


HELP = [("--help",), ("report", "-h"), ("report", "merge", "-h"), *((verb, "-h") for verb in VERBS.split(", "))]


@pytest.mark.parametrize("arguments", HELP)
def test_every_verb_has_help(capsys, arguments):
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert out.startswith("usage: gpu-acceptance")


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"gpu-acceptance {__version__}\n", "")


def test_the_module_runs_like_the_command(tmp_path):
    leave_run(tmp_path, sample=samples.incomplete)
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])}
    command = [sys.executable, "-m", "gpu_acceptance", "verdict", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=180)
    assert (done.returncode, done.stderr) == (6, "")
    assert done.stdout.startswith(f"{samples.incomplete().conclusion.line} | ")


@pytest.mark.parametrize("arguments", [["remedy", "stuck"], ["limits", "h200-sxm"], ["verdict", "RUN"]])
def test_a_reader_that_has_read_enough_is_no_error_and_no_verdict(tmp_path, arguments):
    """As `| head`: nothing is said of it, and the exit code is none that a verdict has."""
    leave_run(tmp_path, sample=samples.accepted)
    words = [str(tmp_path) if word == "RUN" else word for word in arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])}
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "gpu_acceptance", *words], stdout=writer, stderr=subprocess.PIPE, text=True, env=environment, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_where_the_output_finds_no_room_the_error_says_so():
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])}
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "gpu_acceptance", "remedy", "stuck"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (3, "gpu-acceptance: No space left on device\n")


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}


def test_the_copy_holds_the_suite_its_limits_and_a_readme(tmp_path, capsys):
    folder = tmp_path / "new" / "mine"
    assert main(["init", str(folder)]) == 0
    copied = files_of(folder)
    readme = copied.pop("README.md").decode()
    wanted = {name: (ROOT / name).read_bytes() for name in ("conftest.py", "pytest.ini")}
    for part in ("acceptance", "fixtures", "thresholds"):
        wanted |= {f"{part}/{name}": content for name, content in files_of(ROOT / part).items()}
    assert copied == wanted
    assert readme.startswith("# An acceptance suite of your own\n\nA copy of the suite of gpu-acceptance 0.2.0, ")
    assert capsys.readouterr().out.startswith(f"{folder}: the suite of gpu-acceptance 0.2.0; README.md there says how to run it")


def test_a_folder_that_is_there_and_empty_is_taken(tmp_path):
    assert main(["init", str(tmp_path)]) == 0
    assert (tmp_path / "conftest.py").is_file()


@pytest.mark.parametrize(("name", "what"), [("full", "is not empty"), ("file", "is a file")])
def test_existing_files_stay(tmp_path, capsys, name, what):
    place = tmp_path / name
    (tmp_path / "full" / "mine").mkdir(parents=True)
    (tmp_path / "file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    assert main(["init", str(place)]) == 4
    told = f"gpu-acceptance: {place} {what}; allowed: a folder that does not exist yet, or is empty\n"
    assert capsys.readouterr().err == told
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_cannot_be_made_is_named(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["init", str(tmp_path / "file" / "below")]) == 3
    assert capsys.readouterr().err == f"gpu-acceptance: {tmp_path / 'file' / 'below' / 'acceptance'}: Not a directory\n"


def test_without_a_kind_all_are_listed_one_a_line(capsys):
    assert main(["remedy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(table().remedies)
    assert any(line.split(maxsplit=2)[1:] == ["reset", "a repair of GPU memory waits for a reset"] for line in lines)


@pytest.mark.parametrize("kind", table().remedies)
def test_a_kind_is_printed_whole(capsys, kind):
    assert main(["remedy", kind]) == 0
    out, remedy = capsys.readouterr().out, table().remedies[kind]
    severity = table().severities[remedy.severity]
    assert out.startswith(f"{kind}: {remedy.title}\n")
    for part in (remedy.means, remedy.do, *remedy.checks, *severity.commands.values()):
        assert part in out


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("repair_pendin", "no kind of failure 'repair_pendin'; did you mean 'repair_pending'? (gpu-acceptance remedy lists them)"),
        ("zzzz", "no kind of failure 'zzzz' (gpu-acceptance remedy lists them)"),
        ("\x1b[31m\n", "no kind of failure '\\\\x1b[31m\\\\n' (gpu-acceptance remedy lists them)"),
    ],
)
def test_a_kind_that_is_not_in_the_table_is_a_usage_error(capsys, kind, said):
    assert main(["remedy", kind]) == 4
    assert capsys.readouterr().err == f"gpu-acceptance: {said}\n"
