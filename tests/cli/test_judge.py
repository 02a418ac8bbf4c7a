"""`gpu-acceptance judge`: figures that others measured, public runs among them, against the shipped limits."""

import csv
import itertools
import re
from pathlib import Path

import pytest
import yaml

from gpu_acceptance.cli.verbs import main
from tests.judging import shipped_profile

CASES = Path(__file__).parents[1] / "cases" / "public_runs"
RUNS = yaml.safe_load((CASES / "runs.yaml").read_text(encoding="utf-8"))
PAIR = ("--hardware=h100-sxm", "--fabric=8x400-ib", "--nodes=2")
NODE = ("--hardware=h200-sxm", "--nodes=1", "--gpus-per-node=8")
RESULTS = ("would hold", "would miss", "cannot be true", "no limit")
HEAD = "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong"
STARTS = "# Collective test starting: all_reduce_perf"


def judged(capsys, path, *options):
    """Exit code, standard output, standard error."""
    try:
        code = main(["judge", str(path), *options])
    except SystemExit as exit_:
        code = exit_.code
    told = capsys.readouterr()
    assert code != 0, "what others measured is never an acceptance"
    return code, told.out, told.err


def results(out):
    """The results of the table, in the order of its rows."""
    rows = itertools.takewhile(lambda line: line.startswith("  "), out.splitlines()[2:])
    return [next(result for result in RESULTS if row.endswith(f"  {result}")) for row in rows]


def table_of(path, *rows, columns=("metric", "size", "value", "unit")):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def printed(path, rows, *before, redop="sum"):
    """Write what nccl-tests prints: size, bus bandwidth out of place and in place, wrong elements."""
    lines = [
        f"{size:>12} {size // 4:>13} float {redop} -1 1.0 1.0 {out} {wrong} 1.0 1.0 {inside} {wrong}" for size, out, inside, wrong in rows
    ]
    path.write_text("\n".join([*before, HEAD, *lines, "# Out of bounds values : 0 OK", ""]), encoding="utf-8")
    return path


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["run"])
def test_a_public_run_gets_the_right_verdict(run, tmp_path, capsys):
    path = table_of(tmp_path / "figures.csv", *(figure[:4] for figure in run["figures"]))
    code, out, _ = judged(capsys, path, *(f"--{name}={value}" for name, value in run["judge"].items()))
    expected = [figure[4] for figure in run["figures"]]
    assert results(out) == expected, out
    assert code == (1 if "would miss" in expected else 5 if set(expected) == {"would hold"} else 6)
    assert out.splitlines()[-1].startswith("judged from figures of others: ")
    assert "ACCEPTED" not in out


def test_the_public_runs_are_good_and_bad_ones_and_say_where_they_come_from():
    bad = [run for run in RUNS if run.get("sound") is False]
    good = [run for run in RUNS if run.get("sound")]
    assert min(len(bad), len(good)) >= 8
    assert all({figure[4] for figure in run["figures"]} & {"would miss", "cannot be true"} for run in bad)
    assert not [run["run"] for run in good if {figure[4] for figure in run["figures"]} - {"would hold", "no limit"}]
    assert sum(run["verified"] for run in RUNS) >= 15
    assert all(run["source"] for run in RUNS)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (("all_reduce", "1GiB", 435, "GB/s"), "all_reduce, 1 GiB: a message of 4 GiB is not slower, and needs 408 GB/s"),
        (("all_reduce", "256MiB", 270, "GB/s"), "all_reduce, 256 MiB: a message of 128 MiB is not faster, and needs 274 GB/s"),
        (("all_reduce", "64MiB", 100, "GB/s"), "a message of 128 MiB takes no less time, so it has at most 200 GB/s, and needs 274 GB/s"),
        (("send_recv", "1GiB", 13.1, "GB/s"), "a message of 8 GiB needs 43 GB/s, more than twice as much; from 1 GB on no public curve"),
        (("all_reduce", "16GB", 487, "GB/s"), "nothing follows for the nearest that is judged: a message of 8 GiB needs 408 GB/s"),
        (("all_reduce", "unknown", 365, "GB/s"), "all_reduce: a rate depends on the size of the message, which is not known"),
        (("all_reduce", "16GB", 837, "GB/s"), "all_reduce, 16 GB: more than this hardware can carry this way: the bytes went another way"),
        (("ib_write_bw", "", 392, "Gbit/s"), "ib_write_bw: no validation measures it: one link can be fast while collectives are slow"),
        (
            ("all_reduce", "4GiB", 231, "GB/s"),
            "nccl.all_reduce.busbw_internode = 231 GB/s, need >= 408 GB/s [fabric-base-8x400.yaml: published",
        ),
        (
            ("nccl.transport.internode", "", "Socket", "text"),
            "nccl.transport.internode = Socket, need == IB [fabric-8x400-ib.yaml: policy: ",
        ),
        (("broadcast", "8GiB", 300, "GB/s"), "not applicable: no reading of this collective between nodes has a source here"),
        (("nccl.all_reduce.busbw", "4GiB", 300, "GB/s"), "no limit on 2 nodes; h100-sxm.yaml has one for one node"),
    ],
)
def test_the_reason_is_told(row, reason, tmp_path, capsys):
    _, out, _ = judged(capsys, table_of(tmp_path / "f.csv", row), *PAIR)
    assert reason in " ".join(out.split())


