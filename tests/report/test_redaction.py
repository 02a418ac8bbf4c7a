"""A redacted run names no machine, still agrees with itself, and its owner can prove what each stand-in stands for."""

import json
import os
import re
import subprocess

import pytest

from gpu_acceptance.base.model import encode
from gpu_acceptance.folder.files import read_results
from gpu_acceptance.folder.manifest import read_manifest, write_manifest
from gpu_acceptance.inventory.declared import DeclaredNode
from gpu_acceptance.record.figure import make_figure
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import RankRecord
from gpu_acceptance.report.build import write_page
from gpu_acceptance.report.exports import EXPORTS
from gpu_acceptance.report.redaction import Redactor, StandIns, learn_record, learn_texts
from tests.cli.test_verbs import run
from tests.report import sample_rows, samples
from tests.verdict.judged_anew import judged_anew

HOME = "/ho" + "me"


def leave(folder, record, **files):
    """A run folder with this record, its journals and these files, its page, event files in a folder named by a host, and a manifest."""
    host = re.sub(r"[^a-z0-9.-]", "", record.ranks[0].host)
    events = folder / "tensorboard" / host
    events.mkdir(parents=True)
    (events / "events.out.tfevents.1").write_bytes(b"\xff")
    (folder / "logs").mkdir()
    samples.leave(folder, record)
    write_page(folder)
    for name, text in files.items():
        (folder / name.replace("__", "/").replace("_", ".")).write_text(text)
    write_manifest(folder)
    return folder


def redact(capsys, run_dir, out, names):
    return run(capsys, "report", "redact", run_dir, out, f"--names={names}")


def texts_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def learnt(*texts, record=None):
    """Return a redactor that knows the names in these texts."""
    stand_ins = StandIns()
    if record:
        learn_record(record, stand_ins)
    learn_texts(texts, stand_ins)
    return Redactor(stand_ins)


def with_hosts(record, *hosts):
    return judged_anew(record, ranks=[one.model_copy(update={"host": hosts[one.rank % len(hosts)]}) for one in record.ranks])


def test_no_name_of_a_machine_is_left(tmp_path, capsys):
    record = samples.rejected()
    names = {gpu.serial for identity in record.ranks for gpu in identity.gpus}
    names |= {gpu.uuid for identity in record.ranks for gpu in identity.gpus} | {identity.host for identity in record.ranks}
    names |= {identity.inventory["product_serial"] for identity in record.ranks if identity.inventory}
    assert len(names) == 18
    run_dir = leave(tmp_path / "run", record, logs__log="\n".join(sorted(names)))
    code, out, err = redact(capsys, run_dir, tmp_path / "out", tmp_path / "names")
    texts = texts_of(tmp_path / "out")
    digest = read_manifest(tmp_path / "out").sha256
    says = f"REDACTED: {tmp_path}/names says what stands for what, keep it | SHA256SUMS sha256 {digest} | {tmp_path}/out\n"
    assert (code, out, err) == (0, says, "")
    journals = {f"journal/rank-{rank:05d}.jsonl" for rank in range(8)}
    assert set(texts) == {"SHA256SUMS", "logs/log", "redaction.json", "report.html", "results.json", *journals, *EXPORTS}
    kept = {f"node-{node:02d}" for node in range(2)}  # a stand-in for a host may be its name
    assert not [name for name in names - kept for text in texts.values() if name in text]
    assert read_results(tmp_path / "out").conclusion.coverage == record.conclusion.coverage
    assert run(capsys, "report", "verify", f"--sha256={digest}", tmp_path / "out")[0] == 0


