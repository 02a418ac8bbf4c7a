"""Records: what goes out comes back; what cannot be a record is refused; nothing that is no number becomes one."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from fractions import Fraction
from types import UnionType
from typing import Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from gpu_acceptance.base.text import MAX_TEXT, clip
from gpu_acceptance.inventory.gpu import Gpu
from gpu_acceptance.measure.pace import Spread
from gpu_acceptance.record.figure import Figure, make_figure
from gpu_acceptance.record.job import MOST_RANKS, RankFacts, RankIdentity
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Attempt, Judgement, RankRecord, Row
from gpu_acceptance.record.run_record import Conclusion, Coverage, PlannedValidation, RunPlan, RunRecord
from gpu_acceptance.thresholds.limit import COUNTERS, Profile, Whole
from tests.journals import make_plan
from tests.judging import make_limit, make_profile
from tests.report import sample_rows, samples

pytestmark = pytest.mark.slow

texts = st.text(st.characters(codec="utf-8"), max_size=8)
words = st.text("aZ09_%/.*^-", min_size=1, max_size=8)
floats = st.floats(allow_nan=False, allow_infinity=False)
integers = st.integers(-(2**63), 2**63 - 1)
values = st.booleans() | integers | floats | texts
OF_PLACE = ("rank", "local_rank", "node", "local_world_size", "world_size")
LEAVES = {str: texts, float: floats, int: integers, Whole: integers}


def build(model):
    """Instances of a model or a dataclass with every field filled at random, by its annotations."""
    hints = get_type_hints(model)
    names = [one.name for one in fields(model)] if is_dataclass(model) else model.model_fields
    special = {name: SPECIAL[model.__name__, name] for name in names if (model.__name__, name) in SPECIAL}
    return st.builds(model, **{name: resolve(hints[name]) for name in names if name not in special}, **special)


def resolve(annotation):
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in LEAVES:
        return LEAVES[annotation]
    if origin is tuple and arguments[-1] is not ...:
        return st.tuples(*map(resolve, arguments))
    if origin is tuple:
        return st.lists(resolve(arguments[0]), max_size=2).map(tuple)
    if origin is frozenset:
        return st.frozensets(resolve(arguments[0]), max_size=3)
    if origin in {dict, Mapping}:
        return st.dictionaries(*map(resolve, arguments), max_size=2)
    if origin in {Union, UnionType}:
        return st.one_of(map(resolve, arguments))
    if hasattr(annotation, "model_fields") or is_dataclass(annotation):
        return build(annotation)
    return st.from_type(annotation)  # enumerations, literals, bool and None


def few(elements, least=0):
    return st.lists(elements, min_size=least, max_size=2).map(tuple)


SPECIAL = {
    ("Plant", "rank"): st.none() | st.integers(0, MOST_RANKS),
    ("Curve", "name"): words,
    ("Curve", "unit"): words,
    ("Gpu", "index"): st.integers(0, 2**63 - 1),
    **{("ForeignUse", name): st.integers(0, 2**63 - 1) for name in ("gpu", "pid", "memory_bytes")},
    ("Curve", "num_steps"): st.integers(2, 2**63 - 1),
    ("Curve", "points"): few(st.none() | floats, least=1),
    **{("RankIdentity", name): st.integers(0, MOST_RANKS) for name in OF_PLACE},
    ("GpuSeries", "throttled"): st.dictionaries(texts, few(st.integers(0, 239)), max_size=2),
    ("RunRecord", "plan"): st.deferred(lambda: st.just(make_plan())),  # what a plan may hold is tried below
    ("RankRecord", "counters"): st.deferred(lambda: few(build(Figure).map(as_counter))),
}


def as_counter(figure):
    return replace(figure, metric=f"{COUNTERS}.{figure.metric}")


MODELS = [Figure, RankRecord, Gpu, RankIdentity, Judgement, Attempt, Row, Coverage, Conclusion, RunRecord, RankFacts, PlannedValidation]


def read(model, text):
    return TypeAdapter(model).validate_json(text)


def written(record):
    return TypeAdapter(type(record)).dump_json(record)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
@given(data=st.data())
@settings(max_examples=25)
def test_every_model_comes_back_as_it_was(model, data):
    record = data.draw(build(model))
    again = read(model, written(record))
    assert again == record
    assert written(again) == written(record)  # 1, 1.0 and True are equal; their JSON is not


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
@given(data=st.data())
@settings(max_examples=5)
def test_every_model_refuses_an_unknown_key(model, data):
    document = json.loads(written(data.draw(build(model))))
    with pytest.raises(ValidationError, match=r"novelty\n  (Extra inputs are not permitted|Unexpected keyword argument)"):
        read(model, json.dumps({**document, "novelty": 1}))


COUNTER = Figure(metric="counters.xids", value=0, unit="count", judged=True)
SPEED = Figure(metric="gemm.rate", value=1.0, unit="TFLOP/s", judged=True)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"figures": (COUNTER,)}, "counters.xids among the figures of a record"),
        ({"counters": (COUNTER, SPEED)}, "gemm.rate among the counters of a record"),
    ],
)
def test_counters_and_figures_are_kept_apart(fields, text):
    with pytest.raises(ValidationError, match=text):
        RankRecord(nodeid="a", attempt=1, generation=1, rank=0, outcome=Outcome.PASSED, **fields)


@pytest.mark.parametrize(("key", "text"), [("attempt", '"1"'), ("rank", "1.0"), ("duration_s", '"1.5"'), ("outcome", '"PASSED"')])
def test_a_number_in_quotes_and_an_unknown_word_are_refused(key, text):
    document = json.loads(sample_rows.gemm_row().attempts[0].ranks[0].model_dump_json())
    document[key] = json.loads(text)
    if key == "rank":  # JSON has one kind of number: 1.0 is a whole one, 1.5 is not
        document[key] = 1.5
    with pytest.raises(ValidationError, match="Input should be"):
        RankRecord.model_validate_json(json.dumps(document))


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_what_is_not_finite_is_refused(token):
    with pytest.raises(ValidationError, match="Input should be a finite number"):
        read(Figure, f'{{"metric": "m", "value": {token}, "unit": "s", "judged": true}}')


def test_records_are_frozen():
    with pytest.raises(ValidationError, match="Instance is frozen"):
        samples.accepted().schema_version = 2


@given(build(Profile))
@settings(max_examples=100)
def test_a_profile_comes_back_as_it_was(profile):
    plan = make_plan(profile, waivers={"a": "b"}, declared_gpus=4)
    again = RunPlan.model_validate_json(plan.model_dump_json())
    assert again == plan
    assert again.profile == profile
    assert again.profile.limits == profile.limits
    assert [type(limit.equals) for limit in again.profile.limits.values()] == [type(limit.equals) for limit in profile.limits.values()]
    assert list(again.profile.not_applicable) == list(profile.not_applicable)  # the first glob that matches gives the reason


@pytest.mark.parametrize("wrong", [{"at_least": math.nan}, {"at_least": {8: math.inf}}, {"at_most": "347"}, {"scope": "world"}])
def test_a_plan_with_an_invalid_limit_is_refused_when_it_is_made(wrong):
    limit = replace(make_limit(), **wrong)
    with pytest.raises(ValidationError, match="Input should be"):
        make_plan(make_profile(limit))


def test_facts_of_a_worker_name_the_gpu_and_add_versions():
    identity = samples.identity(5).with_facts({"gpu_uuid": samples.gpu(2).uuid, "nccl": "2.29.1"})
    assert identity.gpu == samples.gpu(2)
    assert identity.versions == {**samples.identity(5).versions, "nccl": "2.29.1"}
    assert samples.identity(5).with_facts({}) == samples.identity(5)


class Tensor:
    """Looks like a number from afar, as a tensor does."""

    def __float__(self):
        return 1.0

    def item(self):
        return 1.0


@pytest.mark.parametrize(
    ("value", "anomaly"),
    [
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (None, "NoneType"),
        ([1.0], "list"),
        (Tensor(), "Tensor"),
        (1j, "complex"),
        (Fraction(1, 2), "Fraction"),
        (b"1", "bytes"),
    ],
)
def test_what_is_no_value_becomes_an_anomaly(value, anomaly):
    assert make_figure("m", value, "s", judged=True) == Figure(metric="m", value=None, unit="s", judged=True, anomaly=anomaly)


@pytest.mark.parametrize("value", [True, False, 0, 1, 1.0, -0.5, 2**63 - 1, "NVLS", ""])
def test_a_value_stays_what_it_is(value):
    figure = make_figure("m", value, "text", judged=False, spread=Spread(0.2))
    assert figure == Figure(metric="m", value=value, unit="text", judged=False, spread_percent=0.2)
    assert type(figure.value) is type(value)


@pytest.mark.parametrize("spread", [math.nan, math.inf])
def test_a_value_with_a_spread_that_is_no_number_is_no_value(spread):
    figure = make_figure("m", 1.0, "s", judged=True, spread=Spread(spread))
    assert (figure.value, figure.anomaly) == (None, f"spread is {spread}")


@given(st.text(st.characters(), max_size=200), st.integers(20, 60))
def test_clip_keeps_both_ends_and_always_encodes(text, limit):
    clipped = clip(text, limit)
    clipped.encode("utf-8")
    whole = text.encode("utf-8", "backslashreplace").decode("utf-8")
    assert len(clipped) <= limit
    if len(whole) <= limit:
        assert clipped == whole
    else:
        head, _, tail = clipped.partition("\n[... cut ...]\n")
        assert head
        assert whole.startswith(head)
        assert whole.endswith(tail)


def test_a_clipped_text_fits_into_a_record():
    message = clip("x" * 100_000)
    assert len(message) <= MAX_TEXT
    assert sample_rows.gemm_row().model_copy(update={"message": message}).message == message


@pytest.mark.parametrize(
    ("gpu_uuid", "place"),
    [("", "node-01.example, GPU 5, serial 1653924100006"), (samples.gpu(2).uuid, "node-01.example, GPU 2, serial 1653924100003")],
)
def test_a_place_is_that_of_the_gpu_its_worker_opened(gpu_uuid, place):
    assert samples.identity(5).model_copy(update={"gpu_uuid": gpu_uuid}).place == place


def test_a_gpu_that_nvml_hides_still_exists():
    identity = samples.identity(0)
    assert identity.model_copy(update={"gpus": identity.gpus[:4]}).num_gpus == 8


@pytest.mark.parametrize(
    ("value", "anomaly"),
    [(2**63, "an integer beyond 64 bits"), (10**4000, "an integer beyond 64 bits"), ("x" * 1001, "a text of 1001 characters")],
)
def test_a_value_too_large_to_keep_is_an_anomaly(value, anomaly):
    assert make_figure("m", value, "count", judged=True).anomaly == anomaly


@pytest.mark.parametrize("best", [math.inf, "2", True])
def test_a_best_block_that_is_no_number_is_an_anomaly(best):
    figure = make_figure("m", 1.0, "s", judged=True, spread=Spread(0.2, best))
    assert figure.value is None
    assert figure.anomaly.startswith("best block is ")


@pytest.mark.parametrize(("spread", "anomaly"), [("2", "spread is a str"), (True, "spread is a bool"), (math.nan, "spread is nan")])
def test_an_invalid_spread_is_an_anomaly(spread, anomaly):
    assert make_figure("m", 1.0, "s", judged=True, spread=Spread(spread)).anomaly == anomaly


@pytest.mark.parametrize(
    ("metric", "unit", "text"),
    [
        (None, "s", "invalid metric name None; must match "),
        ("a b", "s", "invalid metric name 'a b'"),
        ("a\x1b[2J", "s", "invalid metric name"),
        ("a", 7, "invalid unit 7"),
    ],
)
def test_an_invalid_metric_name_or_unit_is_the_test_s_mistake(metric, unit, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        make_figure(metric, 1.0, unit, judged=True)


def test_a_number_beyond_64_bits_is_in_no_record_and_no_label():
    """No float is as large, so no page could show it."""
    whole = samples.rejected().model_dump_json()
    assert RunRecord.model_validate_json(whole)
    with pytest.raises(ValidationError):
        RunRecord.model_validate_json(re.sub(r'"value":[\d.]+', f'"value":1{"0" * 400}', whole, count=1))
    with pytest.raises(ValueError, match=r"^label 'steps' is an integer beyond 64 bits"):
        make_figure("a.b", 1, "count", judged=True, labels={"steps": 10**5000})