def test_the_table_names_limit_source_and_result(tmp_path, capsys):
    rows = [("all_reduce", "1GiB", 435, "GB/s"), ("nccl.all_reduce.busbw_internode", "4GiB", 466, "GB/s"), ("reduce", "1GiB", 3, "GB/s")]
    code, out, err = judged(capsys, table_of(tmp_path / "f.csv", *rows), *PAIR)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert (code, err) == (6, "")
    assert lines[0] == f"h100-sxm, fabric 8x400-ib, 2 nodes of 8 GPUs | {tmp_path / 'f.csv'}"
    assert lines[1:5] == [
        "figure value limit source result",
        "all_reduce, 1 GiB 435 GB/s >= 408 GB/s at 4 GiB published would hold",
        "nccl.all_reduce.busbw_internode, 4 GiB 466 GB/s >= 408 GB/s published would hold",
        "reduce, 1 GiB 3 GB/s - - no limit",
    ]
    assert lines[-1] == "judged from figures of others: 1 without a limit, 2 would hold; nothing was run, so nothing is accepted"


def test_a_reading_just_below_and_at_the_floor(tmp_path, capsys):
    """The judge of a run decides, with the profile's own number."""
    floor = shipped_profile("h100-sxm", "8x400-ib").limits["nccl.all_reduce.busbw_internode"].at_least.at(2)
    for rate, result in ((floor, "would hold"), (floor - 0.01, "would miss")):
        assert results(judged(capsys, table_of(tmp_path / "f.csv", ("all_reduce", "4GiB", rate, "GB/s")), *PAIR)[1]) == [result]


def test_no_rate_is_interpolated_between_judged_sizes(tmp_path, capsys):
    """128 MiB needs 274 and 4 GiB 408: what lies between at 1 GiB has no limit, and any size above or below it decides alone."""
    found = [
        results(judged(capsys, table_of(tmp_path / "f.csv", ("all_reduce", "1GiB", rate, "GB/s")), *PAIR)[1])[0]
        for rate in (273, 275, 407, 408)
    ]
    assert found == ["would miss", "no limit", "no limit", "would hold"]


def test_small_messages_say_nothing(tmp_path, capsys):
    """nccl-tests prints 0.00 for a message of some bytes, on any machine."""
    assert results(judged(capsys, table_of(tmp_path / "f.csv", ("all_reduce", "8B", 0, "GB/s")), *PAIR)[1]) == ["no limit"]


