"""Rules of this repository: allowed imports, sizes, and what no file may hold. Rules of limits: test_acceptance_rules.py."""

import ast
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.repository

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "gpu_acceptance"
ACCEPTANCE = sorted((ROOT / "acceptance").glob("test_*.py"))
ARROWS = {  # a package -> the packages that it imports: these and no others, each of which stands above it
    "base": "",
    "measure": "base",
    "inventory": "base",
    "thresholds": "base",
    "record": "base inventory measure thresholds",
    "verdict": "base inventory record thresholds",
    "folder": "base record thresholds verdict",
    "control": "base inventory record thresholds",
    "worker": "base control inventory measure record thresholds",
    "supervisor": "base control folder inventory record thresholds verdict worker",
    "report": "base folder inventory record thresholds verdict",
    "run": "base control folder inventory measure record report supervisor thresholds verdict worker",
    "cli": "base control folder inventory record report run thresholds verdict",
    "plugin": "base control record report run verdict worker",
    "__main__": "cli",
    "__init__": "",
}
FIXTURES = "base inventory measure record run thresholds worker"
FIXTURES_OF_A_RUN = {"run.training_files"}  # files that a validation reads and writes
PURE = ("base.text", "thresholds.limit", "record.run_record", "record.figure", "record.gpu_telemetry", "verdict")
CODE = ("src", "fixtures", "acceptance", "tools", "benchmarks")
READS_FILES = {  # what a file from outside says goes through validation
    "checkpoint_files": {"pydantic"},
    "data_files": {"numpy", "PIL"},
}
SUFFIXES = {"", ".py", ".sh", ".yaml", ".toml", ".ini", ".md", ".html", ".css", ".js", ".svg"}
SUFFIXES |= {".json", ".jsonl", ".csv", ".xml", ".txt", ".log", ".stacks"}
TEXTS = sorted(
    path
    for folder in (*CODE, "thresholds", "tests", "docs", "deploy", "reports/samples", "reports/evidence")
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and path.suffix in SUFFIXES
)
TEXTS += [path for path in ROOT.glob("*") if path.is_file() and path.suffix in SUFFIXES and path.name != ".git"]  # a file in a worktree


@cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path):
    """All modules that a file imports, wherever in it; `from package import module` counts as both."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def packages(path):
    return {name.split(".")[0] for name in imports(path)}


def own(path):
    """Modules of ours that a file imports: `measure.nccl`."""
    return {name.removeprefix("gpu_acceptance.") for name in imports(path) if name.startswith("gpu_acceptance.")} - {"__version__"}


def rooms(path):
    """Packages of ours that a file imports, and modules of ours that are in none."""
    return {name.split(".")[0] for name in own(path)}


@cache
def reached(name):
    """All modules of ours that importing one of them imports, directly or not."""
    seen, todo = set(), [name]
    while todo:
        module = todo.pop()
        path = next(
            (path for path in (SRC / f"{module.replace('.', '/')}.py", SRC / module.replace(".", "/") / "__init__.py") if path.exists()),
            None,
        )
        if path and module not in seen:
            seen.add(module)
            todo += own(path)
    return seen


def sources(name):
    """The files of all that importing a module imports, and its own."""
    found = [SRC / f"{module.replace('.', '/')}.py" for module in reached(name)]
    return [path for path in found if path.exists()]


def files_of(package):
    """The files of a package with those below it, or of one module: `thresholds.limit`."""
    place = SRC / package.replace(".", "/")
    return sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]


def file_of(name):
    path = SRC / f"{name.replace('.', '/')}.py"
    assert path.exists(), path
    return path


def is_module(name):
    return (SRC / f"{name.replace('.', '/')}.py").exists()


def name_of(path):
    """`verdict.judge`."""
    return ".".join(path.relative_to(SRC).with_suffix("").parts)


def test_there_is_something_to_look_at():
    assert len(ACCEPTANCE) >= 4
    assert len(TEXTS) > 100


# --- arrows --------------------------------------------------------------------------------------------------------------------


def test_each_module_is_in_a_room_or_at_the_door():
    assert {path.relative_to(SRC).parts[0].removesuffix(".py") for path in SRC.rglob("*.py")} == {*ARROWS}
    assert {path.name for path in SRC.glob("*.py")} == {"__init__.py", "__main__.py", "plugin.py"}


def test_a_room_imports_the_rooms_that_are_allowed_and_no_others():
    found = {room: {other for path in files_of(room) for other in rooms(path)} - {room} for room in ARROWS}
    assert {room: " ".join(sorted(others)) for room, others in found.items()} == ARROWS
    assert len([room for room in ARROWS if (SRC / room).is_dir()]) <= 14
    assert sum(map(len, found.values())) <= 80


def test_no_arrow_leads_back():
    order = list(ARROWS)
    for room, others in ARROWS.items():
        assert set(others.split()) <= set(order[: order.index(room)]), room


def test_fixtures_import_what_a_validation_needs_and_nothing_of_the_run():
    fixtures = list((ROOT / "fixtures").glob("*.py"))
    assert sorted({other for path in fixtures for other in rooms(path)}) == FIXTURES.split()
    assert {name for path in fixtures for name in own(path) if name.startswith("run.") and is_module(name)} == FIXTURES_OF_A_RUN


def offenders(paths, *, directly=None, never=(), rooms_of=None):
    """Files that import another package than those `directly` allowed, that reach one of `never`, or import other rooms of ours."""
    for path in paths:
        if directly is not None and (
            strange := packages(path) - set(sys.stdlib_module_names) - directly - READS_FILES.get(path.stem, set())
        ):
            yield f"{path.relative_to(ROOT)} imports {sorted(strange)}"
        if rooms_of is not None and (strange := rooms(path) - rooms_of):
            yield f"{path.relative_to(ROOT)} imports {sorted(strange)}"
        for source in sources(name_of(path)) if never else ():
            if strange := packages(source) & never:
                yield f"{path.relative_to(ROOT)} reaches {sorted(strange)} by {source.relative_to(ROOT)}"


COMPUTES = {"torch", "transformers", "peft", "gpu_acceptance", "jinja2"}
ASKS_THE_MACHINE = {"torch", "pynvml", "psutil", "gpu_acceptance"}
PYTEST = {"pytest", "_pytest"}


def test_measurements_compute_and_import_no_pytest_and_no_yaml():
    found = offenders(files_of("measure"), directly=COMPUTES, never=PYTEST | {"yaml"}, rooms_of={"measure", "base"})
    assert list(found) == []


def test_the_inventory_asks_the_machine_and_reads_yaml_for_its_tables_alone():
    found = offenders(files_of("inventory"), directly=ASKS_THE_MACHINE, never=PYTEST, rooms_of={"inventory", "base"})
    assert list(found) == []
    assert [path.stem for path in files_of("inventory") if "base.strict_yaml" in own(path)] == ["node_conditions", "xids"]


def test_dialogues_are_read_and_scored_without_what_trains():
    found = offenders(map(file_of, ("measure.lora.reading", "measure.lora.calls")), never={"torch", "transformers"})
    assert list(found) == []


def test_what_is_told_of_a_series_is_told_without_a_gpu():
    found = offenders(
        map(file_of, ("inventory.telemetry", "record.gpu_telemetry")),
        never={"torch", "pynvml", "threading"},
    )
    assert list(found) == []


def test_judgement_imports_no_torch_and_no_pytest():
    paths = [path for package in PURE for path in files_of(package)]
    assert list(offenders(paths, never={*PYTEST, "torch", "pynvml", "yaml"})) == []


def test_the_report_imports_no_torch_and_no_pytest():
    assert list(offenders(files_of("report"), never={*PYTEST, "torch"})) == []
    assert [path for path in files_of("report") if "yaml" in packages(path)] == []


def test_acceptance_imports_only_what_measures():
    found = offenders(ACCEPTANCE, directly={"pytest", "torch", "gpu_acceptance"}, rooms_of={"measure", "inventory"})
    assert list(found) == []


def test_only_the_plugin_side_imports_pytest():
    """The packages `run` and `worker`, where they meet pytest's hooks; the rest of them does without."""
    seen = {name_of(path) for path in SRC.rglob("*.py") if packages(path) & {"pytest", "_pytest"}}
    assert {name.split(".")[0] for name in seen} == {"plugin", "run", "worker"}


def test_the_root_conftest_finds_the_checkout_and_names_plugin_and_fixtures_and_nothing_else():
    doc, *finding, names = parsed(ROOT / "conftest.py").body
    assert isinstance(doc, ast.Expr)
    assert isinstance(names, ast.Assign)
    assert [type(part) for part in finding] == [ast.Import, ast.ImportFrom, ast.Assign, ast.Assign, ast.Assign]
    fixtures = sorted(f"fixtures.{path.stem}" for path in (ROOT / "fixtures").glob("*.py") if path.stem != "__init__")
    assert sorted(ast.literal_eval(names.value)) == [*fixtures, "gpu_acceptance.plugin"]


