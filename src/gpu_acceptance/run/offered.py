"""The options that a run offers, and what is wrong with a command line that asks for others."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import pytest

from gpu_acceptance.base.text import did_you_mean
from gpu_acceptance.control.rank import JOIN_S
from gpu_acceptance.run.suite import FOLDER
from gpu_acceptance.thresholds.limit import DEFAULT_LEVEL, LEVELS

_UNKNOWN = "unrecognized arguments: "  # argparse
_OF_THE_PROGRAM = {"--ranks": " of pytest: it belongs to `gpu-acceptance run`; torchrun takes --nproc-per-node=N"}
_ARGUMENT = re.compile(r"argument (?P<names>\S+): (?P<fault>.+)", re.DOTALL)


@dataclass(frozen=True)
class Option:
    """One option. `details` is Markdown whose links start in docs/."""

    name: str
    metavar: str | None  # None: a switch
    help: str
    details: str = ""
    repeats: bool = False  # may be given several times


OPTIONS: dict[str, tuple[Option, ...]] = {
    "How much runs": (
        Option(
            "--level",
            "LEVEL",
            f"how much runs: {', '.join(LEVELS)}; default: {DEFAULT_LEVEL}",
            "`health` reads what the machines report, `quick` adds short loads, `full` is the acceptance, `soak` adds hours of load. "
            "[Validations](validations.md) lists what each level runs; the table `levels` of a profile decides it. "
            "A verdict at another level than `full` says so: `ACCEPTED (quick)`.",
        ),
        Option(
            "--soak",
            "TIME",
            "duration of the mixed load; sets level soak; seconds, 30m or 4h; default: as the profile says",
            "Level `soak` is all of `full`, the remaining subjects, and then this long under a mixed load. `--level=soak` alone takes the "
            "duration of the profile, which is an hour. The verdict names it: `ACCEPTED (soak of 4 h)`. See [soak](limits.md#soak).",
        ),
        Option(
            "--localise",
            None,
            "on several nodes, find the node, rail or path that is slow; at each level",
            "A tournament of pairs of nodes: [localise](limits.md#localise).",
        ),
        Option(
            "--confirm",
            "N",
            "measure a missed limit N times more, each time in new workers; the worst attempt counts",
            "Where a limit compares GPUs with each other, each GPU's best attempt counts: only one that is always slow misses it.",
        ),
        Option(
            "--budget",
            "TIME",
            "time for the whole run, report included: seconds, 30m or 2h; default: until the Slurm job ends",
            "A validation that no longer fits is not started, and the run is INCOMPLETE.",
        ),
        Option(
            "--measure-only",
            None,
            "run and record everything, judge nothing; the run is INCOMPLETE",
            "Also for a GPU that no profile names: its figures are the material for one.",
        ),
        Option(
            "--plan",
            None,
            "print what would run, its limits and its time; touches no GPU",
            "The plan is that of the whole node. `make plan` prints the same. Both end with 0; pytest itself ends with 5, since nothing "
            "ran.",
        ),
    ),
    "What it is judged by": (
        Option(
            "--hardware",
            "NAME",
            "profile to judge by; refused where the machine has other GPUs",
            "Without it the name of the GPU chooses the profile. `gpu-acceptance profiles` lists them; "
            "[The limits](../thresholds/README.md) describes them.",
        ),
        Option(
            "--limits",
            "FILE",
            "overlay of limits",
            "The report shows every bound that an overlay changes, and the verdict names the overlay. A shipped overlay is named without "
            "its folder: `--limits=site-nvls-off`. [The limits](../thresholds/README.md#overlays) describes the format.",
            repeats=True,
        ),
        Option(
            "--waive",
            "METRIC-GLOB=reason",
            "accept without these limits; shown in the verdict",
            'Example: `--waive="hbm.read.*=agreed with the vendor on 2026-11-20"`. The figures are still measured. The verdict counts the '
            "waivers and the report gives each reason.",
            repeats=True,
        ),
        Option(
            "--contract",
            "FILE",
            "lines of a contract and the metrics that answer them; a missed line rejects",
            "The report says of each line whether it is met, missed or not tested. A line that was not tested makes the run INCOMPLETE. "
            "The format: [A contract, line by line](contract.md).",
        ),
    ),
    "Which machines": (
        Option(
            "--gpus",
            "N",
            "test only N GPUs per node; default: every GPU must have a rank",
            "The verdict says it: `ACCEPTED for 4 of 8 GPUs`. Without the option a GPU without a rank makes the run INCOMPLETE.",
        ),
        Option(
            "--expect-nodes",
            "N",
            "expected number of nodes; fewer makes the run INCOMPLETE, more is an error",
        ),
        Option(
            "--site",
            "FILE",
            "expected nodes with their GPUs and racks; a node that differs fails by name",
            "A node that is missing, not declared, or has another number of GPUs fails. The format: [Which nodes there must be](site.md).",
        ),
        Option(
            "--join-timeout",
            "TIME",
            f"how long ranks wait for each other at the start: seconds, 15m or 1h; default: {JOIN_S:g} s",
            "Give more where nodes are still being provisioned. Every 15 s a line says which ranks are missing.",
        ),
        Option(
            "--allow-busy",
            None,
            "run on GPUs that other processes use as well; shown in the verdict",
            "Without it a run on a GPU that another process uses is refused. What was measured beside somebody else's load is worth less: "
            "the verdict line says it.",
        ),
    ),
    "Data and folders": (
        Option(
            "--checkpoint-dir",
            "DIR",
            "folder that all nodes share, for the checkpoints of subject checkpoint",
            "About 3.6 GB are written. On one node the default is beside the reports; on several nodes the subject needs this option. "
            "See [checkpoint](limits.md#checkpoint).",
        ),
        Option(
            "--shared-dir",
            "DIR",
            "test this folder: is it the same on all nodes, and how fast; at each level; its content stays",
            "How each property is tested: [Is it the same folder on all nodes?](shared-fs.md)",
        ),
        Option(
            "--data-dir",
            "DIR",
            "train on your own data, the same on every node: DIR/tokens.npy, DIR/images/CLASS/FILE, or both",
            "Without it training data is synthetic. Images need the extra `images` (Pillow) on every node. "
            "See [train_single](limits.md#train_single).",
        ),
        Option(
            "--lora-model",
            "DIR",
            "checkpoint in Hugging Face format to fine-tune, the same on every node; with --lora-data",
            "The checkpoint is fine-tuned on the dialogues, and is asked before and after. See "
            "[A checkpoint and data of your own](fine-tuning.md).",
        ),
        Option(
            "--lora-data",
            "FILE",
            "dialogues with function calls, JSON lines, the same on every node; with --lora-model",
            "In chat format, or in that of glaive-function-calling-v2.",
        ),
    ),
    "What a run leaves": (
        Option(
            "--report-dir",
            "DIR",
            "folder of all runs; each makes its own folder in it; default: reports/ of the suite, or here where that is installed",
            "With `make accept` it is `REPORTS=DIR`. The files of a run: [Reports](../reports/README.md).",
        ),
        Option("--run-id", "ID", "name of this run's folder; must not exist; default: start time and a random part"),
        Option(
            "--tensorboard",
            None,
            "also write the run's curves for TensorBoard, into tensorboard/ of its folder",
            "The curves are losses and step times. Rank 0's Python needs the extra `tensorboard` (tensorboardX, not TensorBoard itself). "
            "`gpu-acceptance report build --tensorboard` makes them later from any run.",
        ),
    ),
}


NAMES = tuple(option.name for options in OPTIONS.values() for option in options)


def has_value(name: str) -> bool:
    """Whether an option of ours takes a value."""
    return any(option.name == name and option.metavar for options in OPTIONS.values() for option in options)


def add_options(parser: pytest.Parser) -> None:
    """Declare all of them to pytest."""
    group = parser.getgroup("gpu-acceptance", "acceptance of a GPU cluster (write every option as --option=VALUE)")
    for options in OPTIONS.values():
        declare(options, group.addoption)


def declare(options: Iterable[Option], add: Callable[..., object]) -> None:
    """Declare these to `add`, which takes what argparse's add_argument takes."""
    for option in options:
        if option.metavar is None:
            add(option.name, action="store_true", help=option.help)
        else:  # of one that is given twice no value is lost: settings.py tells it
            more = "; may be given several times" if option.repeats else ""
            add(option.name, metavar=option.metavar, action="append", default=[], help=f"{option.help}{more}")


