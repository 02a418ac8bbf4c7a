"""The options of a run: their declarations, their values, and what else a run is given. All is checked before any GPU is touched."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from gpu_acceptance.base.budget import Budget, read_budget, seconds_of
from gpu_acceptance.base.text import did_you_mean
from gpu_acceptance.control.rank import JOIN_S
from gpu_acceptance.folder.files import RUN_ID
from gpu_acceptance.run.suite import FOLDER, is_installed, profiles_of
from gpu_acceptance.thresholds.limit import DEFAULT_LEVEL, LEVELS, SOAK
from gpu_acceptance.verdict import busy
from gpu_acceptance.worker.options import Option, Paths, Reader, name_of, not_allowed, option, path_of

_MOST = 9_999  # of what is counted: more is a typing error


def _overlay(name: str, text: str, folder: Path) -> Path:
    """Read a path that is relative to `folder`; a bare name stays as it is, for the folder of the profiles."""
    path = folder / name_of("a file, or the name of a shipped overlay")(name, text, folder)
    try:
        is_there = path.exists()
    except OSError as error:
        raise pytest.UsageError(f"{name}={text}: cannot be read: {error.strerror}") from None
    return path if is_there or "/" in text or text.endswith(".yaml") else Path(text)


def _checked(read: Callable[[str], Any], allowed: str) -> Reader:
    """Return the reader of values that `read` turns into something; `allowed` says which ones."""

    def checked(name: str, text: str, _folder: Path) -> Any:
        if not (value := read(text)):
            raise not_allowed(name, text, allowed)
        return value

    return checked


def _waiver(text: str) -> tuple[str, str] | None:
    glob, _, reason = text.partition("=")
    return (glob.strip(), reason.strip()) if glob.strip() and reason.strip() else None


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(_MOST)) else 0


def _count(meaning: str) -> Reader:
    return _checked(_number, f"1 to {_MOST} ({meaning})")


def _level(name: str, text: str, _folder: Path) -> str:
    if text not in LEVELS:
        raise not_allowed(name, text, f"{', '.join(LEVELS)}{did_you_mean(text, LEVELS)}")
    return text


_TIME = "more than 0 seconds, as 90, 90s, 15m or 2h"
_amount, _judged, _machines = (partial(option, one) for one in ("How much runs", "What it is judged by", "Which machines"))
_left = partial(option, "What a run leaves")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Values of the options, and the folders that follow from them."""

    level: str = _amount(
        "--level",
        "LEVEL",
        f"how much runs: {', '.join(LEVELS)}; default: {DEFAULT_LEVEL}",
        "`health` reads what the machines report, `quick` adds short loads, `full` is the acceptance, `soak` adds hours of load. "
        "[Validations](validations.md) lists what each level runs; the table `levels` of a profile decides it. "
        "A verdict at another level than `full` says so: `ACCEPTED (quick)`.",
        default=DEFAULT_LEVEL,
        read=_level,
    )
    soak_s: float | None = _amount(
        "--soak",
        "TIME",
        "duration of the mixed load; sets level soak; seconds, 30m or 4h; default: as the profile says",
        "Level `soak` is all of `full`, the remaining subjects, and then this long under a mixed load. `--level=soak` alone takes the "
        "duration of the profile, which is an hour. The verdict names it: `ACCEPTED (soak of 4 h)`. See [soak](methods.md#soak).",
        read=_checked(seconds_of, _TIME),
    )
    phases: tuple[str, ...] = _amount(
        "--phase",
        "NAME",
        "run the validations of this phase alone; the run is INCOMPLETE",
        "`--plan` shows the phases in the order of a run, and which validations they have. "
        "[From a bare cluster to a signature](handoff.md) says what each answers.",
        default=(),
        read=name_of("the name of a phase"),
        repeats=True,
    )
    drill: bool = _amount(
        "--drill",
        None,
        "plant faults, each in the validation that must find it; such a run accepts nothing",
        "Validations without a fault of their own are left out. `gpu-acceptance drill` runs it, and says which limits found what.",
        default=False,
    )
    localise: bool = _amount(
        "--localise",
        None,
        "on several nodes, find the node, rail or path that is slow; at each level",
        "A tournament of pairs of nodes: [localise](methods.md#localise).",
        default=False,
    )
    confirm: int = _amount(
        "--confirm",
        "N",
        "measure a missed limit N times more, each time in new workers; the worst attempt counts",
        "Where a limit compares GPUs with each other, each GPU's best attempt counts: only one that is always slow misses it.",
        default=0,
        read=_count("more measurements of a missed limit"),
    )
    budget: Budget | None = _amount(
        "--budget",
        "TIME",
        "time for the whole run, report included: seconds, 30m or 2h; default: until the Slurm job ends",
        "A phase that does not fit as a whole is not begun, nor what follows it: the run is INCOMPLETE, and names them.",
    )
    measure_only: bool = _amount(
        "--measure-only",
        None,
        "run and record everything, judge nothing; the run is INCOMPLETE",
        "Also for a GPU that no profile names: its figures are the material for one.",
        default=False,
    )
    plan: bool = _amount(
        "--plan",
        None,
        "print what would run, its limits and its time; touches no GPU",
        "The plan is that of the whole node. `make plan` prints the same. Both end with 0; pytest itself ends with 5, since nothing ran.",
        default=False,
    )
    hardware: str | None = _judged(
        "--hardware",
        "NAME",
        "profile to judge by; refused where the machine has other GPUs",
        "Without it the name of the GPU chooses the profile. `gpu-acceptance profiles` lists them; "
        "[The limits](../thresholds/README.md) describes them.",
        read=name_of("the name of a profile"),
    )
    fabric: str | None = _judged(
        "--fabric",
        "NAME",
        "network between nodes to judge by; `none`: only by overlays; default: what the network cards show",
        "On several nodes the ports beside the GPUs choose it, as the name of the GPU chooses the profile: `gpu-acceptance fabric` prints "
        "which, and [Several nodes](fabrics.md) lists them. On one node it asks for nothing. A network of cards is refused where NVLink "
        "joins nodes, unless `NCCL_MNNVL_ENABLE=0`.",
        read=name_of("the name of a fabric"),
    )
    limits: tuple[Path, ...] = _judged(
        "--limits",
        "FILE",
        "overlay of limits",
        "The report shows every bound that an overlay changes, and the verdict names the overlay. A shipped overlay is named without "
        "its folder: `--limits=site-nvls-off`. [The limits](../thresholds/README.md#overlays) describes the format.",
        default=(),
        read=_overlay,
        repeats=True,
    )
    waive: tuple[tuple[str, str], ...] = _judged(
        "--waive",
        "METRIC-GLOB=reason",
        "accept without these limits; shown in the verdict",
        'Example: `--waive="hbm.read.*=agreed with the vendor on 2026-11-20"`. The figures are still measured. The verdict counts the '
        "waivers and the report gives each reason.",
        default=(),
        read=_checked(_waiver, "METRIC-GLOB=reason, as in --waive='hbm.read.*=agreed with the vendor on 2026-11-20'"),
        repeats=True,
    )
    contract: Path | None = _judged(
        "--contract",
        "FILE",
        "lines of a contract and the metrics that answer them; a missed line rejects",
        "The report says of each line whether it is met, missed or not tested. A line that was not tested makes the run INCOMPLETE. "
        "The format: [A contract, line by line](contract.md).",
        read=path_of("a file with the lines of a contract"),
    )
    declared_gpus: int | None = _machines(
        "--gpus",
        "N",
        "test only N GPUs per node; default: every GPU must have a rank",
        "The verdict says it: `ACCEPTED for 4 of 8 GPUs`. Without the option a GPU without a rank makes the run INCOMPLETE.",
        read=_count("GPUs of each node under test"),
    )
    expected_nodes: int | None = _machines(
        "--expect-nodes",
        "N",
        "expected number of nodes; fewer makes the run INCOMPLETE, more is an error",
        read=_count("nodes that take part"),
    )
    site: Path | None = _machines(
        "--site",
        "FILE",
        "expected nodes with their GPUs and racks; a node that differs fails by name",
        "A node that is missing, not declared, or has another number of GPUs fails. The format: [Which nodes there must be](site.md).",
        read=path_of("a file that says which nodes there must be"),
    )
    join_s: float = _machines(
        "--join-timeout",
        "TIME",
        f"how long ranks wait for each other at the start: seconds, 15m or 1h; default: {JOIN_S:g} s",
        "Give more where nodes are still being provisioned. Every 15 s a line says which ranks are missing.",
        default=JOIN_S,
        read=_checked(seconds_of, _TIME),
    )
    allow_busy: bool = _machines(
        "--allow-busy",
        None,
        "run on GPUs that other processes use as well; shown in the verdict",
        "Without it a run on a GPU that another process uses is refused. What was measured beside somebody else's load is worth less: "
        "the verdict line says it.",
        default=False,
    )
    paths: Paths = field(default_factory=Paths)
    report_dir: Path = _left(
        "--report-dir",
        "DIR",
        "folder of all runs; each makes its own folder in it; default: reports/ of the suite, or here where that is installed",
        "With `make accept` it is `REPORTS=DIR`. The files of a run: [Reports](../reports/README.md).",
        read=path_of("a folder"),
    )
    run_id: str | None = _left(
        "--run-id",
        "ID",
        "name of this run's folder; must not exist; default: start time and a random part",
        read=_checked(
            lambda text: RUN_ID.fullmatch(text) and text,
            "1 to 100 letters, digits, '.', '_' and '-', of which the first is a letter or digit",
        ),
    )
    tensorboard: bool = _left(
        "--tensorboard",
        None,
        "also write the run's curves for TensorBoard, into tensorboard/ of its folder",
        "The curves are losses and step times. Rank 0's Python needs the extra `tensorboard` (tensorboardX, not TensorBoard itself). "
        "`gpu-acceptance report build --tensorboard` makes them later from any run.",
        default=False,
    )
    profiles: Path
    suite: Path  # the folder of validations

    @property
    def waivers(self) -> dict[str, str]:
        """Reason by glob of the metrics that it waives."""
        return {**(busy.WAIVERS if self.allow_busy else {}), **dict(self.waive)}


