"""Options and settings of pytest, variables of debuggers, and nodes that a run refuses: its figures would say nothing about the machine."""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import Field

from gpu_acceptance.base.model import Model
from gpu_acceptance.base.strict_yaml import parse
from gpu_acceptance.base.text import did_you_mean, one_line
from gpu_acceptance.record.job import Job, RankIdentity, by_node
from gpu_acceptance.run.settings import NAMES, Settings, has_value
from gpu_acceptance.run.suite import FOLDER, PLUGIN
from gpu_acceptance.thresholds.fabrics import NO_FABRIC, fabrics
from gpu_acceptance.thresholds.limit import LOCALISE_ASKED, Profile, first_of
from gpu_acceptance.thresholds.parameter_relations import drill_on_nobody

_MOST_SHOWN = 200  # characters of a value
_OFF = ("", "0", "0.0", "no", "false", "none", "[]")
_IN_A_WORKER = "GPU_ACCEPTANCE_SUPERVISOR"  # which worker/worker.py puts into the environment of a worker and of all that it starts


class Debugging(Model):
    """An entry of debugging_variables.yaml, which describes the fields."""

    names: list[str]
    effect: str
    source: str
    values: re.Pattern[str] = re.compile(r".*", re.DOTALL)
    off: re.Pattern[str] = re.compile(r"\s*(0|off|no|none|false|disabled?)?\s*", re.IGNORECASE)
    only_with: dict[str, re.Pattern[str]] = Field(default_factory=dict)

    def is_on(self, name: str, environ: Mapping[str, str]) -> bool:
        value = environ.get(name, "")
        works = all(values.fullmatch(environ.get(other, "")) for other, values in self.only_with.items())
        return works and not self.off.fullmatch(value) and self.values.fullmatch(value) is not None


@cache
def debugging_variables() -> list[Debugging]:
    """Return the table."""
    table = parse(Path(__file__).with_name("debugging_variables.yaml").read_bytes()).data["variables"]
    return [Debugging.model_validate(entry) for entry in table]


def find_debugging(environ: Mapping[str, str] = os.environ) -> str | None:
    """Name each variable that is on, with its effect and how to unset it; None where no one is set."""
    found = [(name, one) for one in debugging_variables() for name in one.names if one.is_on(name, environ)]
    if not found:
        return None
    effects = "; ".join(f"{name}={environ[name][:_MOST_SHOWN]}: {one.effect}" for name, one in found)
    return f"left in the environment from debugging, and no figure under it counts: {effects}; unset {' '.join(name for name, _ in found)}"


@dataclass(frozen=True)
class Setting:
    """One setting. `flag`, `variable` and `ini` are its names in the three places; empty where it has none."""

    option: str  # name in config.option, which exists where its plugin is loaded
    flag: str
    why: str  # its effect, and what to do instead
    variable: str = ""
    ini: str = ""
    off: tuple[str, ...] = ()  # additional values with which it has no effect
    is_of_several: bool = False  # harmless in a world of one


