"""Rules of acceptance/ and thresholds/: every figure, parameter, unit and limit is known on both sides."""

import ast
import inspect
import textwrap
from fnmatch import fnmatchcase
from functools import cache

import pytest
from test_fabrics import CASES
from test_repo_rules import ACCEPTANCE, ROOT, SRC, parsed

from fixtures import limits
from gpu_acceptance.inventory import counters, nccl_log
from gpu_acceptance.thresholds.limit import COUNTERS, matching_reason, subject_of_metric, validation_of
from gpu_acceptance.thresholds.profile import profile_names, shipped_dir
from tests.judging import shipped_profile

pytestmark = pytest.mark.repository

SHIPPED = profile_names(shipped_dir())
PROFILES = {name: shipped_profile(name) for name in SHIPPED}
LIMITED = {metric: limit.unit for profile in PROFILES.values() for metric, limit in profile.limits.items()}  # by any profile


def test_each_required_subject_is_a_file_or_read_by_supervisors():
    subjects = {COUNTERS, *(path.stem.removeprefix("test_") for path in ACCEPTANCE)}
    unknown = {name: profile.requires - subjects for name, profile in PROFILES.items()}
    assert {name: names for name, names in unknown.items() if names} == {}


def test_each_subject_and_validation_that_a_phase_lists_is_there_and_no_subject_is_in_none():
    listed = {name for names in shipped_profile("base").phases.values() for name in names}
    functions = {path: [node.name for node in ast.walk(parsed(path)) if isinstance(node, ast.FunctionDef)] for path in ACCEPTANCE}
    validations = {validation_of(f"acceptance/{path.name}::{name}") for path, names in functions.items() for name in names}
    subjects = {path.stem.removeprefix("test_") for path in ACCEPTANCE}
    assert listed - validations == subjects


# Validations whose fault no drill plants yet: what machines say of themselves wants a recording, a rate or a link wants a competitor.
WITHOUT_A_FAULT = {
    "binding": "affinity gpu",
    "checkpoint": "resume save",
    "connectivity": "clock interfaces latency mtu names rate tcp",
    "ddp_scaling": "efficiency",
    "environment": "gpu node site versions world",
    "failure_propagation": "exit kill",
    "fsdp": "throughput",
    "fsdp_variants": "hybrid memory way",
    "gemm": "best_shape burst",
    "gemm_dtypes": "best_shape",
    "gpu_health": "clocks ecc fabric identity memory modes nvlink pcie "
    "peers power processes recovery remapping retired_pages temperature throttling",
    "infiniband": "counters devices gpudirect network ports roce",
    "kernel_log": "elsewhere errors host nics",
    "kubernetes": "devices elsewhere node pods",
    "localise": "inside pairs rails",
    "lora_model": "fine_tuning",
    "lora_modes": "saved ways",
    "nccl": "latency_eager native physics way",
    "nccl_ring": "algorithm",
    "nccl_scaling": "efficiency",
    "nic": "loopback share",
    "p2p": "latency",
    "pcie": "alone alone_both_ways",
    "sampler": "epochs step_split workers",
    "shared_fs": "bandwidth exclusive locks mount rename same small_files",
    "slurm": "allocation controller cpus gpus isolation leftovers memory partition round_trip time",
    "soak": "corruption load",
    "train_single": "step",
}


def test_each_validation_has_a_fault_that_a_drill_plants_in_it():
    """A new one has; none of those that have one comes to stand here."""
    bare = {}
    for path in ACCEPTANCE:
        tests = [node for node in parsed(path).body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
        without = [one.name for one in tests if not any("mark.drill(" in ast.unparse(decorator) for decorator in one.decorator_list)]
        if without:
            bare[path.stem.removeprefix("test_")] = " ".join(sorted(name.removeprefix("test_") for name in without))
    assert bare == WITHOUT_A_FAULT


def calls(path, function):
    return [
        node
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function
    ]


@pytest.mark.parametrize(("function", "fixture"), [("check", limits.check), ("record", limits.record)])
def test_each_figure_is_given_as_its_fixture_takes_it(function, fixture):
    """Any other name is a label, and listed here: a slip of a name would be one."""
    (inner,) = [node for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(fixture)))) if isinstance(node, ast.FunctionDef)][1:]
    taken = {argument.arg for argument in inner.args.args} | {"of", "quantity", "ranks", "to_rank"}
    given = {path.name: {one.arg for call in calls(path, function) for one in call.keywords if one.arg} - taken for path in ACCEPTANCE}
    assert {name: names for name, names in given.items() if names} == {}


def glob_of(node):
    """The text of a literal; what an f-string fills in is a `*`."""
    if isinstance(node, ast.Constant):
        return node.value
    assert isinstance(node, ast.JoinedStr), ast.dump(node)
    return "".join(part.value if isinstance(part, ast.Constant) else "*" for part in node.values)


@pytest.mark.parametrize("name", SHIPPED)
def test_each_parameter_asked_for_is_in_every_profile(name):
    parameters = PROFILES[name].parameters
    asked = {glob_of(call.args[0]) for path in ACCEPTANCE for call in calls(path, "parameter")}
    assert [wanted for wanted in sorted(asked) if not any(fnmatchcase(known, wanted) for known in parameters)] == []


