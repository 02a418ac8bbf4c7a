"""docs/limits.md explains every row of what is read off a machine and every metric that a profile limits, and nothing else."""

import ast
import re
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest
from snapshots import healthy_h200, snapshot_of

from gpu_acceptance.inventory import binding, counters, gpu_health, infiniband_health, kernel_log_health, nccl_log
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.thresholds.limit import COUNTERS, Limit, show
from gpu_acceptance.thresholds.profile import load_profile, profile_names, shipped_dir

pytestmark = pytest.mark.repository

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
PROFILES = ["base", *profile_names(shipped_dir())]
# Subjects whose metrics may be named together: `hbm.*.wrong`.
FAMILIES = (
    *("gemm", "gemm_dtypes", "hbm", "memory", "p2p", "pcie", "nccl", "nccl_sizes", "localise"),
    *("train_single", "ddp", "ddp_short", "fsdp_variants", "parity", "lora_modes", "lora_model", "checkpoint", "soak"),
)
SUBJECTS = ("gpu_health", "infiniband", "kernel_log", "binding")  # those of which each row has a heading, in this order
TITLES = (
    *(*SUBJECTS, "environment", "gemm", "gemm_dtypes", "hbm", "memory", "p2p", "pcie", "corruption"),
    *("nccl", "nccl_exact", "nccl_ring", "nccl_scaling", "nccl_sizes", "localise", "nic"),
    *(
        "train_single",
        "ddp",
        "ddp_short",
        "ddp_scaling",
        "fsdp",
        "fsdp_variants",
        "parity",
        "lora_convergence",
        "lora_modes",
        "shared_fs",
        "connectivity",
        "lora_model",
        "kubernetes",
        "slurm",
    ),
    *("checkpoint", "sampler", "failure_propagation", "soak"),
)  # one for each subject
_SUBJECT = "|".join((*TITLES, "counters"))
_NAME = re.compile(rf"`((?:{_SUBJECT})\.[\w.*]+)`")
_COMMAND = re.compile(r"(?:nvidia-smi|systemctl) .+?(?=[,;)]| and | of |$)")


@cache
def limits() -> dict[str, dict[str, Limit]]:
    """Metric -> by the file that sets it; overlays are only listed."""
    found: dict[str, dict[str, Limit]] = {}
    for profile in PROFILES:
        for metric, limit in load_profile(profile, shipped_dir()).limits.items():
            found.setdefault(metric, {})[limit.file.removesuffix(".yaml")] = limit
    for overlay in ("site-ndr", "site-nvls-off"):
        for metric in load_profile("h200-sxm", shipped_dir(), [Path(overlay)]).limits:
            found.setdefault(metric, {})
    return found


@cache
def found_metrics() -> dict[str, list[str]]:
    """Row -> the metrics that it checks, whether or not a profile limits them."""
    node = snapshot_of(healthy_h200()).node
    nowhere = Missing(Why.NOT_THERE)
    rows = {row: findings(node.gpus.gpus[0]) for row, findings in gpu_health.PER_GPU.items()}
    rows |= {"peers": gpu_health.peers(node.gpus, 0), "processes": gpu_health.processes(node.gpus.gpus[0])}
    rows |= {"devices": infiniband_health.devices(node.infiniband, nowhere, nowhere)}
    rows |= {row: findings(node.infiniband) for row, findings in infiniband_health.PER_NODE.items()}
    rows |= {"errors": kernel_log_health.errors(node.kernel_log, node.gpus.gpus[0], nowhere)}
    rows |= {"elsewhere": kernel_log_health.elsewhere(node.kernel_log, node.gpus.gpus)}
    rows |= {"gpu": binding.gpu(binding.Opened("GPU-0", 0, 1), [0], nowhere, {}), "affinity": binding.affinity(node.cpu, nowhere)}
    return {row: [metric for metric, *_ in found] for row, found in rows.items()}


def named() -> set[str]:
    return set(_NAME.findall(PAGE))


COUNTED = {f"{COUNTERS}.{name}" for name in ("xids", *counters.GPU_NAMES, *counters.PORT_NAMES)}
COUNTED |= {f"{COUNTERS}.warnings.{kind}" for kind in nccl_log.WARNING_KINDS}