def test_one_gpu_of_several_is_named_and_held_against_its_peers(tmp_path, capsys):
    columns = ("metric", "value", "unit", "node", "gpu")
    rows = [("hbm.copy.bandwidth", 4100 if gpu == 5 else 4290, "GB/s", 0, gpu) for gpu in range(8)]
    code, out, _ = judged(capsys, table_of(tmp_path / "f.csv", *rows, columns=columns), *NODE)
    text = " ".join(out.split())
    assert (code, "4100 GB/s, worst of 8 <= 3 % below its peers measured would miss" in text) == (1, True)
    assert "on rank 5 (node 0, GPU 5)" in text
    assert "no figure" not in text
    two = table_of(tmp_path / "two.csv", *rows[4:6], columns=columns)
    assert judged(capsys, two, *NODE)[0] == 5  # two cannot tell which is odd; both are above the floor


def test_nodes_of_another_size_than_the_fabric_is_for_have_no_floor_of_a_rate(tmp_path, capsys):
    """Half of the GPUs may have half of the cards. What NCCL goes over does not depend on it."""
    rows = [("all_reduce", "4GiB", 200, "GB/s"), ("nccl.transport.internode", "", "Socket", "text")]
    _, out, _ = judged(capsys, table_of(tmp_path / "f.csv", *rows), *PAIR, "--gpus-per-node=4")
    assert results(out) == ["no limit", "would miss"]
    assert "all_reduce, 4 GiB: fabric 8x400-ib has limits for nodes of 8 GPUs, and these have 4 GPUs" in out


def test_on_one_node_a_fabric_asks_for_nothing_as_in_a_run(tmp_path, capsys):
    path = table_of(tmp_path / "f.csv", ("infiniband.ports.rate", "", 200, "Gbit/s"))
    assert results(judged(capsys, path, *PAIR)[1]) == ["would miss"]
    assert results(judged(capsys, path, *PAIR, "--nodes=1")[1]) == ["no limit"]


def test_a_figure_below_what_is_possible_cannot_be_true(tmp_path, capsys):
    code, out, _ = judged(capsys, table_of(tmp_path / "f.csv", ("gpu_health.temperature.margin", "", -500, "C")), *NODE)
    assert (code, results(out)) == (6, ["cannot be true"])


def test_an_output_of_nccl_tests(tmp_path, capsys):
    """The slower of both columns counts, other sizes are left out, and wrong elements are a figure of their own."""
    rows = [(8, "0.00", "0.00", 0), (2**27, 289.16, 287.01, 0), (2**30, 436.95, 440.96, 0), (2**32, 465.87, 464.33, 0)]
    path = printed(tmp_path / "nccl.txt", rows, STARTS)
    code, out, _ = judged(capsys, path, *PAIR)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert code == 5
    assert lines[2:5] == [
        "nccl.all_reduce.busbw_internode_medium, 128 MiB 287.01 GB/s >= 274 GB/s published would hold",
        "nccl.all_reduce.busbw_internode, 4 GiB 464.33 GB/s >= 408 GB/s published would hold",
        "nccl_sizes.all_reduce.wrong 0 elements <= 0 elements policy would hold",
    ]
    assert lines[5] == "2 sizes left out, from which nothing follows"


@pytest.mark.parametrize("tag", ["0: ", "[1,0]<stdout>:", "  3: "])
def test_lines_that_a_launcher_tagged(tag, tmp_path, capsys):
    path = printed(tmp_path / "nccl.txt", [(2**32, 465, 464, 0)])
    path.write_text("".join(f"{tag}{line}\n" for line in path.read_text().splitlines()))
    code, out, _ = judged(capsys, path, *PAIR, "--collective=all_reduce")
    assert (code, results(out)) == (5, ["would hold", "would hold"])


def test_wrong_elements_are_a_miss_at_any_size(tmp_path, capsys):
    path = printed(tmp_path / "nccl.txt", [(2**20, 20, 20, 3), (2**32, 465, 464, 0)], STARTS)
    code, out, _ = judged(capsys, path, *PAIR)
    assert (code, results(out)) == (1, ["would hold", "would miss"])
    assert "nccl_sizes.all_reduce.wrong = 6 elements, need <= 0 elements" in out


