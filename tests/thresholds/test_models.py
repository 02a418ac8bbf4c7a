"""Parameters by the number of GPUs in the job, and the model whose file one of them names."""

import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gpu_acceptance.thresholds.file import LimitsError, read_file
from gpu_acceptance.thresholds.limit import ByGpus, Profile, choices
from gpu_acceptance.thresholds.profile import json_schema, load_profile
from tests.thresholds.profile_texts import BASE, SOURCE

LIMIT = f'limits:\n  fsdp.llama.parameters: {{equals: %d, unit: count, scope: job, source: "{SOURCE}"}}\n'
MODEL = "parameters: {train.llama.num_layers: %d}\n"
SMALL = MODEL % 16 + LIMIT % 1_000 + 'not_applicable: {fsdp.llama.throughput: "no reading of the small one has a source"}\n'
LARGE = MODEL % 32 + LIMIT % 8_000
GPU = f"""\
extends: base
match: {{device_name: "NVIDIA X1"}}
parameters:
  train.llama.model: {{from_gpus: {{1: small, 4: large}}}}
  lora.num_parts: {{from_gpus: {{1: 2, 2: 4}}}}
limits:
  fsdp.llama.throughput: {{at_least: 100, unit: tokens/s, scope: job, source: "{SOURCE}"}}
"""


@pytest.fixture
def shapes(folder):
    return folder(base=BASE, gpu=GPU, model_small=SMALL, model_large=LARGE)


def overlay(folder, text):
    path = folder / "mine.overlay"
    path.write_text(f"reason: a test\n{text}")
    return path


@pytest.mark.parametrize(
    ("num_gpus", "model", "num_layers", "num_parameters", "num_parts"),
    [(1, "small", 16, 1_000, 2), (2, "small", 16, 1_000, 4), (3, "small", 16, 1_000, 4), (4, "large", 32, 8_000, 4)],
)
def test_the_job_decides_which_model_and_its_limits_follow(shapes, num_gpus, model, num_layers, num_parameters, num_parts):
    profile = load_profile("gpu", shapes, num_gpus=num_gpus)
    assert profile.parameters["train.llama.model"] == model
    assert profile.parameters["train.llama.num_layers"] == num_layers
    assert profile.parameters["lora.num_parts"] == num_parts
    assert profile.limits["fsdp.llama.parameters"].equals == num_parameters
    assert ("fsdp.llama.throughput" in profile.not_applicable) == (model == "small")
    assert [file.file for file in profile.files] == ["base.yaml", "gpu.yaml", f"model-{model}.yaml"]
    assert profile.num_gpus == num_gpus


def test_without_a_job_it_is_the_profile_of_the_largest(shapes):
    assert load_profile("gpu", shapes).parameters["train.llama.model"] == "large"


def test_the_choice_is_told(shapes):
    assert choices(load_profile("gpu", shapes, num_gpus=2)) == [
        "lora.num_parts = 4 (from 1: 2; from 2: 4)",
        "train.llama.model = small (from 1: small; from 4: large)",
    ]
    assert choices(load_profile("base", shapes)) == []


def test_two_sizes_of_job_have_two_digests(shapes):
    one, two, four = (load_profile("gpu", shapes, num_gpus=number).digest for number in (1, 2, 4))
    assert one == two != four


def test_a_profile_that_was_chosen_comes_back_from_a_record(shapes):
    profile, adapter = load_profile("gpu", shapes, num_gpus=2), TypeAdapter(Profile)
    assert adapter.validate_json(adapter.dump_json(profile), strict=True) == profile
    assert {"by_gpus", "num_gpus"} <= json.loads(adapter.dump_json(profile)).keys()


def test_an_overlay_names_another_model_and_each_difference_is_a_change(shapes):
    mine = overlay(shapes, "parameters: {train.llama.model: small}")
    profile = load_profile("gpu", shapes, [mine], num_gpus=8)
    assert profile.limits["fsdp.llama.parameters"].equals == 1_000
    assert [(one.kind, one.key, one.old, one.new, one.file) for one in profile.changes if "reading" not in one.new] == [
        ("changed", "fsdp.llama.parameters equals", "8000", "1000", "mine.overlay"),
        ("changed", "parameter train.llama.model", "large", "small", "mine.overlay"),
        ("changed", "parameter train.llama.num_layers", "32", "16", "mine.overlay"),
    ]
    assert [one.key for one in profile.changes if one.kind == "not applicable"] == ["fsdp.llama.throughput"]
    assert "train.llama.model" not in profile.by_gpus