def test_paths_of_the_command_are_replaced_in_record_page_and_logs(tmp_path, capsys):
    command = ("/opt/bin/python", "-m", "pytest", "acceptance/", "--report-dir=/scratch/lab-7/runs", "--limits=/mnt/lab-7/site.yaml")
    record = samples.accepted(command=command)
    log = "report: /scratch/lab-7/runs/20261120-072000-a1b2/report.html\noverlay /mnt/lab-7/site.yaml"
    out = tmp_path / "out"
    assert redact(capsys, leave(tmp_path / "run", record, logs__log=log), out, tmp_path / "names")[0] == 0
    replaced = ("python", "-m", "pytest", "acceptance/", "--report-dir=/suite/reports", "--limits=site.yaml")
    assert read_results(out).plan.command == replaced
    assert "--report-dir=/suite/reports --limits=site.yaml" in (out / "report.html").read_text()
    assert (out / "logs" / "log").read_text() == "report: /suite/reports/20261120-072000-a1b2/report.html\noverlay site.yaml"
    assert not [name for name, text in texts_of(out).items() if "lab-7" in text]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("rootdir: /data/lab/suite-2\n/data/lab/suite-2/.venv", "rootdir: /suite\n/suite/.venv"),
        ('File "/data/lab/acceptance/test_hbm.py", line 7', 'File "/suite/acceptance/test_hbm.py", line 7'),
        ("file:///data/lab/src/gpu_acceptance/worker/worker.py /data/lab3/x", "file:///suite/src/gpu_acceptance/worker/worker.py /path-00"),
        ('"/opt/lab/.venv/lib/python3.12/site-packages/torch/a.py"', '"/venv/lib/python3.12/site-packages/torch/a.py"'),
        ("/usr/lib/python3/dist-packages/a.py", "/usr/lib/python3/dist-packages/a.py"),
        ("acceptance/test_hbm.py /usr/local/cuda </td> 2 GB/s", "acceptance/test_hbm.py /usr/local/cuda </td> 2 GB/s"),
        ("/scratch/b/c, /mnt/a.b/c. /scratch/b/c\\n/mnt/x/y", "/path-00, /path-01. /path-00\\n/path-02"),
        (f"alice: /data:{HOME}/alice/lib alice@", "user-00: /data:/path-00 user-00@"),
        (f"{HOME}/torch/a torch", "/path-00 torch"),
        ("198.51.100.7:29400, 198.51.100.9, 198.51.100.7", "192.0.2.1:29400, 192.0.2.2, 192.0.2.1"),
        ("127.0.0.1 0.0.0.0 192.0.2.9 580.159.04 999.1.1.1 1.2.3.4.5", "127.0.0.1 0.0.0.0 192.0.2.9 580.159.04 999.1.1.1 1.2.3.4.5"),
        ("[fe80::a1:b2:c3]:1 2a01:4f8::7:1, ::1", "[2001:db8::1]:1 2001:db8::2, ::1"),
        ("c10d::add std::abc 12:34:56 test_a.py::bad", "c10d::add std::abc 12:34:56 test_a.py::bad"),
        ("B8:ce:f6:03:00:ab 00:00:00:00:00:00", "02:00:00:00:00:00 00:00:00:00:00:00"),
        ("b8ce:f603:00ab:cdef", "0000:0000:0000:0000"),
        ("0xb8cef60300abcdef 0x00007f0123456789", "0x0000000000000000 0x00007f0123456789"),
        ("GPU-DFB87D17-aecb-46c5-818a-953e232b5531", "GPU-00000000-0000-0000-0001-000000000000"),
        ("/dfb87d17-aecb-46c5-818a-953e232b5531_u3/", "/00000000-0000-0000-0001-000000000000_u3/"),
        ("GPU-00000000-0000-0000-0001-000000000002", "GPU-00000000-0000-0000-0001-000000000002"),
    ],
)
def test_names_that_only_the_texts_have_are_found(before, after):
    assert learnt(before).text(before) == after


def test_no_two_addresses_share_a_stand_in():
    text = " ".join(f"172.16.{number // 250}.{number % 250 + 1}" for number in range(1_000))
    assert len(set(learnt(text).text(text).split())) == 1_000


def test_a_host_is_replaced_as_a_word_alone_and_in_full():
    record = with_hosts(samples.rejected(), "vm", "gpu-7.lab.example.com")
    text = "nvml of vm, <b>vm</b>, vm-2, vm.lab.example.com; gpu-7, gpu-7.lab.example.com:29500, gpu-77"
    told = "nvml of node-00, <b>node-00</b>, node-00-2, node-00; node-01, node-01:29500, gpu-77"
    assert learnt(text, record=record).text(text) == told


def with_figure(record, metric, value, field="figures"):
    """The record with one more figure, or counter, of the first rank in the first row."""
    row = record.rows[0]
    figure = make_figure(metric, value, "text" if isinstance(value, str) else "count", judged=field == "counters")
    figures = (*getattr(row.attempts[0].ranks[0], field), figure)
    return judged_anew(record, rows=(sample_rows.with_ranks(row, {0: {field: figures}}), *record.rows[1:]))


def test_nodes_of_a_cluster_and_of_a_partition_are_replaced_and_a_stand_in_may_be_the_name_of_another():
    record = with_hosts(samples.rejected(), "gpu-acceptance-0")
    record = with_figure(record, "kubernetes.node.name", "worker-a")
    record = with_figure(record, "kubernetes.nodes.untested_names", "worker-b (node.kubernetes.io/unschedulable); worker-c; and 3 more")
    text = "kubernetes.io/hostname=worker-a; worker-b (node.kubernetes.io/unschedulable); worker-c; and 3 more; none"
    told = "kubernetes.io/hostname=node-01; node-02 (node.kubernetes.io/unschedulable); node-03; and 3 more; none"
    assert learnt(text, record=with_figure(record, "kubernetes.nodes.untested_names", "none")).text(text) == told
    text = "worker-b IDLE+DRAIN (fan); worker-c DOWN"
    record = with_figure(with_hosts(samples.rejected(), "worker-a"), "slurm.partition.untested_nodes", text)
    assert learnt(record=record).text(f"worker-a; {text}") == "node-00; node-01 IDLE+DRAIN (fan); node-02 DOWN"
    record = with_hosts(samples.rejected(), "node-01", "node-00")
    assert learnt(record=record).text("node-01 node-00") == "node-00 node-01"