_TIMEOUT = "pytest-timeout would end one rank alone: leave out {}; use the deadline marker or deadline_s of the profile"
_RERUN = "{} would run a validation until it passes: leave it out; repeats are announced and recorded by the suite itself"
_REPEAT = "{} would multiply the validations, and no worker knows the copies: leave it out; --confirm=N measures a missed limit again"
_SHARE = "{} would share out an acceptance run, in which every rank runs every validation: leave it out"
_XDIST = "pytest-xdist may not share out an acceptance run, every rank runs every validation: leave out -n and --dist"
SETTINGS = (
    Setting("numprocesses", "-n", _XDIST),
    Setting("dist", "--dist", _XDIST),
    Setting("looponfail", "--looponfail", _XDIST),
    Setting("workers", "--workers", _SHARE, ini="workers"),  # pytest-parallel
    Setting("tests_per_worker", "--tests-per-worker", _SHARE, ini="tests_per_worker"),
    Setting("parallel_threads", "--parallel-threads", _SHARE, off=("1",)),  # pytest-run-parallel
    Setting("iterations", "--iterations", _REPEAT, off=("1",)),
    Setting("forever", "--forever", _REPEAT),
    Setting("forked", "--forked", "{} would run validations in processes of its own: leave it out; each has a worker already"),
    Setting("count", "--count", _REPEAT, off=("1",)),  # pytest-repeat
    Setting("hours", "--hours", _REPEAT),  # pytest-stress
    Setting("minutes", "--minutes", _REPEAT),
    Setting("seconds", "--seconds", _REPEAT),
    Setting("leaks", "-R", _REPEAT),  # pytest-leaks
    Setting("flake_finder_enable", "--flake-finder", _REPEAT),
    Setting("reruns", "--reruns", _RERUN, ini="reruns"),  # pytest-rerunfailures
    Setting("force_reruns", "--force-reruns", _RERUN),
    Setting("max_suite_reruns", "--max-suite-reruns", _RERUN),
    Setting("retries", "--retries", _RERUN, ini="retries"),  # pytest-retry
    Setting("force_flaky", "--force-flaky", _RERUN),
    Setting("timeout", "--timeout", _TIMEOUT, variable="PYTEST_TIMEOUT", ini="timeout", is_of_several=True),
    Setting("session_timeout", "--session-timeout", _TIMEOUT, ini="session_timeout", is_of_several=True),
)
_EXIT_ON_TIMEOUT = ("faulthandler_exit_on_timeout", "faulthandler_timeout")  # of pytest itself, from 9.0 on