def test_a_rate_that_was_read_with_a_small_model_has_a_file_of_its_own_that_extends_it(shapes, folder):
    own = f'extends: small\nlimits:\n  fsdp.llama.throughput: {{at_least: 300, source: "{SOURCE}"}}\n'
    folder(gpu=GPU.replace("1: small", "1: small-x1"), model_small=SMALL, model_large=LARGE, model_small_x1=own)
    profile = load_profile("gpu", shapes, num_gpus=2)
    assert [file.file for file in profile.files][2:] == ["model-small.yaml", "model-small-x1.yaml"]
    assert (profile.limits["fsdp.llama.throughput"].at_least, profile.limits["fsdp.llama.throughput"].unit) == (300, "tokens/s")
    assert "fsdp.llama.throughput" not in profile.not_applicable
    assert load_profile("gpu", shapes, num_gpus=4).limits["fsdp.llama.throughput"].at_least == 100


def test_an_overlay_takes_a_larger_model_whose_rate_is_judged_again(shapes):
    profile = load_profile("gpu", shapes, [overlay(shapes, "parameters: {train.llama.model: {from_gpus: {1: large}}}")], num_gpus=2)
    assert "fsdp.llama.throughput" not in profile.not_applicable
    assert profile.limits["fsdp.llama.parameters"].equals == 8_000


@pytest.mark.parametrize(("named", "is_judged"), [("", False), ("parameters: {train.llama.model: small}\n", True)])
def test_a_rate_that_an_overlay_agrees_on_judges_a_small_model_only_where_it_names_it(shapes, named, is_judged):
    agreed = f'{named}limits:\n  fsdp.llama.throughput: {{at_least: 90, source: "{SOURCE}"}}\n'
    small, large = (load_profile("gpu", shapes, [overlay(shapes, agreed)], num_gpus=number) for number in (2, 4))
    assert ("fsdp.llama.throughput" not in small.not_applicable) == is_judged
    assert "fsdp.llama.throughput" not in large.not_applicable
    assert large.limits["fsdp.llama.throughput"].at_least == 90


def test_what_an_overlay_says_of_its_model_counts(shapes):
    own = "parameters: {train.llama.model: small, train.llama.num_layers: 8}\n"
    own += f'limits:\n  fsdp.llama.parameters: {{equals: 500, source: "{SOURCE}"}}\n'
    profile = load_profile("gpu", shapes, [overlay(shapes, own)], num_gpus=8)
    assert profile.parameters["train.llama.num_layers"] == 8
    assert profile.limits["fsdp.llama.parameters"].equals == 500
    assert profile.limits["fsdp.llama.parameters"].unit == "count"  # inherited from the file of the model


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("{gpus: {1: 2}}", r"parameters\.lora\.num_parts\.gpus \(line 2\): unknown key; known: from_gpus"),
        ("{from_gpus: {2: 4}}", r"parameters\.lora\.num_parts \(line 2\): no value for a job of 1 GPU; it begins at 2"),
        (
            "{from_gpus: {}}",
            r"parameters\.lora\.num_parts\.from_gpus \(line 2\): {} is not allowed; allowed: a mapping from numbers of GPUs",
        ),
        (
            "{from_gpus: {1: 2, 2: x}}",
            r"parameters\.lora\.num_parts\.from_gpus\.2 \(line 2\): 'x' is not allowed; allowed: a whole number from 1",
        ),
        (
            "{from_gpus: {1: 2, 2: 0}}",
            r"parameters\.lora\.num_parts\.from_gpus\.2 \(line 2\): 0 is not allowed; allowed: a whole number from 1",
        ),
        (
            "{from_gpus: {0: 2, 1: 4}}",
            r"parameters\.lora\.num_parts\.from_gpus\.0 \(line 2\): not a key .* allowed: a number of GPUs in the job",
        ),
        ("{from_gpus: {1-3: 2}}", r"parameters\.lora\.num_parts\.from_gpus\.1-3 \(line 2\): not a key .* a number of GPUs in the job"),
        ("{from_gpus: {1: 2, 1: 4}}", r"^mine\.overlay: line 2: key 1 is given twice"),
        ("{}", r"parameters\.lora\.num_parts\.from_gpus \(line 2\): is missing; needed: a mapping from numbers of GPUs"),
    ],
)
def test_a_mistake_is_named_before_anything_runs(shapes, value, text):
    with pytest.raises(LimitsError, match=text):
        read_file(overlay(shapes, f"parameters: {{lora.num_parts: {value}}}"))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        ("{from_gpus: {2: 4}}", r"levels\.full\.ddp \(line 2\): no value for a job of 1 GPU; it begins at 2"),
        ("{from_gpus: {1: 2, 2: 0}}", r"levels\.full\.ddp\.from_gpus\.2 \(line 2\): 0 is not allowed; allowed: .*seconds, above 0"),
        ("{from_gpus: 4}", r"levels\.full\.ddp\.from_gpus \(line 2\): 4 is not allowed; allowed: a mapping from numbers of GPUs"),
        ("{gpus: {1: 2}}", r"levels\.full\.ddp\.gpus \(line 2\): unknown key; known: from_gpus"),
    ],
)
def test_a_mistake_in_seconds_by_the_number_of_gpus_is_named(shapes, seconds, text):
    with pytest.raises(LimitsError, match=text):
        read_file(overlay(shapes, f"levels: {{full: {{ddp: {seconds}}}}}"))


