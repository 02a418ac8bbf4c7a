"""`gpu-acceptance limits`: the policy for one GPU on one page. `explain`: the overlay that it prints loads, for every metric."""

import re
from types import SimpleNamespace

import pytest
import yaml

from gpu_acceptance.cli import limits
from gpu_acceptance.cli.limits import validations_of
from gpu_acceptance.cli.verbs import main
from gpu_acceptance.inventory.gpu import Gpu
from gpu_acceptance.run.suite import find_suite
from gpu_acceptance.thresholds.file import read_file
from gpu_acceptance.thresholds.known_metrics import known_metrics
from gpu_acceptance.thresholds.limit import COUNTERS, matching_reason
from gpu_acceptance.thresholds.profile import load_profile, profile_names, read_profiles, shipped_dir
from tests.judging import shipped_profile

GPUS = ", ".join(name for name in profile_names(shipped_dir()) if name != "cpu")


def printed(capsys, *arguments):
    code = main(["limits", *arguments])
    told = capsys.readouterr()
    return code, told.out if code == 0 else told.err


def test_the_policy_names_bound_unit_scope_and_kind_of_source(capsys):
    code, out = printed(capsys, "h200-sxm")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "h200-sxm (NVIDIA H200): base.yaml, gpu.yaml, nvswitch.yaml, hopper-sxm.yaml, h200-sxm.yaml, model-llama-8b.yaml"
    assert re.fullmatch(r"\d+ limits; \d+ speed limits: \d+ measured(, \d+ (published|derived)){2}", lines[1])
    rows = [" ".join(line.split()) for line in lines]
    assert ">= 4044 to 4439 GB/s, peers 3 % rank measured {copy, scale, add, triad, read, write}.bandwidth" in rows
    assert ">= 326 to 346 GB/s, on 2, 4, 8 job, one node measured all_reduce.busbw" in rows
    assert "= NVLS, on 8 job, one node derived all_reduce.algorithm" in rows
    assert "same on all rank policy {fp32, bf16}.{ddp, fsdp}.weights" in rows
    assert "connectivity (not required)" in rows
    assert max(map(len, lines)) <= 118
    chosen = "by the GPUs of the job: train.llama.model = llama-8b (from 1: llama-3b; from 4: llama-8b)"
    assert chosen in printed(capsys, "h100-sxm")[1].splitlines()


@pytest.mark.parametrize("name", profile_names(shipped_dir()))
def test_every_limit_that_applies_is_on_the_page_and_no_other(name):
    profile = shipped_profile(name)
    page = " ".join("\n".join(limits.policy(profile)).split())
    parts = {part for metric in profile.limits if not matching_reason(metric, profile.not_applicable) for part in metric.split(".")}
    assert {part for part in parts if not re.search(rf"\b{part}\b", page)} == set()
    assert f"{len([metric for metric in profile.limits if not matching_reason(metric, profile.not_applicable)])} limits;" in page


def test_an_overlay_changes_the_page(capsys, tmp_path):
    (tmp_path / "mine.yaml").write_text('limits: {hbm.write.bandwidth: {at_least: 5, source: "policy: agreed with the vendor"}}')
    out = printed(capsys, "h200-sxm", f"--limits={tmp_path / 'mine.yaml'}")[1]
    assert re.search(r"  >= 5 GB/s, peers 3 % +rank +policy +write\.bandwidth\n", out)
    assert "mine.yaml" in out.splitlines()[0]


def test_the_profile_of_this_machine_is_the_default(capsys, monkeypatch):
    monkeypatch.setattr(limits.nvml, "read", lambda: SimpleNamespace(gpus=[Gpu(index=0, name="NVIDIA H200")]))
    assert printed(capsys)[1].startswith("h200-sxm (NVIDIA H200): ")


def test_a_machine_without_a_gpu_and_an_unknown_name_are_usage_errors(capsys):
    code, err = printed(capsys)
    assert code == 4
    assert re.fullmatch(r"gpu-acceptance: this machine has no GPU that NVML shows; name one of the profiles: a100-pcie, .*\n", err)
    assert printed(capsys, "h200-sx") == (
        4,
        f"gpu-acceptance: no profile 'h200-sx'; profiles: {', '.join(profile_names(shipped_dir()))}; did you mean 'h200-sxm'?\n",
    )