def known() -> set[str]:
    informing = [metric for metric, *_ in gpu_health.corrected(snapshot_of(healthy_h200()).node.gpus.gpus[0])]
    told = {"binding.map.rank", "nccl.all_reduce.algorithm_internode", "nccl.transport.internode", "nic.loopback.transport"}
    told |= {"slurm.partition.untested", "slurm.partition.untested_nodes"}
    told |= {"kubernetes.nodes.untested", "kubernetes.nodes.untested_names"}
    told |= {"kubernetes.node.name", "kubernetes.node.all_taints", "kubernetes.node.labels"}
    told |= {"shared_fs.write.bandwidth", "shared_fs.read.bandwidth", "shared_fs.small_files.rate", "connectivity.mtu.passing"}
    told |= {"ddp.gpt2.throughput_internode", "fsdp.llama.throughput_internode", "lora_convergence.throughput_internode"}
    return {*told, *informing, *COUNTED, *limits()} | {metric for metrics in found_metrics().values() for metric in metrics}


def section(title: str) -> str:
    """From one heading to the next of any level."""
    return PAGE.split(f"\n### {title}\n", 1)[1].split("\n##", 1)[0]


def bound_text(limit: Limit) -> str:
    bounds = (
        "same on all" if limit.uniform else "",
        "" if limit.equals is None else f"= {show(limit.equals)}",
        "" if limit.at_least is None else f">= {show(limit.at_least)}",
        "" if limit.at_most is None else f"<= {show(limit.at_most)}",
    )
    return ", ".join(bound for bound in bounds if bound)


def limit_cell(metric: str) -> str:
    by_file = sorted(limits().get(metric, {}).items(), key=lambda item: (item[0] != "base", item[0]))
    return "; ".join(f"{bound_text(limit)} (`{file}`)" for file, limit in by_file) or "none"


@pytest.mark.parametrize("metric", sorted(known()))
def test_every_metric_is_named(metric):
    family = metric.split(".")[0] in FAMILIES
    assert any(fnmatchcase(metric, name) if family else metric == name for name in named())


def test_no_name_is_of_nothing():
    parameters = {name for profile in PROFILES for name in load_profile(profile, shipped_dir()).parameters}
    metrics = known()
    assert sorted(name for name in named() - parameters if not any(fnmatchcase(metric, name) for metric in metrics)) == []
    assert sorted(name for name in named() if "*" in name and name.split(".")[0] not in FAMILIES) == []


def rows_of(subject: str) -> list[str]:
    tree = ast.parse((ROOT / "acceptance" / f"test_{subject}.py").read_text(encoding="utf-8"))
    return [node.name.removeprefix("test_") for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def test_every_row_has_its_heading_in_their_order():
    rows = [row for subject in SUBJECTS for row in rows_of(subject)]
    assert re.findall(r"^### (\w+)$", PAGE, re.MULTILINE) == rows == list(found_metrics())


@pytest.mark.parametrize("row", found_metrics())
def test_a_row_has_a_line_for_each_of_its_metrics_with_the_limit_as_the_files_have_it(row):
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in section(row).splitlines() if line.startswith("| `")]
    assert [(cells[0], cells[-1]) for cells in table] == [(f"`{metric}`", limit_cell(metric)) for metric in found_metrics()[row]]
    assert all(len(cells) == 3 and cells[1] for cells in table)


@pytest.mark.parametrize("metric", sorted(COUNTED))
def test_a_counter_has_a_line_with_its_limit(metric):
    table = PAGE.split("\n## `counters`\n", 1)[1].split("\n## ", 1)[0]
    assert any(line.startswith(f"| `{metric}` | ") and line.endswith(f" | {limit_cell(metric)} |") for line in table.splitlines())


@pytest.mark.parametrize("row", found_metrics())
def test_a_row_names_the_commands_of_its_remedies(row):
    remedies = [limit.remedy for metric in found_metrics()[row] for limit in limits().get(metric, {}).values()]
    commands = {command for remedy in remedies for command in _COMMAND.findall(remedy)}
    assert sorted(command for command in commands if f"`{command}`" not in " ".join(section(row).split())) == []


@pytest.mark.slow
@pytest.mark.parametrize("row", found_metrics())
def test_a_row_names_the_profiles_that_declare_it_not_applicable(row):
    for profile in PROFILES:
        declared = load_profile(profile, shipped_dir()).not_applicable
        globs = [glob for glob in declared if not _whole(glob) and any(fnmatchcase(metric, glob) for metric in found_metrics()[row])]
        if globs and row != "retired_pages":  # that one is declared by `base`, for all
            assert f"`{profile}`" in section(row)


def _whole(glob: str) -> bool:
    """A whole subject is declared once, where the subject is explained."""
    return glob in {f"{subject}.*" for subject in SUBJECTS}


def test_the_rest_of_the_rows_is_there():
    for title in TITLES:
        assert f"\n## `{title}`\n" in PAGE
    assert "\n## `world_formation` and `worker_end`\n" in PAGE


@pytest.mark.parametrize("document", ["README.md", "thresholds/README.md"])
def test_it_is_linked(document):
    assert "docs/limits.md)" in (ROOT / document).read_text(encoding="utf-8")