def test_a_million_wrong_elements_are_a_miss_in_the_form_that_a_float_has(tmp_path, capsys):
    path = printed(tmp_path / "nccl.txt", [(2**32, 465, 464, "1.34218e+08")], STARTS)
    code, out, _ = judged(capsys, path, *PAIR)
    assert (code, results(out)) == (1, ["would hold", "would miss"])
    assert "nccl_sizes.all_reduce.wrong = 268436000 elements, need <= 0 elements" in out


@pytest.mark.parametrize(("column", "cell"), [("#wrong", "N/A"), ("error", "1e+00")])
def test_the_summary_of_an_output_can_tell_wrong_elements_alone(column, cell, tmp_path, capsys):
    path = printed(tmp_path / "nccl.txt", [(2**32, 465, 464, cell)], STARTS)
    text = path.read_text(encoding="utf-8").replace("#wrong", column)
    path.write_text(text.replace("values : 0 OK", "values : 3 FAILED"), encoding="utf-8")
    code, out, _ = judged(capsys, path, *PAIR)
    assert (code, results(out)) == (1, ["would hold", "would miss"])
    assert "nccl_sizes.all_reduce.wrong = 3 elements, need <= 0 elements" in out


def test_each_output_of_a_file_is_of_the_job(tmp_path, capsys):
    """The list of ranks of a second output must not hide that the first is of one node."""
    ranks = [f"#  Rank {rank:2} Group  0 Pid 1 on node-{rank // 8} device  {rank % 8} [0x0f] NVIDIA H100" for rank in range(16)]
    alone = printed(tmp_path / "one.txt", [(2**32, 360, 360, 0)], "# Collective test starting: all_gather_perf", *ranks[:8], redop="none")
    both = printed(tmp_path / "two.txt", [(2**32, 465, 464, 0)], STARTS, *ranks)
    (tmp_path / "nccl.txt").write_text(alone.read_text(encoding="utf-8") + both.read_text(encoding="utf-8"), encoding="utf-8")
    code, _, err = judged(capsys, tmp_path / "nccl.txt", *PAIR)
    assert code == 4
    assert "this output has 8 ranks on 1 host, and --nodes=2 --gpus-per-node=8 is another job" in err


def test_an_output_behind_mpich_has_its_tag_in_the_middle_of_rows(tmp_path, capsys):
    """The form of NVIDIA/nccl#1453."""
    row = "[0]   4294967296    1073741824     float     sum      -1[0]   17250.1  248.98  466.84      0[0]   17343  247.64  464.33      0"
    (tmp_path / "nccl.txt").write_text("\n".join(f"[0] {line}" for line in (STARTS, HEAD)) + f"\n{row}\n", encoding="utf-8")
    code, out, _ = judged(capsys, tmp_path / "nccl.txt", *PAIR)
    assert (code, results(out)) == (5, ["would hold", "would hold"])
    assert "464.33 GB/s" in out


def test_an_output_without_a_size_that_is_judged_proves_nothing(tmp_path, capsys):
    code, out, _ = judged(capsys, printed(tmp_path / "nccl.txt", [(2**20, 20, 20, 0), (2**21, 40, 40, 0)], STARTS), *PAIR)
    assert (code, results(out)) == (6, ["no limit", "would hold"])


def test_older_outputs_have_an_error_in_place_of_wrong_elements_and_no_root(tmp_path, capsys):
    head = "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error"
    row = "  4294967296    1073741824   float     sum    17286  248.46  465.87  4e-07    17343  247.64  464.33  4e-07"
    (tmp_path / "old.txt").write_text(
        f"{head}\n           0             0   float     sum     1.0    0.00    0.00  0e+00     1.0    0.00    0.00  0e+00\n{row}\n"
    )
    code, out, _ = judged(capsys, tmp_path / "old.txt", *PAIR, "--collective=all_reduce")
    assert (code, results(out)) == (5, ["would hold"])


