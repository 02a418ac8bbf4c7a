"""Pages made from the suite itself: docs/validations.md, docs/parameters.md, and the table of fixtures in CONTRIBUTING.md."""

import ast
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from gpu_acceptance.thresholds.levels import OWN_PHASE, at_level, phase_of, place_in_run
from gpu_acceptance.thresholds.limit import Profile, by_gpus_text
from gpu_acceptance.thresholds.parameters import PARAMETERS
from gpu_acceptance.thresholds.profile import load_profile, shipped_dir
from tools.markdown import MADE_BY, cell

_EXAMPLE = "launch"  # the subject that CONTRIBUTING.md shows
ROOT = Path(__file__).resolve().parents[1]

_VALIDATIONS_HEAD = f"""# What is proved

{MADE_BY} A subject is a file of `acceptance/`. Its limits, where they come from, and what to do about a miss: follow the name.
Which limits were judged on real hardware: [What runs where](support.md). *From level*: the first [level](options.md) that runs it;
each level also runs what the levels before it run: `health`, `quick`, `full` (the default), `soak`. A run goes through the
[phases](handoff.md) in this order; `nccl.physics` is phase transport.

"""
_ASKED_HEAD = """
## On request

These run only where a site asks for them. Otherwise the profile declares them not applicable, with the reason in the last column.

"""
_OWN_ROWS = """
## Rows of the suite itself

| row | what is proved |
|---|---|
| [`world_formation`](limits.md#world_formation-and-worker_end) | Every rank opened its device, and the process group works. It is the first row. |
| [`worker_end`](limits.md#world_formation-and-worker_end) | A worker that crashed or hung while it ended is a row of its own. |
| [`counters`](limits.md#counters) | No error counter of a GPU rises during any validation: XIDs, memory errors, replays, throttling. Each warning of NCCL fails the validation that caused it. |
"""  # noqa: E501
_EACH_HEAD = """
## Each validation

A validation with parameters (`[bf16]`) is one row of the report for each value.
"""
_DRILL_HEAD = """
## Faults of a drill

`gpu-acceptance drill` plants each of these in the last rank, then in rank 0, or in all ranks, while its validation runs. The fault is found
where a limit of these metrics is missed that names no other rank. Exit code 0: all were found; 1: one was not. Such a run accepts nothing.

| validation | fault | found by |
|---|---|---|
"""
_PARAMETERS_HEAD = f"""# Parameters

{MADE_BY} A profile or an overlay sets them under `parameters`; the last column is the value in `base.yaml`.
An unknown name, another type or a value out of range is a usage error. A limit holds for the parameters that its profile has.
`{{from_gpus: {{1: 2, 4: 8}}}}` is a value by the number of GPUs in the job: 2 for 1 to 3, and 8 from 4 on. `--plan` says which was chosen.
"""


def validations_page() -> str:
    """docs/validations.md."""
    base, cpu = (load_profile(name, shipped_dir()) for name in ("base", "cpu"))
    reasons = {subject: base.not_applicable.get(f"{subject}.*") for subject in _subjects()}
    always, asked = [], []
    for name, module in _subjects().items():
        phase = phase_of(base, f"acceptance/test_{name}.py") or OWN_PHASE
        row = f"| {_link(name)} | {phase} | {cell(_first_line(module))} | {_first_level(base, name)} |"
        reason = reasons[name]
        if reason is None:
            always.append(f"{row} {_first_level(cpu, name)} |\n")
        else:
            asked.append(f"{row} {cell(reason)} |\n")
    return (
        f"{_VALIDATIONS_HEAD}| subject | phase | what is proved | from level | on a CPU |\n|---|---|---|---|---|\n{''.join(always)}"
        f"{_ASKED_HEAD}| subject | phase | what is proved | from level | otherwise |\n|---|---|---|---|---|\n{''.join(asked)}{_OWN_ROWS}"
        f"{_EACH_HEAD}{''.join(_each_validation())}{_DRILL_HEAD}{''.join(_each_fault())}"
    )


def _each_validation() -> Iterator[str]:
    for name, module in _subjects().items():
        tests = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
        rows = "".join(f"| `{test.name.removeprefix('test_')}` | {cell(_first_line(test))} |\n" for test in tests)
        yield f"\n### {name}\n\n| validation | what is proved |\n|---|---|\n{rows}"


def _each_fault() -> Iterator[str]:
    for name, module in _subjects().items():
        for test in (node for node in module.body if isinstance(node, ast.FunctionDef)):
            for one in (one for one in test.decorator_list if isinstance(one, ast.Call) and ast.unparse(one.func) == "pytest.mark.drill"):
                fault, finds = (ast.literal_eval(argument) for argument in one.args)
                where = ", on all ranks" if any(word.arg == "on_all" for word in one.keywords) else ""
                yield f"| `{name}.{test.name.removeprefix('test_')}` | {cell(fault)}{where} | `{finds}` |\n"


def _subjects() -> dict[str, ast.Module]:
    """Return the files of `acceptance/` in the order of a run."""
    base = load_profile("base", shipped_dir())
    files = sorted((ROOT / "acceptance").glob("test_*.py"), key=lambda path: (place_in_run(at_level(base, "soak"), str(path)), path.stem))
    return {path.stem.removeprefix("test_"): ast.parse(path.read_text(encoding="utf-8")) for path in files}


def _first_line(node: ast.Module | ast.FunctionDef) -> str:
    return str(ast.get_docstring(node)).splitlines()[0]


def _link(subject: str) -> str:
    return f"[`{subject}`](limits.md#{subject})"


def _first_level(profile: Profile, subject: str) -> str:
    """A subject that no level names runs at each."""
    return next((f"`{level}`" for level, subjects in profile.levels.items() if subject in subjects), "each")


def parameters_page() -> str:
    """docs/parameters.md."""
    base = load_profile("base", shipped_dir())
    values = {**base.parameters, **{name: f"{by_gpus_text(value)} GPUs" for name, value in base.by_gpus.items()}}
    page = _PARAMETERS_HEAD
    for subject, names in groupby(PARAMETERS, key=lambda name: name.split(".")[0]):
        rows = "".join(f"| `{name}` | {cell(PARAMETERS[name].allowed)} | {cell(_show(values[name]))} |\n" for name in names)
        page += f"\n## {subject}\n\n| parameter | allowed | default |\n|---|---|---|\n{rows}"
    return page


def _show(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def check_block() -> str:
    """A whole check as it is shipped, but for its measure: the acceptance file, and its limits in base.yaml."""
    acceptance = (ROOT / "acceptance" / f"test_{_EXAMPLE}.py").read_text(encoding="utf-8")
    entries = re.findall(rf"^  {_EXAMPLE}\.\S+:\n(?:    .*\n)+", (shipped_dir() / "base.yaml").read_text(encoding="utf-8"), re.MULTILINE)
    return f"```python\n{acceptance}```\n\n```yaml\nlimits:\n{''.join(entries)}```\n"


def fixtures_block() -> str:
    """The fixtures that a validation may ask for, one row each; those with a leading underscore are not for validations."""
    rows = []
    for path in sorted((ROOT / "fixtures").glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and any(map(_is_fixture, node.decorator_list)):
                rows.append(f"| `{node.name}` | {cell(_first_line(node))} |\n")
    return "".join(("| fixture | what it gives |\n|---|---|\n", *sorted(rows)))


def _is_fixture(decorator: ast.expr) -> bool:
    return ast.unparse(decorator).startswith("pytest.fixture")
