"""`judge` holds figures that somebody else measured against the limits of a run, without running anything."""

import argparse
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from gpu_acceptance.base.text import plural, visible
from gpu_acceptance.cli import arguments
from gpu_acceptance.cli.arguments import INCOMPLETE, NOTHING_RAN, REJECTED, Verbs, existing_file, whole_number
from gpu_acceptance.cli.devices import WIDTH, Column, table
from gpu_acceptance.cli.figure_file import SIZES, Context, read_figures
from gpu_acceptance.run.suite import FOLDER, profiles_of, suite_for
from gpu_acceptance.thresholds.fabrics import NO_FABRIC, fabrics, fabrics_beside, refuse_unknown_fabric
from gpu_acceptance.thresholds.known_metrics import KnownMetrics, known_metrics
from gpu_acceptance.thresholds.limit import Profile, is_number, show, source_kind, with_unit
from gpu_acceptance.thresholds.profile import load_profile, read_profiles
from gpu_acceptance.verdict.replay import COLLECTIVES, Answer, Result, Shape, Why, replay
from gpu_acceptance.verdict.verdict import fabric_text

_MOST_NODES, _MOST_GPUS = 9_999, 64
_NONE = "-"


def add_verb(verbs: Verbs) -> None:
    """Add `judge`."""
    judge = arguments.add_verb(verbs, "judge", _judge)
    judge.add_argument("file", metavar="FILE", type=existing_file, help="a CSV table of figures, or the output of nccl-tests")
    judge.add_argument("--hardware", metavar="NAME", required=True, help="the profile of the GPUs, as in h200-sxm")
    judge.add_argument("--nodes", metavar="N", required=True, type=whole_number(_MOST_NODES), help="the nodes of the job that was measured")
    judge.add_argument("--fabric", metavar="NAME", help="the network between several nodes, as in 8x400-ib; none: its limits are left out")
    gpus = "the GPUs of each node (default: those for which the fabric has limits)"
    judge.add_argument("--gpus-per-node", metavar="N", type=whole_number(_MOST_GPUS), help=gpus)
    judge.add_argument("--collective", choices=COLLECTIVES, metavar="COLLECTIVE", help="of an output of nccl-tests that does not name it")
    arguments.add_overlays(judge)


def _judge(options: argparse.Namespace) -> int:
    """Judge figures that somebody else measured, without running anything.

    FILE is a CSV table with the columns metric, value, unit, and perhaps size (of a message: 4GiB), node and gpu; or the output of
    nccl-tests. A metric is one of this suite (nccl.all_reduce.busbw_internode), or a collective (all_reduce) with its busbw, not its
    algbw. Each figure would hold or would miss its limit, has no limit, or cannot be true. A rate at another size than the limit's is
    never interpolated: it is judged where the answer is certain, and the reason is printed. Spreads are not judged, nor a single GPU
    against its peers. The verdict is never ACCEPTED, and the exit code never 0. Exit code 1: a figure would miss; 5: all would hold, and
    nothing ran; 6: a figure has no limit, or cannot be true.
    """
    suite = suite_for(Path.cwd())
    directory = profiles_of(suite)
    fabric = options.fabric if options.fabric and options.nodes > 1 else ""
    of_fabric = _gpus_of_fabric(options.fabric, directory)
    num_gpus = options.nodes * (options.gpus_per_node or of_fabric or 1)  # a job without a number is refused below
    profile = load_profile(options.hardware, directory, options.limits, suite / FOLDER, fabric, num_gpus)
    if options.fabric:
        refuse_unknown_fabric(options.fabric, options.hardware, directory)
    shape = _shape(options, directory, of_fabric)
    shipped = known_metrics(read_profiles(directory))
    limited = {metric: limit.unit for metric, limit in profile.limits.items()}
    context = Context(KnownMetrics({**shipped.limited, **limited}, shipped.figures, frozenset()), profile, shape)
    figures, is_sweep = read_figures(options.file, context, options.collective)
    answers = list(replay(figures, profile, shape))
    told = _telling(answers) if is_sweep else answers
    print(visible("\n".join(_lines(told, len(answers), profile, shape, str(options.file)))))
    return _exit_code(answer.result for answer in told)


def _gpus_of_fabric(name: str | None, directory: Path) -> int | None:
    """Return the GPUs of a node for which a fabric has limits."""
    match = fabrics(directory).get(name or "")
    return match.fabric.gpus if match and match.fabric else None


def _shape(options: argparse.Namespace, directory: Path, of_fabric: int | None) -> Shape:
    """Return the job that was measured. Raises ValueError where the options do not tell it."""
    known = ", ".join([*fabrics_beside(options.hardware, directory), NO_FABRIC])
    if options.nodes > 1 and not options.fabric:
        raise ValueError(f"--nodes={options.nodes}: name the network between them with --fabric=NAME; for {options.hardware}: {known}")
    if not (gpus := options.gpus_per_node or of_fabric):
        raise ValueError("add --gpus-per-node=N: limits of collectives differ by it, and no fabric tells it")
    return Shape(options.nodes, gpus, of_fabric)


def _exit_code(results: Iterator[Result]) -> int:
    """Return the code of the worst answer. No answer is 0: a gate that asks for 0 must not take it for an acceptance."""
    found = set(results)
    if Result.MISSES in found:
        return REJECTED
    return NOTHING_RAN if found == {Result.HOLDS} else INCOMPLETE