ROW = ("all_reduce", "4GiB", 466, "GB/s")
NO_TABLE = "the first line names columns: metric, value, unit, and perhaps size, node, gpu"
ODD = {  # a file that is wrong -> its content, and what is said of it
    "empty": ("", f"line 1: no column metric, value, unit; {NO_TABLE}"),
    "a column misspelt": ("metric,size,valu,unit\n", f"line 1: unknown column 'valu'; {NO_TABLE}; did you mean 'value'?"),
    "a column twice": ("metric,value,unit,unit\n", f"line 1: a column is there twice; {NO_TABLE}"),
    "no figure": ("metric,value,unit\n", "0 figures; allowed: 1 to 10000"),
    "too few cells": ("metric,value,unit\nall_reduce,3\n", "line 2: 2 cells; allowed: 3, as many as there are columns"),
    "a metric misspelt": (
        "metric,size,value,unit\nall_reduse,4GiB,3,GB/s\n",
        "line 2: unknown metric 'all_reduse'; .*; did you mean 'all_reduce'\\?",
    ),
    "control characters": (
        "metric,size,value,unit\n\x1b[31m,4GiB,3,GB/s\n",
        r"line 2: unknown metric '\\x1b\[31m'; allowed: a metric, or .*",
    ),
    "another unit": (
        "metric,size,value,unit\nall_reduce,4GiB,392,Gbit/s\n",
        r"line 2: all_reduce: unit 'Gbit/s'; allowed: GB/s \(nothing is converted\)",
    ),
    "NaN": ("metric,size,value,unit\nall_reduce,4GiB,nan,GB/s\n", "line 2: value 'nan'; allowed: a finite number from 0"),
    "infinity": ("metric,size,value,unit\nall_reduce,4GiB,1e999,GB/s\n", "line 2: value '1e999'; allowed: a finite number from 0"),
    "a rate below 0": ("metric,size,value,unit\nall_reduce,4GiB,-3,GB/s\n", "line 2: value '-3'; allowed: a finite number from 0"),
    "a text for a number": (
        'metric,size,value,unit\nall_reduce,4GiB,"1,234",GB/s\n',
        "line 2: value '1,234'; allowed: a finite number from 0",
    ),
    "no size": (
        "metric,value,unit\nall_reduce,3,GB/s\n",
        "line 2: all_reduce: size ''; allowed: bytes, or .* as in 4GiB; unknown where nobody said it",
    ),
    "a size of two meanings": ("metric,size,value,unit\nall_reduce,4G,3,GB/s\n", "line 2: all_reduce: size '4G'; allowed: .*"),
    "a size of no message": (
        "metric,size,value,unit\nhbm.copy.bandwidth,4GiB,3,GB/s\n",
        "line 2: hbm.copy.bandwidth: size '4GiB'; allowed: none, .*",
    ),
    "twice": ("metric,size,value,unit\nall_reduce,4GiB,3,GB/s\nall_reduce,4294967296,3,GB/s\n", "line 3: the same figure is on line 2; .*"),
    "a GPU too many": ("metric,value,unit,gpu\nhbm.copy.bandwidth,3,GB/s,8\n", "line 2: gpu '8'; allowed: 0 to 7, or nothing"),
    "an open quote": ('metric,value,unit\n"all_reduce,3,GB/s\n', "line 2: no CSV: unexpected end of data"),
    "text that does not print": (
        "metric,value,unit\nnccl.transport.internode,I\x07B,text\n",
        r"line 2: value 'I\\x07B'; allowed: a text of 1 to 200 .*",
    ),
    "not UTF-8": (b"metric,value,unit\n\xff", "byte 18 is not UTF-8"),
    "10 MB": (b"a" * 10_000_000, "longer than 4194304 bytes; .*"),
    "torn": (f"{STARTS}\n{HEAD}\n4294967296 1073741824 float sum -1 366.5 1.43\n", "line 3: 7 cells below 13 columns: .*"),
    "no number of a rate": (
        f"{STARTS}\n{HEAD}\n4294967296 1 float sum -1 1 1 nan 0 1 1 2 0\n",
        "line 3: busbw 'nan, 2'; allowed: finite numbers from 0",
    ),
    "no number of wrong elements": (
        f"{STARTS}\n{HEAD}\n4294967296 1 float sum -1 1 1 2 -1 1 1 2 0\n",
        "line 3: #wrong '-1, 0'; allowed: finite numbers from 0, or N/A",
    ),
    "no collective": (
        f"{HEAD}\n4294967296 1 float sum -1 1 1 2 0 1 1 2 0\n",
        "line 2: which collective.* add --collective=NAME, one of .*",
    ),
    "another program": (
        f"# Collective test starting: gather_perf\n{HEAD}\n",
        "line 1: gather_perf is of no collective that is judged; known: .*",
    ),
    "groups of ranks": (
        f"#  Rank  0 Group  1 Pid 1 on node-a device  0 [0x0f] NVIDIA H100\n{HEAD}\n",
        r"this output has groups of ranks \(NCCL_TESTS_SPLIT\), and its rates are of a part of the job",
    ),
    "another job": (
        f"#  Rank  0 Group  0 Pid 1 on node-a device  0 [0x0f] NVIDIA H100\n{HEAD}\n",
        "this output has 1 rank on 1 host, and --nodes=2 --gpus-per-node=8 is another job",
    ),
}


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_file_is_a_usage_error_of_one_line(odd, tmp_path, capsys):
    content, said = ODD[odd]
    (tmp_path / "odd").write_bytes(content if isinstance(content, bytes) else content.encode())
    code, out, err = judged(capsys, tmp_path / "odd", *PAIR)
    literal = said if re.search(r"\.\*|\\", said) else re.escape(said)
    assert (code, out) == (4, "")
    assert re.fullmatch(rf"gpu-acceptance: {re.escape(str(tmp_path / 'odd'))}: {literal}\n", err), err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--hardware=h100", "--nodes=1"), "no profile 'h100'; profiles: .*; did you mean 'h100-(pcie|sxm|nvl)'"),
        (("--hardware=h100-sxm", "--nodes=2", "--fabric=8x400"), "no fabric '8x400'; fabrics for h100-sxm: .*; did you mean '8x400-ib'"),
        (
            ("--hardware=h100-sxm", "--nodes=2"),
            "--nodes=2: name the network between them with --fabric=NAME; for h100-sxm: 16x200-roce, .*, none",
        ),
        (("--hardware=h100-sxm", "--nodes=1"), "add --gpus-per-node=N: limits of collectives differ by it, and no fabric tells it"),
        (("--hardware=h100-sxm",), "gpu-acceptance judge: the following arguments are required: --nodes"),
        ((*PAIR, "--nodes=0"), "gpu-acceptance judge: --nodes: '0' is not allowed; allowed: 1 to 9999"),
        ((*PAIR, "--collective=alreduce"), "unknown collective 'alreduce'; known: .*; did you mean 'all_reduce'"),
        (
            (*PAIR, "--collective=all_reduce"),
            "no output of nccl-tests, as --collective=all_reduce wants; the column metric names a collective",
        ),
    ],
)
def test_options_that_do_not_tell_the_job(options, said, tmp_path, capsys):
    code, out, err = judged(capsys, table_of(tmp_path / "f.csv", ROW), *options)
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert re.search(said, err), err


def test_the_collective_of_the_file_is_not_overruled(tmp_path, capsys):
    path = printed(tmp_path / "nccl.txt", [(2**32, 465, 464, 0)], STARTS)
    code, _, err = judged(capsys, path, *PAIR, "--collective=all_gather")
    assert (code, "line 1: this is all_reduce, and --collective=all_gather" in err) == (4, True)


def test_an_overlay_is_judged_by(tmp_path, capsys):
    overlay = 'limits: {nccl.all_reduce.busbw_internode: {at_least: 470, source: "policy: agreed with the vendor"}}'
    (tmp_path / "mine.yaml").write_text(overlay)
    code, out, _ = judged(capsys, table_of(tmp_path / "f.csv", ROW), *PAIR, f"--limits={tmp_path / 'mine.yaml'}")
    assert (code, results(out)) == (1, ["would miss"])
    assert "[mine.yaml: policy: agreed with the vendor]" in " ".join(out.split())
