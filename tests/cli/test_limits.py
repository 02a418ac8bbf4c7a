"""`gpu-acceptance limits`: the policy for one GPU on one page."""

import re
from types import SimpleNamespace

import pytest

from gpu_acceptance.cli import limits
from gpu_acceptance.cli.verbs import main
from gpu_acceptance.thresholds.limit import matching_reason
from gpu_acceptance.thresholds.profile import load_profile, profile_names, shipped_dir


def printed(capsys, *arguments):
    code = main(["limits", *arguments])
    told = capsys.readouterr()
    return code, told.out if code == 0 else told.err


def test_the_policy_names_bound_unit_scope_and_kind_of_source(capsys):
    code, out = printed(capsys, "h200-sxm")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "h200-sxm (NVIDIA H200): base.yaml, hopper-sxm.yaml, h200-sxm.yaml"
    assert re.fullmatch(r"\d+ limits; \d+ speed limits: \d+ measured, \d+ published, \d+ derived", lines[1])
    rows = [" ".join(line.split()) for line in lines]
    assert ">= 4044 to 4439 GB/s, peers 3 % rank measured {copy, scale, add, triad, read, write}.bandwidth" in rows
    assert ">= 326 to 346 GB/s, on 2, 4, 8 job, one node measured all_reduce.busbw" in rows
    assert "= NVLS, on 8 job, one node derived all_reduce.algorithm" in rows
    assert "same on all rank policy {fp32, bf16}.{ddp, fsdp}.weights" in rows
    assert "connectivity (not required)" in rows
    assert max(map(len, lines)) <= 118


@pytest.mark.parametrize("name", profile_names(shipped_dir()))
def test_every_limit_that_applies_is_on_the_page_and_no_other(name):
    profile = load_profile(name, shipped_dir())
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
    monkeypatch.setattr(limits.nvml, "read", lambda: SimpleNamespace(gpus=[SimpleNamespace(name="NVIDIA H200")]))
    assert printed(capsys)[1].startswith("h200-sxm (NVIDIA H200): ")


def test_a_machine_without_a_gpu_and_an_unknown_name_are_usage_errors(capsys):
    code, err = printed(capsys)
    assert code == 4
    assert re.fullmatch(r"gpu-acceptance: this machine has no GPU that NVML shows; name one of the profiles: a100-pcie, .*\n", err)
    assert printed(capsys, "h200") == (
        4,
        f"gpu-acceptance: no profile 'h200'; profiles: {', '.join(profile_names(shipped_dir()))}; did you mean 'h200-sxm'?\n",
    )