def forbidden_settings(config: pytest.Config, world_size: int, environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Yield a sentence for each setting that is on, with the place where it is: command line, environment or ini value."""
    for setting in SETTINGS:
        if not hasattr(config.option, setting.option) or (setting.is_of_several and world_size == 1):
            continue
        variable, ini = environ.get(setting.variable), _ini(config, setting.ini) if setting.ini else None
        places = (
            (getattr(config.option, setting.option), setting.flag),
            (variable, f"{setting.variable}={variable} of the environment"),
            (ini, f"the ini value {setting.ini}={ini} (or -o)"),
        )
        value, place = next(((value, place) for value, place in places if value not in {None, ""}), (None, ""))
        if _is_on(value) and str(value) not in setting.off:
            yield setting.why.format(place)
    if world_size > 1 and all(_is_on(_ini(config, name)) for name in _EXIT_ON_TIMEOUT):
        yield f"{_EXIT_ON_TIMEOUT[0]} would end one rank alone: leave it out; use the deadline marker or deadline_s of the profile"


def _is_on(value: object) -> bool:
    return str(value).strip().lower() not in _OFF


def _ini(config: pytest.Config, name: str) -> object:
    try:
        return config.getini(name)
    except (KeyError, ValueError):
        return None  # no plugin that is loaded has it


def refuse_inside_a_worker(environ: Mapping[str, str] = os.environ) -> None:
    """Refuse a run that a validation starts: it would answer for its own rank. Raises pytest.UsageError."""
    if _IN_A_WORKER in environ:
        raise pytest.UsageError(
            f"this pytest was started by a validation ({_IN_A_WORKER} is set): an acceptance run inside an acceptance run "
            "would answer in its place; start it from a shell of its own"
        )


_UNKNOWN = "unrecognized arguments: "  # argparse
_OF_THE_PROGRAM = {"--ranks": " of pytest: it belongs to `gpu-acceptance run`; torchrun takes --nproc-per-node=N"}
_ARGUMENT = re.compile(r"argument (?P<names>\S+): (?P<fault>.+)", re.DOTALL)
_MOST_HOSTS = 8  # in one line
_VISIBLE, _MOST_SEEN = "CUDA_VISIBLE_DEVICES", 100  # characters
_NOT_TO_OVERRIDE = {
    *("python_files", "python_functions", "python_classes", "testpaths", "norecursedirs", "addopts"),
    *("filterwarnings", "pythonpath", "usefixtures"),
}


def find_refusal(config: pytest.Config, world_size: int) -> str | None:
    """Return the first reason why this pytest may not run the acceptance, or None."""
    return next(_reasons(config, world_size), None)


def _reasons(config: pytest.Config, world_size: int) -> Iterator[str]:
    option: Callable[[str], object] = lambda name: getattr(config.option, name, None)  # noqa: E731
    has = config.pluginmanager.hasplugin
    conftest = next(one for one in config.pluginmanager.get_plugins() if PLUGIN in (getattr(one, "pytest_plugins", None) or []))
    suite = Path(str(conftest.__file__)).parent
    if config.rootpath != suite or config.inipath is None:  # the suite's own settings are beside the conftest that names the plugin
        taken = f"pytest took {config.rootpath} ({config.inipath or 'no configuration file'}) for the suite's root, not {suite}"
        moved = [(name, value) for name, value in pairwise(config.invocation_params.args) if has_value(name) and not value.startswith("-")]
        todo = "write options as --option=VALUE (a path after a blank moves the root) and name acceptance/"
        yield f"{taken}: {f'write {moved[0][0]}={moved[0][1]}, without the blank' if moved else todo}"
    if has("randomly") or option("random_order_bucket") not in {None, ""} or option("random_order"):
        yield "a random order differs between ranks: add -p no:randomly (or -p no:random_order)"
    overridden = sorted({str(text).split("=")[0] for text in getattr(config.option, "override_ini", None) or ()} & _NOT_TO_OVERRIDE)
    if overridden:
        yield f"-o {overridden[0]}=... would change what is collected or how: leave it out; the suite's own settings hold"
    yield from forbidden_settings(config, world_size)
    if option("htmlpath"):
        yield f"--html={option('htmlpath')}: pytest-html counts passes and knows no verdict: leave it out, each run writes report.html"
    for name in ("setupplan", "setuponly", "setupshow"):
        if option(name):
            option_name = name.replace("setup", "--setup-")
            yield f"{option_name} shows fixtures, and none runs in this process: leave it out; --plan shows what would run"
    if option("usepdb") and world_size > 1:
        yield "--pdb would stop one rank alone: use it in a world of one"


def find_mismatch(identities: list[RankIdentity], declared_gpus: int | None) -> str | None:
    """Return why these ranks cannot be a job: two ranks for one GPU, or another number than `--gpus` declares."""
    for identity in identities:
        if identity.num_gpus and identity.local_world_size > identity.num_gpus:
            return (
                f"{identity.local_world_size} ranks on {identity.host}, which has {identity.num_gpus} GPUs: start one rank per GPU "
                "(--nproc-per-node gpu)"
            )
        if declared_gpus is not None and identity.local_world_size != declared_gpus:
            return f"--gpus={declared_gpus} declares that many GPUs of each node, but {identity.host} has {identity.local_world_size} ranks"
        if declared_gpus is not None and declared_gpus > identity.num_gpus:
            return f"--gpus={declared_gpus}, but {identity.host} has {identity.num_gpus} GPUs"
    return next(filter(None, map(_see_their_own_alone, by_node(identities).values())), None)


def _see_their_own_alone(ranks: list[RankIdentity]) -> str | None:
    """Return why the ranks of a node cannot be a job: each sees fewer GPUs than there are ranks, and not the same ones."""
    shown = [", ".join(sorted(gpu.uuid for gpu in one.gpus)) for one in ranks]  # one each, where Slurm gives each rank one
    visible = [one.environment.get(_VISIBLE, "") for one in ranks]
    for what, texts in (("NVML shows", shown), (f"{_VISIBLE} is", visible)):
        seen = [text if len(text.split(",")) < ranks[0].local_world_size else "" for text in texts]
        other = next((number for number, text in enumerate(seen) if text != seen[0]), 0)
        if all(seen) and other:
            differing = " and ".join(f"{what} {one_line(seen[number][:_MOST_SEEN])} on rank {ranks[number].rank}" for number in (0, other))
            todo = "each rank wants to see all GPUs of its node; srun: --gpus-per-node, no --gpus-per-task or --gpu-bind"
            return f"{differing} of {ranks[0].host}: {todo}"
    return None


def find_misfit(identities: list[RankIdentity], profile: Profile, expected_nodes: int | None, *, named: bool) -> str | None:
    """Return why nodes and profile do not fit, or None. `named`: by --hardware.

    More nodes than `--expect-nodes` are refused: one of them is a stranger. Fewer are judged, and the run is INCOMPLETE. A GPU is never
    judged as a CPU, or as another GPU.
    """
    first, num_nodes = identities[0], len({identity.node for identity in identities})
    seen = first.gpu.name if first.gpu else None
    if expected_nodes is not None and num_nodes > expected_nodes:
        hosts = list(dict.fromkeys(identity.host for identity in identities))
        return f"--expect-nodes={expected_nodes}, and {num_nodes} nodes take part: {first_of(hosts, _MOST_HOSTS)}"
    if profile.name == "cpu" and first.num_gpus:
        hint = "leave --hardware out" if first.gpus else f"is its driver loaded? NVML shows none of them ({first.nvml_problem})"
        return f"the cpu profile is for machines without GPUs; the PCI bus or NVML shows {first.num_gpus} on {first.host}: {hint}"
    if named and profile.name != "cpu" and not profile.is_for(seen, first.gpu.nvlink_to if first.gpu else ""):
        found = f"has {seen!r}" if seen else "has no GPU that NVML shows"
        return f"--hardware={profile.name} is for {profile.device!r}, but rank 0's machine ({first.host}) {found}"
    if other := profile.find_other_node([(identity.host, identity.num_gpus) for identity in identities]):
        return other
    if (nobody := drill_on_nobody(profile.parameters, len(identities))) or num_nodes > 1:
        return nobody
    is_localising = profile.parameters.get(LOCALISE_ASKED) is True  # by option or by a file
    return f"--localise compares nodes, and this job has {num_nodes}; it wants at least 2" if is_localising else None


def find_nvlink_beside_cards(settings: Settings, job: Job, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return why the network that --fabric names is not between these nodes, or None.

    NCCL takes NVLink wherever it joins nodes, and limits of cards would reject sound ones.
    """
    if settings.fabric in (None, NO_FABRIC) or job.num_nodes < 2 or environ.get("NCCL_MNNVL_ENABLE") == "0":
        return None
    match, network = fabrics(settings.profiles).get(settings.fabric), job.fabric_class
    if (match and match.fabric and match.fabric.link == "NVLink") or not network or not network.is_joined_by_nvlink:
        return None
    return (
        f"--fabric={settings.fabric} is for nodes that only a network joins, and NVLink joins some of these ({network}); "
        "test each NVLink domain without --fabric, and the network with one node of each, or with NCCL_MNNVL_ENABLE=0"
    )


def usage_mistakes(parser: pytest.Parser) -> list[str]:
    """Return a line for each mistake that pytest has just found in its command line."""
    error = sys.exception()
    text = str(error) if isinstance(error, pytest.UsageError) else ""
    if not text.startswith("usage: "):
        return []
    message = text.partition(": error: ")[2].partition("\n  ")[0].strip()
    if not message.startswith(_UNKNOWN):
        found = _ARGUMENT.fullmatch(message)
        if not found:
            return [" ".join(message.split())]
        name, fault = found["names"].split("/")[-1], " ".join(found["fault"].split())
        if name in NAMES:
            return [f"{name}: no value; write {name}=VALUE" if has_value(name) else f"{name} takes no value"]
        return [f"{name}: {fault}"]
    # pytest has no public list of its own and of other plugins' options
    groups = [*getattr(parser, "_groups", ()), *filter(None, [getattr(parser, "_anonymous", None)])]
    known = [*NAMES, *(name for group in groups for option in group.options for name in option.names())]
    mistakes = []
    for argument in message.removeprefix(_UNKNOWN).split():
        name = argument.partition("=")[0]
        if name.startswith("-"):
            hint = _OF_THE_PROGRAM.get(name) or did_you_mean(name, known) or "; --help lists all"
            mistakes.append(f"{argument.removesuffix('=')}: unknown option{hint}")
    return mistakes


def refuse_missing_paths(config: pytest.Config) -> None:
    """Raise pytest.UsageError, with a line for each file or folder of the command line that does not exist."""
    folder = config.rootpath / FOLDER
    lines = []
    for name in [] if config.option.pyargs else [argument.partition("::")[0] for argument in config.args]:
        if not (config.invocation_params.dir / name).exists():
            names = [FOLDER, *(f"{FOLDER}/{path.name}" for path in sorted(folder.glob("*.py")))]
            lines.append(f"{name}: no such file or folder{did_you_mean(name.rstrip('/'), names)}")
    if lines:
        raise pytest.UsageError(*lines)