@cache
def checked_metrics():
    """Subject, metric and unit of every check in `acceptance/`; what a reader finds is checked as it comes."""
    written = {
        (path.stem.removeprefix("test_"), glob_of(call.args[0]), glob_of(call.args[2]))
        for path in ACCEPTANCE
        for call in calls(path, "check")
        if not isinstance(call.args[0], ast.Name)
    }
    return sorted(
        {
            *written,
            *prefixed_metrics(),
            *(found for subject, modules in FINDINGS.items() for module in modules for found in found_metrics(subject, module)),
        }
    )


FINDINGS = {  # subject -> the modules that find its figures
    "binding": ("inventory/binding",),
    "gpu_health": ("inventory/gpu_health",),
    "infiniband": ("inventory/infiniband_health", "inventory/fabric_reader"),
    "kernel_log": ("inventory/kernel_log",),
    "kubernetes": ("inventory/kubernetes_health",),
    "nccl": ("inventory/nccl_physics",),
    "nic": ("inventory/nccl_physics",),
    "slurm": ("inventory/slurm", "inventory/slurm_health"),
    "soak": ("record/gpu_telemetry",),
}


def found_metrics(subject, module):
    """The findings of a module: a tuple of metric, answer, unit, and more where a figure has a place. What its facts are of is recorded."""
    others = {one for one, its in FINDINGS.items() if module in its} - {subject}
    for function in parsed(SRC / f"{module}.py").body:
        if isinstance(function, ast.FunctionDef) and not function.name.endswith("facts"):
            for node in ast.walk(function):
                value = node.value if isinstance(node, ast.Yield | ast.Return) else None
                if isinstance(value, ast.Tuple) and len(value.elts) > 2 and isinstance(value.elts[2], ast.Constant):
                    metric = glob_of(value.elts[0])
                    if metric.split(".")[0] not in others:
                        yield subject, metric, value.elts[2].value


PREFIXED = {  # checks under the prefix of its caller, `check_survey("soak.corruption", found)` -> the module of fixtures it is in
    "check_survey": "corruption",
    "check_model": "training",
    "check_trained": "training",
    "check_ddp": "parallel",
    "check_fsdp": "parallel",
    "check_lora": "lora",
}


def prefixed_metrics():
    for path in ACCEPTANCE:
        for fixture in PREFIXED:
            for prefix in (glob_of(call.args[0]) for call in calls(path, fixture)):
                for metric, unit in checked_by(fixture):
                    yield prefix.split(".")[0], metric.replace("*", prefix, 1), unit


def checked_by(fixture):
    """Metric and unit, by itself and by others that it asks in its turn."""
    tree = parsed(ROOT / "fixtures" / f"{PREFIXED[fixture]}.py")
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    helpers = [node.func.id for node in ast.walk(functions[fixture]) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    bodies = [functions[fixture], *(functions[name] for name in helpers if name.startswith("_check"))]
    for call in (node for body in bodies for node in ast.walk(body) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        if call.func.id == "check":
            yield glob_of(call.args[0]), "*" if isinstance(call.args[2], ast.Attribute) else glob_of(call.args[2])
        elif call.func.id in PREFIXED:
            yield from checked_by(call.func.id)


def test_each_checked_metric_is_of_its_subject():
    assert [metric for subject, metric, _ in checked_metrics() if not metric.startswith(f"{subject}.")] == []


def test_each_checked_metric_has_a_limit_in_its_unit_or_is_declared():
    declared = {glob for profile in PROFILES.values() for glob in profile.not_applicable}
    wrong = []
    for _, metric, unit in checked_metrics():
        units = {its for known, its in LIMITED.items() if fnmatchcase(known, metric)}
        is_declared = any(fnmatchcase(metric, glob) for glob in declared)
        wrong += [] if (any(fnmatchcase(its, unit) for its in units) if units else is_declared) else [(metric, unit)]
    assert wrong == []


@pytest.mark.parametrize("name", SHIPPED)
def test_what_one_profile_limits_another_that_requires_the_subject_limits_or_declares(name):
    profile = PROFILES[name]
    asked = [metric for metric in LIMITED if subject_of_metric(metric) in profile.requires and metric not in profile.limits]
    assert [metric for metric in asked if not matching_reason(metric, profile.not_applicable)] == []


ON_FABRICS = [(fabric, name) for fabric, name in CASES if name in SHIPPED]


@pytest.mark.parametrize(("fabric", "name"), [*(("", name) for name in SHIPPED), *ON_FABRICS])
def test_each_required_limit_has_a_figure_somewhere(fabric, name):
    """A figure that is recorded for information is judged where there is a limit."""
    profile = shipped_profile(name, fabric)
    globs = [
        *(metric for _, metric, _ in checked_metrics()),
        *(glob_of(one.args[0]) for path in ACCEPTANCE for one in calls(path, "record") if isinstance(one.args[0], ast.JoinedStr)),
        f"{COUNTERS}.xids",
        *(f"{COUNTERS}.{counter}" for counter in (*counters.GPU_NAMES, *counters.PORT_NAMES)),
        *(f"{COUNTERS}.warnings.{kind}" for kind in nccl_log.WARNING_KINDS),
    ]
    required = [metric for metric, limit in profile.limits.items() if limit.subject in profile.requires]
    assert [metric for metric in required if not any(fnmatchcase(metric, glob) for glob in globs)] == []