# --- what no file may hold -----------------------------------------------------------------------------------------------------


def called_in(path):
    return {ast.unparse(node.func) for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)}


def test_no_pickle_no_eval_no_shell():
    never = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    calls = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load"}
    found = {path: packages(path) & never | called_in(path) & calls | shells_in(path) for path in SRC.rglob("*.py")}
    assert {str(path): names for path, names in found.items() if names} == {}


def shells_in(path):
    """Calls with a shell, or with one that is not plainly False."""
    keywords = [keyword for node in ast.walk(parsed(path)) if isinstance(node, ast.Call) for keyword in node.keywords]
    return {ast.unparse(one.value) for one in keywords if one.arg == "shell"} - {"False"}


def test_no_test_changes_the_process_of_pytest():
    """If no file may grow, pytest cannot write its own output either. Such a test starts a process."""
    never = {"resource.setrlimit", "os.nice", "os.setpriority", "os.dup2", "signal.signal", "signal.alarm"}
    found = {path: called_in(path) & never for path in (ROOT / "tests").rglob("test_*.py")}
    assert {str(path): names for path, names in found.items() if names} == {}


def words(*parts):
    """Written in pieces, so that this file does not hold them."""
    return "".join(parts)


FORBIDDEN = {
    "a path of one machine": words("/wo", "rk/"),
    "a home folder": words(r"(?<![\w/])/(ho", r"me|ro", r"ot|Us", r"ers)/\w"),
    "an assistant": words(r"\b(clau", r"de|anth", r"ropic|chat", r"gpt|co", r"pilot|open", r"ai)\b"),
    "a package registry": words(r"\b(py", r"pi\.org|files\.python", r"hosted|down", r"load\.pytorch|arti", r"factory)"),
    "a private address": words(r"\b10", r"\.\d+\.\d+\.\d+\b"),
}


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_no_file_names(kind):
    pattern = re.compile(FORBIDDEN[kind], re.IGNORECASE)
    found = {str(path.relative_to(ROOT)): pattern.findall(path.read_text(encoding="utf-8", errors="replace"))[:3] for path in TEXTS}
    assert {name: hits for name, hits in found.items() if hits} == {}


# --- sizes and words -----------------------------------------------------------------------------------------------------------

MODULES = sorted(path for path in SRC.rglob("*.py") if path.name != "__init__.py")
FRAGMENT = re.compile(
    r"(Of|What|Whether|Whom?|Whose|Why|How|The same|That|Nor|Where|When|Which)\b"
)  # a docstring is a sentence, or a noun phrase of the field
not_yet = pytest.mark.xfail(reason="not yet true of every file: this mark goes once it is")


def files_in(folder):
    return sorted((ROOT / folder).rglob("*.py"))


def lines_of(path):
    return len(path.read_text(encoding="utf-8").splitlines())


def defined(path, *kinds):
    return [node for node in ast.walk(parsed(path)) if isinstance(node, kinds)]


def by_package(number_of):
    counts = Counter()
    for path in MODULES:
        counts[path.relative_to(SRC).parts[0]] += number_of(path)
    return counts


def test_there_are_at_most_220_modules():
    counts = by_package(lambda _: 1)
    assert counts.total() <= 220, counts


@not_yet
def test_the_package_has_at_most_34000_lines():
    counts = by_package(lines_of)
    assert counts.total() <= 34_000, counts


@pytest.mark.parametrize("folder", ["src", "tests"])
def test_no_file_has_more_than_400_lines(folder):
    assert {str(path.relative_to(ROOT)): lines_of(path) for path in files_in(folder) if lines_of(path) > 400} == {}


@pytest.mark.parametrize("folder", ["src", "tests"])
def test_no_function_has_more_than_40_lines(folder):
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": node.end_lineno - node.lineno + 1
        for path in files_in(folder)
        for node in defined(path, ast.FunctionDef, ast.AsyncFunctionDef)
    }
    assert {place: length for place, length in found.items() if length > 40} == {}


@pytest.mark.parametrize("folder", ["src", "fixtures", "acceptance", "tests", "tools", "benchmarks"])
def test_no_docstring_begins_as_a_fragment(folder):
    found = {
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}": ast.get_docstring(node).split("\n")[0]
        for path in files_in(folder)
        for node in defined(path, ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if FRAGMENT.match(ast.get_docstring(node) or "")
    }
    assert found == {}
