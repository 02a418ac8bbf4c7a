"""The report answers in order: may I sign, what is wrong and where, how far is everything else, what was not tested."""

import base64
import hashlib
import re
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise

import pytest

from gpu_acceptance.folder.files import RecordError, sha256_of, write_results
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.gpu import GpuProcess, GpuUse
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.report import untested
from gpu_acceptance.report.build import build_page, write_page
from gpu_acceptance.report.words import OUTCOME, STATUS
from tests.report import sample_rows, samples
from tests.report.pages import parse
from tests.report.sample_pages import PAGES, page_with, section, section_of
from tests.verdict.judged_anew import judged_anew


def verdict_box(name):
    return re.sub(r"\s+", " ", parse(PAGES[name]).all("header")[0].text)


def with_ranks(record, **changes):
    return samples.of_ranks(record, [one.model_copy(update=changes) for one in record.ranks])


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_well_formed_leads_into_itself_fetches_nothing_and_runs_its_own_script_alone(name):
    page = parse(PAGES[name])
    assert PAGES[name].startswith("<!DOCTYPE html>\n")
    assert page.unclosed == []
    assert page.all("html")[0].attributes["lang"] == "en"
    assert len(page.all("title")) == len(page.all("h1")) == 1
    ids = [one.attributes["id"] for one in page.elements if "id" in one.attributes]
    assert len(ids) == len(set(ids))
    levels = [int(one.tag[1]) for one in page.elements if re.fullmatch("h[1-6]", one.tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert len(page.all("table")) == len(page.all("caption")) > 0
    assert {one.attributes.get("scope") for one in page.all("th")} <= {"col", "row", "rowgroup"}
    assert all(one.attributes["href"].removeprefix("#") in ids for one in page.all("a"))
    policy = page.all("meta")[1].attributes
    assert policy["http-equiv"] == "Content-Security-Policy"
    digest = base64.b64encode(hashlib.sha256(page.all("script")[0].text.encode()).digest()).decode()
    assert policy["content"].startswith(f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:")
    assert {one.tag for one in page.elements}.isdisjoint({"link", "img", "iframe", "object", "embed", "form", "base"})
    assert not any(word in page.all("style")[0].text for word in ("url(", "@import", "</"))
    assert not any(key in one.attributes for one in page.elements for key in ("src", "style", "srcset"))


def test_the_script_makes_no_markup_and_asks_for_nothing():
    (script,) = parse(PAGES["accepted"]).all("script")
    assert script.attributes == {}
    assert script.text == (files("gpu_acceptance.report") / "page.js").read_text(encoding="utf-8").removesuffix("\n")
    markup = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "</", "<!--")
    for word in (*markup, "eval", "Function", "fetch", "XMLHttpRequest", "import"):
        assert word not in script.text


GPU_5 = "rank 5 (node-01.example, GPU 5, serial 1653924100006)"
REJECTED = f"✗ {samples.rejected().conclusion.line}"


@pytest.mark.parametrize(("name", "line"), [("accepted", "✓ ACCEPTED"), ("rejected", REJECTED)])
def test_the_verdict_line_is_the_first_heading(name, line):
    page = parse(PAGES[name])
    assert page.all("h1")[0].text.strip() == line
    assert page.all("title")[0].text == f"{line.split()[1].rstrip(':')}: 8 × NVIDIA H200, 2026-11-20 07:21:40 UTC, run {samples.RUN_ID}"


def test_the_verdict_box_has_all_caveats():
    box = verdict_box("incomplete")
    for text in (
        "4 of 8 GPUs not tested",
        "1 waiver hbm.copy.*: vendor ticket 4711",
        "1 pattern of limits is declared not applicable infiniband.*: no InfiniBand on this machine",
        "1 limit loosened by overlay site-example.yaml loosened: nccl.all_reduce.busbw_ring at_least, 345 → 330",
    ):
        assert text in box
    assert "no GPU was tested" in verdict_box("cpu")
    assert "What weakens" not in verdict_box("accepted")


H200 = "measured 2026-11-20, 8x H200, torch 2.11: 4312"


@pytest.mark.parametrize(
    ("sources", "told"),
    [
        ([H200, "measured 2026-11-20, 1x NVIDIA H200: 5"], "2 of 2 {}"),
        ([H200, "published: DGX H200: 5"], "1 of 2 {}, 1 published"),
        ([H200.replace("H200", "H100")], "0 of 1 {}, 1 measured on another"),
        ([H200.replace("H200", "GH200")], "0 of 1 {}, 1 measured on another"),
    ],
)
def test_the_verdict_box_says_how_many_limits_were_measured_on_this_gpu(sources, told):
    limits = tuple(
        sample_rows.held(f"hbm.m{number}.bandwidth", 4312.0, "GB/s", ">= 4150", 0.04, source=source)
        for number, source in enumerate(sources)
    )
    trust = untested.trust_in_limits(samples.concluded(samples.accepted(), limits=limits))
    assert trust == told.format("speed limits that apply here were measured on this GPU model")


def test_limits_measured_on_one_model_are_not_trusted_for_another():
    record = samples.accepted()
    trust = untested.trust_in_limits(record)
    assert " of 3 speed limits" in trust
    assert not trust.startswith("0 ")
    assert trust in verdict_box("accepted")
    assert untested.trust_in_limits(samples.cpu()) == ""
    other = tuple(gpu.model_copy(update={"name": "NVIDIA H100 80GB HBM3"}) for gpu in record.ranks[0].gpus)
    assert untested.trust_in_limits(with_ranks(record, gpus=other)).startswith("0 of 3 speed limits")


def with_uses(record, **of_plan):
    """Each GPU as it was before the run: the last one of a node had a process on it."""
    uses = {7: GpuUse((GpuProcess(1607, 1204 * 2**20),), 1831 * 2**20)}
    idle = GpuUse((), Missing(Why.NOT_PERMITTED, "<nvml>"))

    def known(rank):
        return rank.model_copy(update={"gpus": tuple(gpu.model_copy(update={"use": uses.get(gpu.index, idle)}) for gpu in rank.gpus)})

    return record.model_copy(update={"ranks": tuple(map(known, record.ranks)), "plan": record.plan.model_copy(update=of_plan)})


def test_processes_on_a_gpu_before_the_run_stand_beside_it():
    page = build_page(with_uses(samples.accepted(), allow_busy=True))
    assert "<td>1 process (pid 1607: 1204 MiB), 1831 MiB in use</td>" in page
    assert "<td>no process that NVML shows, memory not permitted (&lt;nvml&gt;)</td>" in page
    assert "GPUs that another user or process uses were allowed (--allow-busy)" in page
    assert "In use before the run" not in build_page(samples.accepted())  # it was not recorded


def weakened_by(*kinds):
    change = samples.incomplete().plan.profile.changes[0]
    changes = tuple(replace(change, kind=kind, key=f"m{number}") for number, kind in enumerate(kinds))
    return [(one.text, *one.parts) for one in untested.caveats(judged_anew(samples.accepted(), profile={"changes": changes}))]


def test_changes_of_an_overlay_are_one_caveat_loosened_limits_first_and_tightened_ones_none():
    (told,) = weakened_by("added", "loosened", "added")
    assert told == (
        "3 limits changed by overlay site-example.yaml, 1 of them loosened",
        "loosened: m1, 345 → 330",
        "added: m0, 345 → 330",
        "added: m2, 345 → 330",
    )
    assert weakened_by("tightened") == []


def test_all_reasons_of_the_verdict_stand_in_full():
    wrong = section("rejected", "wrong")
    assert "hbm.triad.bandwidth = 3120 GB/s, need >= 4150 GB/s [h200-sxm.yaml: " in wrong
    assert "] on rank 5 (node-01.example, GPU 5, serial 1653924100006)" in wrong
    record = samples.concluded(samples.rejected(), **samples.objections(*(f"reason {one}" for one in range(40))))
    many = section_of(build_page(record), "wrong")
    assert "40 reasons of the verdict, in full" in many
    assert re.findall(r"reason (\d+)", many) == [str(number) for number in range(40)]


def test_a_level_and_a_run_that_only_measures_say_what_is_missing():
    plan = samples.accepted().plan.model_copy(update={"not_at_level": {"soak": 2, "nic": 0}})
    assert untested.level(samples.accepted().model_copy(update={"plan": plan})) == "full: soak (2 validations), nic not part of it"
    measured = samples.incomplete().plan.model_copy(update={"measure_only": True})
    assert "measured only: nothing was judged" in page_with(samples.incomplete(), plan=measured)


SAID = [
    ("rejected", "short", "the whole job: NOT TESTED contract line 8.5: network: infiniband.* is not part of this run"),
    *(("rejected", "machines", text) for text in ("node-01.example", "CH-EXAMPLE-001", "GPU-00000006-0000-4000-8000-000000000006")),
    ("rejected", "machines", "1653924100006"),
    *(("rejected", "identity", text) for text in ("580.159.04", "2.28.9", "GPUs tested 8 of 8")),
    ("rejected", "identity", "limits expected 5 limits judged 5 limits held 3"),
    ("rejected", "identity", "ended 2026-11-20 07:21:40 UTC, after 21 min 40 s"),
    ("rejected", "identity", "torchrun --nproc-per-node gpu -m pytest acceptance/"),
    ("rejected", "wrong", f"hbm.triad.bandwidth ✗ MISSED 3120 GB/s >= 4150 -24.8 % {GPU_5}"),
    ("rejected", "wrong", "h200-sxm.yaml: measured 2026-11-20"),
    ("rejected", "wrong", "all of ranks 0-7"),
    (
        "rejected",
        "wrong",
        "watch A GPU's memory is slower than it must be. Run this GPU alone. If it is still slow at its full memory clock, ",
    ),
    ("rejected", "wrong", "Run it again: torchrun --nproc-per-node gpu -m pytest acceptance/test_hbm.py::test_hbm_triad"),
    ("stuck", "wrong", 'Innermost frame: File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3107'),
    ("stuck", "wrong", "Call to ibv_poll_cq failed"),
    ("stuck", "wrong", "A rank hangs in a collective. Follow the rank that is missing."),
    ("stuck", "wrong", "nothing is known against them"),
    ("two_nodes", "identity", "! DIFFERS: 2.28.9 (ranks 0-7); 2.27.3 (ranks 8-15)"),
    ("accepted", "wrong", "Nothing: every limit that had to be judged was judged and held (5 of 5)."),
    ("incomplete", "untested", "node 0 (node-01.example), GPU 7, NVIDIA H200, serial 1653924100008"),
    ("incomplete", "untested", "--gpus=4"),
    ("incomplete", "untested", "hbm.triad.bandwidth ○ NOT MEASURED"),
    ("incomplete", "untested", "○ NOT RUN acceptance/test_p2p.py::test_p2p_matrix: no process group after two failed formations"),
    ("incomplete", "untested", "– not applicable acceptance/test_infiniband.py::test_links: needs at least 2 nodes, this job has 1"),
    ("incomplete", "untested", "subject memory: required, and none of its validations is in this run"),
    ("incomplete", "untested", "infiniband.* no InfiniBand on this machine"),
    ("incomplete", "untested", "hbm.copy.* vendor ticket 4711"),
    ("incomplete", "untested", "hbm.copy.bandwidth ~ waived 4100 GB/s >= 4150"),
    ("incomplete", "untested", f"nccl.all_reduce.busbw_ring at_least ! LOOSENED 345 330 site-example.yaml {'5e6f' * 16}"),
    ("accepted", "untested", "None: each GPU that NVML and the PCI bus show had a rank."),
    ("accepted", "untested", "None: each limit that applies had a figure."),
    ("accepted", "untested", "None: the limits are those of the shipped profile."),
    ("cpu", "untested", "There are no GPUs on these nodes: no GPU was tested."),
    *(("accepted", "environment", text) for text in ("python 3.11.9", "CUDA_DEVICE_ORDER PCI_BUS_ID", "nccl.num_bytes 4294967296")),
    ("accepted", "environment", "h200-sxm.yaml " + "1a2b" * 16),
]


@pytest.mark.parametrize(("name", "anchor", "text"), SAID)
def test_a_section_says(name, anchor, text):
    assert text in section(name, anchor)


def test_the_sections_stand_in_order_and_the_first_screen_has_the_coverage():
    sections = [one.attributes["id"] for one in parse(PAGES["rejected"]).all("section")]
    order = "short scoreboard identity wrong contract side-by-side over-time validations untested machines environment"
    assert sections == order.split()
    assert "8 of 8 GPUs tested · 5 limits expected, 5 judged, 3 held" in verdict_box("rejected")
    assert "DIFFERS" not in PAGES["accepted"]


def test_the_command_breaks_between_its_words_only():
    command = next(one for one in parse(PAGES["accepted"]).all("code") if one.attributes.get("class") == "command")
    assert command.text == "torchrun --nproc-per-node gpu -m pytest acceptance/"
    words = [one.text for one in parse(PAGES["accepted"]).all("span") if one.path[-1] == "code"]
    assert words == command.text.split()


def test_a_clock_that_is_off_is_named_with_its_host():
    record = samples.two_nodes()
    ranks = tuple(one.model_copy(update={"clock_ahead_s": (3600.0, 3600.1)}) if one.node else one for one in record.ranks)
    page = page_with(record, ranks=ranks)
    assert "<strong>! CLOCK:</strong> clock of node 1 (node-02.example) is 3600.1 s ahead of that of node 0" in page
    assert "CLOCK" not in PAGES["two_nodes"]


@pytest.mark.parametrize(("nodes", "is_open"), [(2, True), (3, False)])
def test_more_than_16_gpus_are_folded_away(nodes, is_open):
    page = parse(build_page(samples.of_ranks(samples.accepted(), [samples.identity(rank, nodes=nodes) for rank in range(8 * nodes)])))
    table = next(one for one in page.all("details") if one.text.strip().startswith("GPUs with serial numbers"))
    assert ("open" in table.attributes) == is_open


def test_problems_that_reject_come_before_open_ones():
    record = samples.stuck()
    text = build_page(samples.with_rows(record, sample_rows.error_row(), sample_rows.not_run_row(), *record.rows))
    positions = [text.index(f"</span> {word}</span> <code>") for word in ("STUCK", "ERROR", "NOT RUN")]
    assert positions == sorted(positions)


def test_a_stuck_rank_comes_before_its_victims():
    text = section("stuck", "wrong")
    assert (
        text.index("✗ STUCK rank 5")
        < text.index("7 victims: stopped by a peer that failed or did not arrive")
        < text.index("· victim rank 0")
    )


def test_only_an_accepted_run_has_nothing_wrong():
    text = build_page(samples.concluded(samples.accepted(), verdict="INCOMPLETE", line="INCOMPLETE", exit_code=6))
    assert "No validation failed, yet the run is INCOMPLETE" in text
    assert "Nothing: every limit" not in text


def test_a_passed_row_with_a_bad_judgement_is_a_problem():
    row = sample_rows.nccl_row()
    invalid = row.judgements[1].model_copy(update={"status": Status.INVALID})
    record = samples.with_rows(samples.accepted(), row.model_copy(update={"judgements": (invalid,)}))
    assert "A reading that cannot be right." in section_of(build_page(record), "wrong")


@pytest.mark.parametrize(
    ("record", "changes", "text"),
    [
        (samples.accepted(), {"num_gpus_on_bus": 10}, "node 0 (node-01.example): the PCI bus shows 10 GPUs, NVML shows 8"),
        (samples.cpu(), {"nvml_problem": "driver not loaded"}, "node 0 (node-01.example): NVML: driver not loaded"),
    ],
    ids=["hidden GPUs", "no NVML"],
)
def test_gpus_that_nvml_does_not_show_are_listed_once(record, changes, text):
    assert build_page(with_ranks(record, **changes)).count(text) == 1


def test_ranks_that_see_only_their_own_gpu_are_one_node():
    record = samples.accepted()
    text = build_page(samples.of_ranks(record, [one.model_copy(update={"gpus": (one.gpus[one.rank],)}) for one in record.ranks]))
    machines = section_of(text, "machines")
    assert "8 GPUs, as NVML names them" in machines
    assert "NOT TESTED" not in machines
    assert "the PCI bus shows" not in text


def test_a_run_that_did_nothing_still_has_a_page():
    record = samples.incomplete()
    plan = record.plan.model_copy(update={"profile": replace(record.plan.profile, requires=frozenset()), "command": ()})
    conclusion = record.conclusion.model_copy(update={"limits": (), "objections": ()})
    text = build_page(record.model_copy(update={"plan": plan, "ranks": (), "conclusion": conclusion, "rows": ()}))
    assert parse(text).unclosed == []
    assert "No validation ran." in text


def test_every_outcome_and_status_has_a_word_and_a_symbol():
    assert set(OUTCOME) == set(Outcome)
    assert set(STATUS) == set(Status)
    assert all(mark.symbol and mark.word for mark in (*OUTCOME.values(), *STATUS.values()))


def test_write_page_reads_results_alone(tmp_path):
    write_results(tmp_path, samples.rejected())
    assert write_page(tmp_path) == tmp_path / "report.html"
    digest = sha256_of((tmp_path / "results.json").read_bytes())
    assert (tmp_path / "report.html").read_text() == build_page(samples.rejected(), digest)
    assert PAGES["rejected"].replace("(format 2)", f"(format 2, SHA-256 <code>{digest}</code>)") == build_page(samples.rejected(), digest)
    (tmp_path / "results.json").unlink()
    with pytest.raises(RecordError, match="no such file"):
        write_page(tmp_path)