def test_colours_and_escapes_hide_no_name():
    record = with_hosts(samples.accepted(), "gpu-host-7")
    for text in ("\x1b[31mgpu-host-7\x1b[0m", r"\x1b[31mgpu-host-7", r"a\ngpu-host-7\tb"):
        assert learnt(record=record).text(text) == text.replace("gpu-host-7", "node-00")


def test_a_hostile_name_is_replaced_in_every_form_that_a_file_gives_it(tmp_path, capsys):
    name = 'x"<b>&\x1b[2J\u202ey'
    record = with_hosts(samples.accepted(declared_nodes=(DeclaredNode(host=name, gpus=8),)), name)
    line = encode(RankRecord(nodeid="a", attempt=1, generation=1, rank=0, outcome=Outcome.FAILED, message=f"on {name}"))
    files = {
        "other_xml": r"<a m='x&quot;&lt;b&gt;&amp;\x1b[2J\u202ey'/>",
        "pytest_html": f"of an earlier version, with {name}",
        "a_jsonl": f"{line}\n{line[:-9]}",
    }
    out = tmp_path / "out"
    assert redact(capsys, leave(tmp_path / "run", record, **files), out, tmp_path / "names")[0] == 0
    assert (out / "other.xml").read_text() == "<a m='node-00'/>"
    assert not (out / "pytest.html").exists()
    assert json.loads((out / "a.jsonl").read_text().splitlines()[0])["message"] == "on node-00"
    assert not [path for path, text in texts_of(out).items() if "u202e" in text or "\u202e" in text]


def test_links_to_outside_are_taken_out(tmp_path, capsys):
    page = 'by <a href="https://example.org/a">another tool</a> <a href="#wrong">What is wrong</a>'
    run_dir = leave(tmp_path / "run", samples.accepted(), other_html=page)
    redact(capsys, run_dir, tmp_path / "out", tmp_path / "names")
    assert (tmp_path / "out" / "other.html").read_text() == 'by another tool <a href="#wrong">What is wrong</a>'


def test_the_same_name_has_the_same_stand_in_in_a_later_run(tmp_path, capsys):
    first = with_hosts(samples.rejected(), "old-1", "old-2")
    later = with_hosts(samples.rejected(), "new-3", "old-2")
    names = tmp_path / "names"
    redact(capsys, leave(tmp_path / "a", first), tmp_path / "out-a", names)
    redact(capsys, leave(tmp_path / "b", later), tmp_path / "out-b", names)
    assert {one.host for one in read_results(tmp_path / "out-a").ranks} == {"node-00", "node-01"}
    assert {one.host for one in read_results(tmp_path / "out-b").ranks} == {"node-01", "node-02"}
    told = json.loads((tmp_path / "out-b" / "redaction.json").read_text())["replaced"]
    assert "node-00" not in {one["stand_in"] for one in told}  # a machine that was not in this run


def test_the_owner_proves_one_name_and_gives_no_other_away(tmp_path, capsys):
    run_dir = leave(tmp_path / "run", samples.rejected())
    redact(capsys, run_dir, tmp_path / "out", tmp_path / "names")
    told = json.loads((tmp_path / "out" / "redaction.json").read_text())
    assert told["manifest_sha256"] == read_manifest(run_dir).sha256
    assert told["results_sha256"] == read_manifest(run_dir).digests["results.json"]
    names = json.loads((tmp_path / "names").read_text())["names"]
    (serial,) = [one for one in names if one["name"] == samples.gpu(5).serial]
    shown = subprocess.run(["sha256sum"], input=serial["salt"] + serial["name"], capture_output=True, text=True, check=True).stdout.split()[
        0
    ]
    assert {"stand_in": serial["stand_in"], "sha256": shown} in told["replaced"]
    assert len({one["salt"] for one in names}) == len(names) > 20
    assert (tmp_path / "names").stat().st_mode & 0o777 == 0o600


def test_a_run_that_was_changed_is_not_redacted(tmp_path, capsys):
    run_dir = leave(tmp_path / "run", samples.accepted())
    (run_dir / "other.xml").touch()
    code, out, _ = redact(capsys, run_dir, tmp_path / "out", tmp_path / "names")
    assert code == 1
    assert out.startswith("EXTRA other.xml\nCHANGED: 1 extra | ")
    assert not (tmp_path / "out").exists()


