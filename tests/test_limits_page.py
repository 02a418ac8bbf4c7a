"""docs/limits.md is made from metrics.yaml and the profiles: every metric with a limit has one row, and every name there is a metric."""

import re
from pathlib import Path

import pytest
from snapshots import healthy_h200, snapshot_of

from gpu_acceptance.inventory import binding, gpu_health, infiniband_health, kernel_log
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.thresholds.known_metrics import known_metrics
from gpu_acceptance.thresholds.limit import subject_of_metric
from gpu_acceptance.thresholds.profile import read_profiles, shipped_dir
from tools.limits_page import explained, limits_by_file, limits_page, patterns, rows_of

pytestmark = pytest.mark.repository

ROOT = Path(__file__).parents[1]
METHODS = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
SUBJECTS = sorted(path.stem.removeprefix("test_") for path in (ROOT / "acceptance").glob("test_*.py"))


def cells_of(page: str) -> dict[str, list[str]]:
    """The cells of each row, by the text of its first cell."""
    tables = [re.split(r"(?<!\\)\|", line.strip("|")) for line in page.splitlines() if line.startswith("| `")]
    return {cells[0].strip(" `"): [cell.strip() for cell in cells[1:]] for cells in tables}


def test_every_metric_with_a_limit_stands_in_one_row_and_every_name_explains_one():
    found = [metric for subject in (*SUBJECTS, "counters") for metrics in rows_of(subject).values() for metric in metrics]
    assert sorted(set(found)) == sorted(found)
    assert limits_by_file().keys() <= set(found)
    assert [pattern for pattern in patterns() if pattern not in explained().values()] == []


def test_every_figure_that_a_node_tells_of_itself_is_explained():
    node = snapshot_of(healthy_h200()).node
    nowhere = Missing(Why.NOT_THERE)
    gpu = node.gpus.gpus[0]
    told = [findings(gpu) for findings in gpu_health.PER_GPU.values()]
    told += [gpu_health.peers(node.gpus, 0), gpu_health.processes(gpu), gpu_health.corrected(gpu)]
    told += [infiniband_health.devices(node.infiniband, nowhere, nowhere)]
    told += [findings(node.infiniband) for findings in infiniband_health.PER_NODE.values()]
    told += [kernel_log.errors(node.kernel_log, gpu, nowhere), kernel_log.elsewhere(node.kernel_log, node.gpus.gpus)]
    told += [binding.gpu(binding.Opened("GPU-0", 0, 1), [0], nowhere, {}), binding.affinity(node.cpu, nowhere)]
    metrics = {metric for findings in told for metric, *_ in findings}
    assert metrics - explained().keys() == set()


def test_a_row_has_the_bound_and_the_file_of_each_limit():
    rows = cells_of(limits_page())
    assert rows["gpu_health.memory.total"][1] == "same on all, rank, policy (`base`); >= 143771 MiB, rank, measured (`h200-sxm`)"
    assert ">= 4044 to 4439 GB/s, peers 3 %, rank, measured (`h200-sxm`)" in rows["hbm.*.bandwidth"][1]
    assert rows["gpu_health.retired_pages.pending"][1] == "none"
    assert rows["environment.torch.version"] == ["", "same on all, rank, policy (`base`)"]


def test_every_subject_has_its_section_with_what_to_do_and_where_a_metric_does_not_apply():
    assert [subject for subject in (*SUBJECTS, "counters") if f"\n## `{subject}`\n" not in limits_page()] == []
    section = limits_page().split("\n## `gpu_health`\n")[1].split("\n## ")[0]
    assert "- `gpu_health.ecc.on`: switch ECC on (nvidia-smi -e 1) and reboot the node\n" in section
    assert "- `gpu_health.peers.without_read`: look at nvidia-smi topo -p2p r;" in section  # not of the whole row
    where = "`h100-sxm-4gpu`, `h200-sxm-4gpu`, `without-nvswitch`"
    assert f"- `gpu_health.fabric*`: a fabric needs NVLink switches ({where})\n" in section


def test_an_entry_of_several_subjects_stands_in_each_with_its_own_names():
    rows = cells_of(limits_page())
    assert rows["counters.nvlink.recoveries"][0] == rows["gpu_health.nvlink.recoveries"][0] == "links trained again, over all links"
    assert "| `*.mfu` |" in limits_page().split("\n## `ddp`\n")[1].split("\n## ")[0]


def test_the_methods_name_no_metric_that_is_none():
    shipped = known_metrics(read_profiles(shipped_dir()))
    names = [name for name in re.findall(r"`([a-z_]+(?:\.[\w*]+)+)`", METHODS) if subject_of_metric(name) in (*SUBJECTS, "counters")]
    parameters = (ROOT / "docs" / "parameters.md").read_text(encoding="utf-8")
    assert [name for name in names if not shipped.matching(name) and shipped.unit_of(name) is None and f"`{name}`" not in parameters] == []


def test_each_subject_has_its_method():
    assert sections_of(METHODS) == sections_of(limits_page())


def sections_of(page):
    return set(re.findall(r"^## (`.*)$", page, re.MULTILINE))


def test_it_is_linked():
    assert all("docs/limits.md)" in (ROOT / document).read_text(encoding="utf-8") for document in ("README.md", "thresholds/README.md"))