def _declared(kind: type) -> Iterator[Option]:
    for one in fields(kind):
        if one.type is Paths:
            yield from _declared(Paths)
        elif "option" in one.metadata:
            yield one.metadata["option"]


OPTIONS = {title: tuple(options) for title, options in groupby(_declared(Settings), lambda one: one.group)}
_BY_NAME = {one.name: one for one in _declared(Settings)}
NAMES = tuple(_BY_NAME)


def has_value(name: str) -> bool:
    """Return True for an option of ours that takes a value."""
    return name in _BY_NAME and _BY_NAME[name].metavar is not None


def declare(options: Iterable[Option], add: Callable[..., object]) -> None:
    """Declare these to `add`, which takes what argparse's add_argument takes."""
    for one in options:
        if one.metavar is None:
            add(one.name, action="store_true", help=one.help)
        else:  # "append" also for an option that may be given once: a second value is an error that names both
            more = "; may be given several times" if one.repeats else ""
            add(one.name, metavar=one.metavar, action="append", default=[], help=f"{one.help}{more}")


def given(values: Mapping[str, object]) -> Iterator[str]:
    """Yield the options in these parsed values as `--option=VALUE`: after a blank pytest would take a path for its root."""
    for one in _BY_NAME.values():
        value = values.get(one.key)
        if value is True:
            yield one.name
        elif isinstance(value, list):
            yield from (f"{one.name}={text}" for text in value)


