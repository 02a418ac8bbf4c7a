"""`results.json` -> `metrics.prom`: verdict, outcomes, figures and bounds for node_exporter's textfile collector.

It is valid in both formats: the Prometheus text format, which the collector reads (no timestamps, every type a gauge; `# EOF` is a comment
there), and OpenMetrics 1.0, which demands that last line. As many series as the suite has validations and limits, however many GPUs.
"""

from collections.abc import Iterable, Iterator

from gpu_acceptance.base.text import one_line
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Judgement
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.formatting import parse_moment
from gpu_acceptance.report.words import VERDICT
from gpu_acceptance.thresholds.contract import LineState
from gpu_acceptance.thresholds.values import is_number

METRICS = "metrics.prom"
_PREFIX = "gpu_acceptance"

Labels = dict[str, str]
Sample = tuple[Labels, float | int]


def build_metrics(record: RunRecord) -> str:
    """The file as text; a second series with the labels of an earlier one, which both formats forbid, is left out."""
    lines = [line for name, about, samples in _families(record) for line in _family(f"{_PREFIX}_{name}", about, samples)]
    return "".join(f"{line}\n" for line in [*lines, "# EOF"])


def _family(name: str, about: str, samples: Iterable[Sample]) -> Iterator[str]:
    series: dict[str, float | int] = {}
    for labels, value in samples:
        series.setdefault(_labels(labels), value)
    if series:
        yield f"# HELP {name} {about}"
        yield f"# TYPE {name} gauge"
        yield from (f"{name}{labels} {value}" for labels, value in series.items())


def _labels(labels: Labels) -> str:
    text = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())
    return f"{{{text}}}" if text else ""


def _escape(value: str) -> str:
    return one_line(value).replace("\\", "\\\\").replace('"', '\\"')


def _families(record: RunRecord) -> Iterator[tuple[str, str, list[Sample]]]:
    plan, conclusion, cover = record.plan, record.conclusion, record.conclusion.coverage
    about = {"run_id": plan.run_id, "profile": plan.profile.name, "level": plan.profile.level, "version": plan.gpu_acceptance_version}
    yield "run_info", "Which run this is of; always 1.", [(about, 1)]
    ended = parse_moment(record.ended_at)
    yield "run_ended_timestamp_seconds", "When the run ended, in Unix time.", [({}, ended.timestamp())] if ended else []
    verdicts: list[Sample] = [({"verdict": verdict}, int(verdict == conclusion.verdict)) for verdict in VERDICT]
    yield "verdict", "1 for the verdict of the run, 0 for the others.", verdicts
    yield "exit_code", "Exit code of the run.", [({}, conclusion.exit_code)]
    yield "nodes", "Nodes in the run.", [({}, cover.nodes)]
    yield "ranks", "Ranks in the run.", [({}, cover.ranks)]
    yield (
        "gpus",
        "GPUs that exist on the nodes, and those tested.",
        [({"state": "existing"}, cover.gpus_existing), ({"state": "tested"}, cover.gpus_tested)],
    )
    limits: list[Sample] = [(({"state": name}), getattr(cover, f"limits_{name}")) for name in ("expected", "judged", "held")]
    yield "limits", "Bounds that had to be judged, that were, and that held.", limits
    if contract := conclusion.contract:
        lines: list[Sample] = [({"state": state}, len(contract.of_state(state))) for state in LineState]
        yield "contract_lines", "Lines of the contract by what the run says to them.", lines
    ended_so = [row.outcome for row in record.rows]
    yield "validations", "Validations by outcome.", [({"outcome": outcome}, ended_so.count(outcome)) for outcome in Outcome]
    outcomes: list[Sample] = [({"validation": row.nodeid, "outcome": row.outcome}, 1) for row in record.rows]
    yield "validation_outcome", "How each validation ended; always 1.", outcomes
    yield (
        "limit_status",
        "How each bound fared over the whole run; always 1.",
        [({**_bound(one), "status": one.status}, 1) for one in conclusion.limits],
    )
    places = _Places(record)
    figures: list[Sample] = [
        ({**_bound(one), "unit": one.unit, **places.of_worst(one)}, one.value) for one in conclusion.limits if is_number(one.value)
    ]
    yield "figure", "The worst figure that was judged against each bound, and the host and GPU that it is of.", figures
    yield "limit", "Each bound that is one number, as the report prints it.", list(_bounds(conclusion.limits))
    margins: list[Sample] = [(_bound(one), one.margin) for one in conclusion.limits if one.margin is not None]
    yield "margin_ratio", "Distance of each figure to its bound as a part of it; negative: missed.", margins


class _Places:
    """The ranks that measured a worst figure, and where they run."""

    def __init__(self, record: RunRecord) -> None:
        self._identities = {identity.rank: identity for identity in record.ranks}
        self._measured: dict[tuple[str, object], list[int]] = {(one.metric, one.value): [] for one in record.conclusion.limits}
        for rank in (rank for row in record.rows for attempt in row.attempts for rank in attempt.ranks):
            for figure in (*rank.figures, *rank.counters):
                if (found := self._measured.get((figure.metric, figure.value))) is not None:  # of a large job there are millions
                    found.append(rank.rank)

    def of_worst(self, judgement: Judgement) -> Labels:
        """Host and GPU of the worst figure; nothing where nobody is named: a figure of the whole job is nobody's."""
        measured = self._measured.get((judgement.metric, judgement.value), ())
        rank = next((rank for rank in measured if rank in judgement.ranks), None)
        identity = self._identities.get(rank) if rank is not None and judgement.scope != "job" else None
        if identity is None:
            return {}
        gpu = identity.gpu if judgement.scope == "rank" else None
        return {"host": identity.host, **({"gpu": str(gpu.index)} if gpu else {})}


def _bound(judgement: Judgement) -> Labels:
    return {"metric": judgement.metric, "bound": judgement.bound}


def _bounds(limits: Iterable[Judgement]) -> Iterator[Sample]:
    for one in limits:
        if (bound := one.asked_number) is not None:
            yield {**_bound(one), "unit": one.unit}, bound