def given(values: Mapping[str, object]) -> Iterator[str]:
    """The options that these parsed values hold, as `--option=VALUE`: after a blank pytest would take a path for its root."""
    for option in (option for options in OPTIONS.values() for option in options):
        value = values.get(option.name.removeprefix("--").replace("-", "_"))
        if value is True:
            yield option.name
        elif isinstance(value, list):
            yield from (f"{option.name}={one}" for one in value)


def usage_mistakes(parser: pytest.Parser) -> list[str]:
    """One line for each mistake that pytest has just found in its command line; none where there is no such error."""
    error = sys.exception()
    text = str(error) if isinstance(error, pytest.UsageError) else ""
    if not text.startswith("usage: "):
        return []
    message = text.partition(": error: ")[2].partition("\n  ")[0].strip()
    return list(_unknown(message.removeprefix(_UNKNOWN), parser)) if message.startswith(_UNKNOWN) else [_wrong(message)]


def _unknown(arguments: str, parser: pytest.Parser) -> Iterator[str]:
    for argument in arguments.split():
        name, value = argument.partition("=")[::2]
        if name.startswith("-"):
            hint = _OF_THE_PROGRAM.get(name) or did_you_mean(name, _names(parser)) or "; --help lists all"
            yield f"{argument}: unknown option{hint}" if value else f"{name}: unknown option{hint}"


def _wrong(message: str) -> str:
    """`--gpus: no value; write --gpus=VALUE`."""
    found = _ARGUMENT.fullmatch(message)
    if not found:
        return " ".join(message.split())
    name, fault = found["names"].split("/")[-1], " ".join(found["fault"].split())
    if name in NAMES:
        return f"{name}: no value; write {name}=VALUE" if has_value(name) else f"{name} takes no value"
    return f"{name}: {fault}"


def refuse_missing_paths(config: pytest.Config) -> None:
    """Raises pytest.UsageError, with a line for each file or folder of the command line that is not there."""
    if config.option.pyargs:
        return
    lines = [_missing(argument, config) for argument in config.args]
    if any(lines):
        raise pytest.UsageError(*filter(None, lines))


def _missing(argument: str, config: pytest.Config) -> str:
    """`acceptance/test_hbn.py: no such file or folder; did you mean 'acceptance/test_hbm.py'?`, and nothing where it is there."""
    name = argument.partition("::")[0]
    if (config.invocation_params.dir / name).exists():
        return ""
    folder = config.rootpath / FOLDER
    names = [FOLDER, *(f"{FOLDER}/{path.name}" for path in sorted(folder.glob("*.py")))]
    return f"{name}: no such file or folder{did_you_mean(name.rstrip('/'), names)}"


def _names(parser: pytest.Parser) -> list[str]:
    """Our options and all others; those of pytest and of other plugins are in no public place."""
    groups = [*getattr(parser, "_groups", ()), *filter(None, [getattr(parser, "_anonymous", None)])]
    return [*NAMES, *(name for group in groups for option in group.options for name in option.names())]