KNOWN = known_metrics(read_profiles(shipped_dir()))


def explained(capsys, *arguments):
    code = main(["explain", *arguments])
    told = capsys.readouterr()
    return code, told.out if code == 0 else told.err


def overlay_in(text):
    """Return the overlay between its headline and the waiver."""
    return text.split("--limits=mine.yaml:\n")[1].split("To accept")[0]


def test_one_screen_says_all_of_a_metric(capsys):
    code, out = explained(capsys, "hbm.triad.bandwidth", "--hardware=h200-sxm")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "hbm.triad.bandwidth (GB/s)"
    assert lines[1].startswith("measured by acceptance/test_hbm.py::test_bandwidth: ")
    limit = "h200-sxm: >= 4153 GB/s and at most 3 % below its peers on each rank, spread at most 2 %, possible up to 4800"
    assert limit in lines
    assert "    source, in h200-sxm.yaml: measured 2026-11-20" in out
    assert lines[3] == "part of level quick, full, soak; not tested at level health"
    assert "after a miss, memory_slow: " in out
    assert "`gpu-acceptance remedy memory_slow`" in " ".join(out.split())
    assert lines[-1] == "To accept without it: --waive='hbm.triad.bandwidth=agreed with the vendor on 2026-11-20'"
    assert len(lines) < 40
    assert max(map(len, lines)) <= 118


def test_profiles_that_say_the_same_share_a_line(capsys):
    out = explained(capsys, "gpu_health.ecc.on")[1]
    here, others = out.split("other profiles (--hardware=NAME shows one of them with its whole source):\n")
    assert "\ncpu: not applicable: this machine has no GPU\n" in here, "the profile of this machine comes first"
    delivered_off = ("rtx-pro-6000-maxq", "rtx-pro-6000-workstation")  # their remedy says it
    alike = ", ".join(name for name in GPUS.split(", ") if name not in delivered_off)
    assert " ".join(others.split()).startswith(f"{alike}: == true on each rank ")
    assert "after a miss: switch ECC on (nvidia-smi -e 1) and reboot the node\n" in out


def test_an_overlay_is_laid_over_the_profile(capsys, tmp_path):
    (tmp_path / "mine.yaml").write_text(
        overlay_in(explained(capsys, "hbm.triad.bandwidth", "--hardware=h200-sxm")[1]).replace("4153", "4000")
    )
    out = explained(capsys, "hbm.triad.bandwidth", "--hardware=h200-sxm", f"--limits={tmp_path / 'mine.yaml'}")[1]
    assert "h200-sxm: >= 4000 GB/s and at most" in out
    assert "source, in mine.yaml: policy: agreed with the vendor" in out
    assert "\nloosened by overlays: hbm.triad.bandwidth at_least, 4153 -> 4000\n" in out


def test_a_figure_without_a_limit_can_have_one(capsys):
    out = explained(capsys, "p2p.latency.to_rank_3")[1]
    assert out.startswith("p2p.latency.to_rank_3 (us)\nmeasured by acceptance/test_p2p.py::test_latency: ")
    assert "\ncpu: no limit\n" in out
    assert f" {GPUS}: no limit " in " ".join(out.split())
    assert "--waive" not in out


@pytest.mark.parametrize(
    ("name", "first", "number"),
    [
        ("hbm", "hbm.add.bandwidth    GB/s       19 different limits", 18),
        ("hbm.*.wrong", "hbm.add.wrong    elements   <= 0 elements on each rank", 6),
    ],
)
def test_a_subject_or_a_glob_lists_its_metrics(capsys, name, first, number):
    code, out = explained(capsys, name)
    assert code == 0
    assert out.splitlines()[0] == first
    assert len(out.splitlines()) == number


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["hbm.triad.bandwith"], r"unknown metric 'hbm\.triad\.bandwith'; did you mean 'hbm\.triad\.bandwidth'\?"),
        (["hbm.tirad.*"], r"unknown metric 'hbm\.tirad\.\*'; did you mean 'hbm\.triad\.\*'\?"),
        (["hbm.zzzzzzzz"], r"unknown metric 'hbm\.zzzzzzzz'; `gpu-acceptance explain hbm` lists those of its subject"),
        (["hmb"], r"unknown subject 'hmb'; known: binding, .*; did you mean 'hbm'\?"),
        (["hbm.triad.bandwidth", "--hardware=h200-sx"], r"no profile 'h200-sx'; profiles: .*; did you mean 'h200-sxm'\?"),
        (["hbm", "--limits=x.yaml"], r"--limits=x\.yaml: an overlay lies on a profile: add --hardware=NAME; profiles: a100-pcie, .*"),
        (["hbm", "--hardware=cpu", "--limits=x.yaml"], r"x\.yaml: there is no such file: 'x\.yaml'"),
    ],
)
def test_an_unknown_metric_is_a_usage_error(capsys, arguments, says):
    code, err = explained(capsys, *arguments)
    assert code == 4
    assert re.fullmatch(f"gpu-acceptance: {says}\n", err), err