def test_a_run_without_a_manifest_says_so_in_its_copy(tmp_path, capsys):
    run_dir = leave(tmp_path / "run", samples.accepted())
    (run_dir / "SHA256SUMS").unlink()
    (run_dir / "link").symlink_to("/etc/passwd")
    assert redact(capsys, run_dir, tmp_path / "out", tmp_path / "names")[0] == 0
    assert json.loads((tmp_path / "out" / "redaction.json").read_text())["manifest_sha256"] == ""
    assert not os.path.lexists(tmp_path / "out" / "link")


def test_a_copy_that_cannot_be_made_leaves_nothing(tmp_path, capsys):
    run_dir = leave(
        tmp_path / "run", with_figure(with_hosts(samples.accepted(), "counters"), "counters.xid", 1, "counters")
    )  # a subject with rules of its own: replaced
    code, _, err = redact(capsys, run_dir, tmp_path / "out", tmp_path / "names")
    assert (code, err.count("\n")) == (3, 1)
    assert "among the counters of a record" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["names", "run"]


@pytest.mark.parametrize("hosts", [("rank", "node"), ("passed", "job"), ("held", "gpu"), ("hbm", "wrong"), ("all_reduce", "0")])
def test_hosts_that_are_named_like_words_of_the_format_are_replaced_and_the_record_stays_one(tmp_path, capsys, hosts):
    record = with_hosts(samples.rejected(), *hosts)
    identity = record.ranks[0]
    line = encode(RankRecord(nodeid="a", attempt=1, generation=1, rank=0, outcome=Outcome.PASSED, message=f"on {hosts[0]}, {hosts[1]}-2"))
    run_dir = leave(tmp_path / "run", record, a_jsonl=f"{encode(identity)}\n{line}")
    assert redact(capsys, run_dir, tmp_path / "out", tmp_path / "names")[0] == 0
    told = read_results(tmp_path / "out")
    assert {one.host for one in told.ranks} == {"node-00", "node-01"}
    assert [row.outcome for row in told.rows] == [row.outcome for row in record.rows]
    limits, known = (sorted((one.scope, one.status, one.value) for one in run.conclusion.limits) for run in (told, record))
    assert limits == known
    first, second = map(json.loads, (tmp_path / "out" / "a.jsonl").read_text().splitlines())
    assert (first["kind"], first["host"]) == ("identity", "node-00")
    assert (second["kind"], second["outcome"], second["message"]) == ("rank", "passed", "on node-00, node-01-2")
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    text = written["conclusion"]["line"] + "".join(row["message"] for row in written["rows"])
    assert not re.search(rf"(?<![^\W_])({hosts[0]}|{hosts[1]})(?![^\W_])", re.sub(r"node-0[01]", "", text))
    assert " on rank 5 (node-01, GPU 5, serial 1650000" in told.rows[1].message  # its words are made anew when it is read
    assert run(capsys, "report", "verify", tmp_path / "out")[0] == 0


@pytest.mark.parametrize(
    ("out", "names", "line"),
    [
        (".", "names", "gpu-acceptance: {tmp}: is there already; name a folder that is not there yet"),
        ("out", "run/names", "gpu-acceptance: {tmp}/run/names and {tmp}/out: neither may be in a folder that is given away or is a run"),
        ("run/out", "names", "gpu-acceptance: {tmp}/names and {tmp}/run/out: neither may be in a folder that is given away or is a run"),
        ("out", "out/names", "gpu-acceptance report redact: --names: {tmp}/out/names: no such folder: {tmp}/out"),
    ],
    ids=["out exists", "names in the run", "out in the run", "no folder for names"],
)
def test_a_place_where_names_would_be_given_away_or_files_replaced_is_refused(tmp_path, capsys, out, names, line):
    run_dir = leave(tmp_path / "run", samples.accepted())
    assert redact(capsys, run_dir, tmp_path / out, tmp_path / names) == (4, "", f"{line.format(tmp=tmp_path)}\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON: EOF while parsing a value at line 1 column 0"),
        ('{"schema_version":2,"names":[]}', "schema_version is 2; this version reads 1"),
        ('{"names":[{"kind":"host","name":"a","stand_in":"b","salt":"c"}]}', "names.0.salt: String should match pattern"),
    ],
)
def test_a_broken_file_of_names_is_not_replaced(tmp_path, capsys, text, message):
    run_dir = leave(tmp_path / "run", samples.accepted())
    (tmp_path / "names").write_text(text)
    code, _, err = redact(capsys, run_dir, tmp_path / "out", tmp_path / "names")
    assert code == 3
    assert err.startswith(f"gpu-acceptance: {tmp_path}/names: {message}")
    assert (tmp_path / "names").read_text() == text
    assert not (tmp_path / "out").exists()