def read_settings(config: pytest.Config) -> Settings:
    """Read what the command line asks for. Raises pytest.UsageError over a value that is not allowed."""
    found, paths = _values(Settings, config), Paths(**_values(Paths, config))
    if (paths.lora_model is None) != (paths.lora_data is None):
        alone, other = ("--lora-data", "--lora-model=DIR") if paths.lora_model is None else ("--lora-model", "--lora-data=FILE")
        text = _text(_BY_NAME[alone], config)
        raise pytest.UsageError(f"{alone}={text}: a model is fine-tuned on data; name the other as well: {other}")
    if "soak_s" in found and found.setdefault("level", SOAK) != SOAK:
        soak = _text(_BY_NAME["--soak"], config)
        raise pytest.UsageError(f"--soak={soak} --level={found['level']}: --soak is level {SOAK}; leave one of them out")
    try:
        budget = read_budget(found.get("budget"), os.environ, time.time())
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    beside = config.invocation_params.dir if is_installed(config.rootpath) else config.rootpath
    derived = {
        "join_s": JOIN_S,
        "report_dir": beside / "reports",
        "profiles": profiles_of(config.rootpath),
        "suite": config.rootpath / FOLDER,
    }
    return Settings(**{**derived, **found, "paths": paths, "budget": budget})


def _values(kind: type, config: pytest.Config) -> dict[str, Any]:
    """Read the options of a dataclass; one that was not given is left out."""
    found: dict[str, Any] = {}
    for one in fields(kind):
        option, folder = one.metadata.get("option"), config.invocation_params.dir
        if option is None:
            continue
        if option.metavar is None:
            found[one.name] = getattr(config.option, option.key)
        elif option.repeats:
            found[one.name] = tuple(option.read(option.name, text, folder) for text in getattr(config.option, option.key))
        elif (text := _text(option, config)) is not None:
            found[one.name] = option.read(option.name, text, folder)
    return found


def _text(option: Option, config: pytest.Config) -> str | None:
    """Return the one value of an option as it was given."""
    values: list[str] = getattr(config.option, option.key)
    if len(values) > 1:
        raise pytest.UsageError(f"{option.name} is given {len(values)} times ({', '.join(values)}); allowed: once")
    return values[0] if values else None