def _telling(answers: Sequence[Answer]) -> list[Answer]:
    """Return the answers of sweeps over sizes that say something: most sizes have no limit. Of a collective without any, its largest."""
    judged = {answer.metric for answer in answers if answer.why is Why.JUDGED}
    told = list[Answer]()
    for _, group in groupby(answers, key=lambda answer: answer.figures[0].name):
        of_collective = list(group)
        decided = [answer for answer in of_collective if answer.result is not Result.NO_LIMIT]
        telling = [answer for answer in decided if answer.why is not Why.REACHED_EARLIER or answer.metric not in judged]
        told += telling or [max(of_collective, key=lambda answer: answer.worst.num_bytes or 0)]
    return told


# --- words ----------------------------------------------------------------------------------------------------------------------


def _lines(answers: Sequence[Answer], num_answers: int, profile: Profile, shape: Shape, file: str) -> Iterator[str]:
    network = f", {fabric_text(profile.fabric)}" if shape.num_nodes > 1 else ""
    nodes = f"{plural(shape.num_nodes, 'node')} of {plural(shape.gpus_per_node, 'GPU')}"
    yield f"{profile.name}{network}, {nodes} | {file}"
    yield from table(_COLUMNS, answers, _figure)
    for answer in answers:
        if reason := _reason(answer, profile, shape):
            yield from textwrap.wrap(reason, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    if left_out := num_answers - len(answers):
        yield f"{plural(left_out, 'size')} left out, from which nothing follows"
    counts = Counter(answer.result for answer in answers)
    listed = ", ".join(f"{counts[result]} {_COUNTED.get(result, result.value)}" for result in Result if counts[result])
    yield f"judged from figures of others: {listed}; nothing was run, so nothing is accepted"


_COUNTED = {Result.NO_LIMIT: "without a limit"}


def _figure(answer: Answer) -> str:
    first = answer.figures[0]
    message = f", {_size(first.num_bytes)}" if first.num_bytes else ""
    return f"{answer.metric if answer.why is Why.JUDGED else first.name}{message}"


def _size(num_bytes: int) -> str:
    """Return `4 GiB` or `16 GB`: the largest unit of which a size is a whole number."""
    size, unit = max((size, unit) for unit, size in SIZES.items() if num_bytes % size == 0)
    return f"{num_bytes // size} {unit}"


def _value(answer: Answer) -> str:
    several = f", worst of {len(answer.figures)}" if len(answer.figures) > 1 else ""
    return f"{with_unit(show(answer.worst.value), answer.worst.unit)}{several}"


def _limit(answer: Answer) -> str:
    unit, judged = answer.worst.unit, answer.judgement
    if answer.bound is None:
        return with_unit(judged.need, "" if judged.bound == "peers" else unit) if judged and judged.need else _NONE
    bound = with_unit(show(answer.bound), unit)
    return f">= {bound} at {_size(answer.judged_bytes)}" if answer.judged_bytes else f"possible: {bound}"


def _source(answer: Answer) -> str:
    is_of_bound = answer.why not in (Why.CEILING, Why.NO_LIMIT)
    return source_kind(answer.limit.source) if answer.limit and is_of_bound else _NONE


def _reason(answer: Answer, profile: Profile, shape: Shape) -> str:
    """Return why the answer is what it is: what a run would say, or what follows from another size. Empty for what holds as it is."""
    if answer.judgement:
        return "" if answer.result is Result.HOLDS else answer.judgement.message
    fabric, gpus = fabric_text(profile.fabric), plural(shape.gpus_per_node, "GPU")
    text = _at_other_size(answer) if answer.judged_bytes else _WORDS[answer.why].format(fabric=fabric, wanted=shape.fabric_gpus, gpus=gpus)
    remedy = answer.limit.remedy if answer.limit and answer.result is Result.MISSES else ""
    return f"{_figure(answer)}: {text}{f'; to do: {remedy}' if remedy else ''}"


_WORDS = {
    Why.CEILING: "more than this hardware can carry this way: the bytes went another way, or the figure is of something else",
    Why.OTHER_SIZE: "no size of this collective has a limit in such a job",
    Why.UNKNOWN_SIZE: "a rate depends on the size of the message, which is not known",
    Why.OTHER_NODES: "{fabric} has limits for nodes of {wanted} GPUs, and these have {gpus}",
    Why.NOT_OURS: "no validation measures it: one link can be fast while collectives are slow",
}


def _at_other_size(answer: Answer) -> str:
    given, judged_bytes, bound = answer.worst, answer.judged_bytes, answer.bound
    assert judged_bytes is not None
    assert bound is not None
    assert given.num_bytes is not None
    assert is_number(given.value)
    message, need = f"a message of {_size(judged_bytes)}", f"needs {with_unit(show(bound), given.unit)}"
    at_most = with_unit(show(given.value * judged_bytes / given.num_bytes, 3), given.unit)
    return {
        Why.REACHED_EARLIER: f"{message} is not slower, and {need}",
        Why.MISSED_LATER: f"{message} is not faster, and {need}",
        Why.TIME: f"{message} takes no less time, so it has at most {at_most}, and {need}",
        Why.SIZE_EFFECT: f"{message} {need}, more than twice as much; from 1 GB on no public curve of a sound machine rises so far",
        Why.OTHER_SIZE: f"no limit at this size, and nothing follows for the nearest that is judged: {message} {need}",
    }[answer.why]


_COLUMNS: tuple[Column[Answer], ...] = (
    Column("figure", 52, _figure),
    Column("value", 32, _value),
    Column("limit", 40, _limit),
    Column("source", 9, _source),
    Column("result", 14, lambda answer: answer.result.value),
)