@pytest.mark.slow
@pytest.mark.parametrize("name", profile_names(shipped_dir()))
def test_the_overlay_of_every_limit_loads_and_changes_nothing(tmp_path, name):
    profile = shipped_profile(name)
    entries = {}
    for metric, limit in profile.limits.items():
        entries |= yaml.safe_load(limits.snippet(metric, limit, limit.unit))["limits"]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"limits": entries}))
    again = load_profile(name, shipped_dir(), [tmp_path / "mine.yaml"])
    assert again.limits.keys() == profile.limits.keys()
    assert [change for change in again.changes if change.kind != "not applicable"] == []
    assert [one.remedy for one in again.limits.values()] == [one.remedy for one in profile.limits.values()]


@pytest.mark.parametrize("metric", ["nccl.all_reduce.busbw", "gpu_health.identity.name", "gemm.bf16.error", "memory.fill.wrong"])
def test_what_is_printed_is_a_file_of_limits(tmp_path, capsys, metric):
    (tmp_path / "mine.yaml").write_text(overlay_in(explained(capsys, metric)[1]))
    assert list(read_file(tmp_path / "mine.yaml").content.limits) == [metric]


def test_every_figure_can_be_limited_by_what_is_printed(tmp_path):
    entries = {}
    for name, unit in KNOWN.figures.items():
        entries |= yaml.safe_load(limits.snippet(name.replace("*", "x"), None, unit))["limits"]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"limits": entries}))
    assert load_profile("cpu", shipped_dir(), [tmp_path / "mine.yaml"]).limits.keys() >= entries.keys()


# --- which validation measures it --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "tests"),
    [
        ("hbm.triad.bandwidth", ["test_hbm.py::test_bandwidth"]),
        ("gemm.bf16.burst", ["test_gemm.py::test_burst"]),
        ("gemm.bf16.wrong", ["test_gemm.py::test_sustained", "test_gemm.py::test_burst"]),
        ("gpu_health.ecc.on", ["test_gpu_health.py::test_ecc"]),
        ("nccl.transport.intranode", ["test_nccl.py::test_way"]),
        ("nccl.all_reduce.busbw_internode_medium", ["test_nccl.py::test_bandwidth"]),
        ("soak.corruption.repeats.mismatches", ["test_soak.py::test_corruption"]),
        ("soak.gemm.drift", ["test_soak.py::test_load"]),
        ("ddp.gpt2.mfu", ["test_ddp.py::test_throughput"]),
        ("slurm.leftovers.found", ["test_slurm.py::test_leftovers"]),
        ("environment.site.difference", ["test_environment.py::test_site"]),
    ],
)
def test_the_test_that_measures_a_metric(metric, tests):
    found = validations_of(metric, find_suite())
    assert [nodeid.removeprefix("acceptance/") for nodeid in found] == tests
    assert all(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("metric", sorted({**KNOWN.limited, **KNOWN.figures}))
def test_every_metric_is_measured_by_few(metric):
    if not metric.startswith(f"{COUNTERS}."):
        assert 1 <= len(validations_of(metric.replace("*", "x"), find_suite())) <= 4


def test_a_suite_without_the_subject_measures_nothing(tmp_path):
    assert validations_of("hbm.triad.bandwidth", tmp_path) == {}
    (tmp_path / "acceptance").mkdir()
    (tmp_path / "acceptance" / "test_hbm.py").write_text("def test_(:\n")
    assert validations_of("hbm.triad.bandwidth", tmp_path) == {}