def test_seconds_of_a_validation_follow_the_number_of_gpus(shapes):
    own = overlay(shapes, "levels: {full: {ddp: {from_gpus: {1: 270, 2: 131, 8: 60}}, hbm: 4}}")
    found = [load_profile("gpu", shapes, [own], num_gpus=number).levels["full"] for number in (1, 2, 7, 8, 100)]
    assert [one["ddp"] for one in found] == [270, 131, 131, 60, 60]
    assert {one["hbm"] for one in found} == {4}


@pytest.mark.parametrize("value", ["lareg", "{from_gpus: {1: small, 2: lareg}}"])
def test_a_model_without_a_file_is_refused_with_the_nearest(shapes, value):
    text = r"^gpu: parameters\.train\.llama\.model: no model 'lareg'; models: own, large, small; did you mean 'large'\?$"
    with pytest.raises(LimitsError, match=text):
        load_profile("gpu", shapes, [overlay(shapes, f"parameters: {{train.llama.model: {value}}}")], num_gpus=2)


@pytest.mark.parametrize("num_gpus", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("train.llama.model: {from_gpus: {1: lareg, 4: large}}", "no model 'lareg'"),
        ("train.llama.model: {from_gpus: {1: small, 4: lareg}}", "no model 'lareg'"),
        ("lora.num_heads: {from_gpus: {1: 25, 4: 32}}", "lora.width"),
    ],
)
def test_what_is_wrong_in_a_job_of_another_size_is_refused_in_each(shapes, num_gpus, given, text):
    with pytest.raises(LimitsError, match=text):
        load_profile("gpu", shapes, [overlay(shapes, f"parameters: {{{given}, lora.width: 3584}}")], num_gpus=num_gpus)


def test_a_value_that_is_wrong_is_told_by_the_file_that_has_it(shapes):
    with pytest.raises(LimitsError, match=r"^mine\.overlay: parameters\.train\.llama\.model \(line 2\): 7 is not allowed; allowed: words"):
        load_profile("gpu", shapes, [overlay(shapes, "parameters: {train.llama.model: 7}")])


def test_the_schema_allows_both(shapes):
    for value, is_allowed in ((4, True), ({"from_gpus": {"1": 4}}, True), ({"gpus": {"1": 4}}, False), ("x", False)):
        errors = list(jsonschema.Draft202012Validator(json_schema()).iter_errors({"parameters": {"lora.num_parts": value}}))
        assert (not errors) == is_allowed


@given(st.dictionaries(st.integers(2, 200), st.integers(), max_size=5), st.integers(), st.integers(1, 300))
def test_each_job_has_the_value_of_the_largest_number_up_to_its_own(values, of_one, num_gpus):
    by_gpus = ByGpus({**values, 1: of_one})
    expected = of_one
    for first in sorted(values):
        expected = values[first] if first <= num_gpus else expected
    assert by_gpus.at(num_gpus) == expected
