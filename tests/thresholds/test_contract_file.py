"""The contract's file: what it asks, each way in which it can be wrong, and what a profile could never answer."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_acceptance.control.rank import RefusedError
from gpu_acceptance.report.contract import BRING_UP_FILE
from gpu_acceptance.run.own_files import read_own_files
from gpu_acceptance.thresholds.contract import ContractLine
from gpu_acceptance.thresholds.contract_file import MOST_LINES, json_schema, read_contract, refuse_unanswerable
from gpu_acceptance.thresholds.file import LimitsError
from gpu_acceptance.thresholds.profile import shipped_dir
from tests.judging import make_limit, make_profile, shipped_profile

EXAMPLE = Path(__file__).parents[2] / "docs" / "contract.yaml"
SCHEMA = shipped_dir() / "contract.schema.json"
WORDS = "at most 300 characters on one line"
METRICS = "a list of 1 to 20 metrics or globs of them, as in nccl.all_reduce.busbw or 'gpu_health.*'"
NUMBER = "not the number of a line; allowed: 1 to 32 printable ASCII characters, in quotes where it looks like a whole number"
KEYS = "text, metrics, nodes, at_least, at_most, unit, not_tested"


def contract(folder, text):
    path = folder / "c.yaml"
    path.write_text(text)
    return read_contract(path)


def line(text):
    return f"lines:\n  8.2: {{text: a, {text}}}"


def test_the_example_has_five_lines_in_their_order():
    found = read_contract(EXAMPLE)
    assert (found.file, found.title, len(found.sha256)) == ("contract.yaml", "Purchase agreement, annex B: acceptance", 64)
    assert [one.number for one in found.lines] == ["8.1", "8.2", "8.3", "8.4", "8.5"]
    assert found.lines[1] == ContractLine(
        number="8.2",
        text="All-reduce inside a node: at least 460 GB/s of bus bandwidth",
        metrics=("nccl.all_reduce.busbw",),
        nodes="one",
        at_least=460,
        unit="GB/s",
    )
    assert found.lines[4].not_tested == "a matter of service, not of a test"


def test_the_schema_is_published_and_holds_for_the_example():
    assert json.loads(SCHEMA.read_text()) == json_schema()
    jsonschema.validate(yaml.safe_load(EXAMPLE.read_text().replace("  8.", "  v8.")), json_schema())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("title: a", f"lines: is missing; needed: a mapping of 1 to {MOST_LINES} lines of the contract by their numbers, "),
        ("lines: {}", "lines (line 1): {} is not allowed; allowed: a mapping of 1 to 100 lines of the contract"),
        ("lines: [a]", "lines (line 1): ['a'] is not allowed; allowed: a mapping of 1 to 100 lines of the contract"),
        ("title: 7\nlines: {8.2: {text: a, metrics: [a.b]}}", f"title (line 1): 7 is not allowed; allowed: which contract it is, {WORDS}"),
        ("lines: {8.2: all}", "lines.8.2 (line 1): 'all' is not allowed; allowed: a mapping of text, metrics and what else a line says"),
        ("lines: {8: {text: a, metrics: [a.b]}}", f"lines.8 (line 1): {NUMBER}"),
        ('lines: {"8\\n2": {text: a, metrics: [a.b]}}', f"lines.'8\\n2' (line 1): {NUMBER}"),
        ("lines: {8.2: {metrics: [a.b]}}", f"lines.8.2.text (line 1): is missing; needed: what the contract says, {WORDS}"),
        (line("metric: [a.b]"), f"lines.8.2.metric (line 2): unknown key; known: {KEYS}; did you mean 'metrics'?"),
        ("line: {}\nlines: {8.2: {text: a, not_tested: b}}", "line (line 1): unknown key; known: title, lines; did you mean 'lines'?"),
        (line("metrics: a.b"), f"lines.8.2.metrics (line 2): 'a.b' is not allowed; allowed: {METRICS}"),
        (line("metrics: []"), f"lines.8.2.metrics (line 2): [] is not allowed; allowed: {METRICS}"),
        (line("metrics: ['*']"), f"lines.8.2.metrics.0 (line 2): '*' is not allowed; allowed: {METRICS}"),
        (line("metrics: [a.b, a.b]"), "lines.8.2.metrics (line 2): ['a.b', 'a.b'] names one of them twice"),
        (line("metrics: [a.b], at_least: fast"), "lines.8.2.at_least (line 2): 'fast' is not allowed; allowed: a finite number, "),
        (line("metrics: [a.b], at_least: true, unit: s"), "lines.8.2.at_least (line 2): True is not allowed; allowed: a finite number, "),
        (
            'lines: {8.2: {text: "a\\u202eb", metrics: [a.b]}}',
            "lines.8.2.text (line 1): 'a\\u202eb' holds a line break, a control character or an invisible one; write plain text on ",
        ),
        (line("metrics: [a.b], nodes: two"), "lines.8.2.nodes (line 2): 'two' is not allowed; allowed: any, one or several: "),
        ("lines: {8.2: {text: a}}", "lines.8.2 (line 1): wants either metrics, or not_tested with a reason"),
        (line("metrics: [a.b], not_tested: later"), "lines.8.2 (line 2): wants either metrics, or not_tested with a reason"),
        (line("not_tested: later, at_most: 2, unit: s"), "lines.8.2 (line 2): at_most is only allowed together with metrics"),
        (line("metrics: [a.b], at_least: 2"), "lines.8.2 (line 2): at_least needs a unit"),
        (line("metrics: [a.b], unit: s"), "lines.8.2 (line 2): `unit` is only allowed together with at_least or at_most"),
        (line("metrics: [a.b], unit: s, at_least: 3, at_most: 2"), "lines.8.2 (line 2): at_least is above at_most"),
        ("lines:\n  8.2: {text: a, not_tested: b}\n  8.2: {text: a, not_tested: b}", "line 3: key '8.2' is given twice; first in line 2"),
        (line("metrics: [a.b], at_least: .nan"), "line 2, column "),
    ],
)
def test_what_is_wrong_is_said_with_key_line_value_and_what_is_allowed(tmp_path, text, says):
    with pytest.raises(LimitsError, match=f"^{re.escape(f'c.yaml: {says}')}"):
        contract(tmp_path, text)


def test_too_many_lines(tmp_path):
    lines = "\n".join(f"  n{number}: {{text: a, not_tested: b}}" for number in range(MOST_LINES + 1))
    with pytest.raises(LimitsError, match=f"allowed: a mapping of 1 to {MOST_LINES} lines"):
        contract(tmp_path, f"lines:\n{lines}")


@settings(max_examples=50)
@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_is_a_contract_or_one_readable_error(tmp_path_factory, number, text):
    path = tmp_path_factory.mktemp("any") / "c.yaml"
    path.write_text(json.dumps({"lines": {number: {"text": text, "not_tested": text}}}), encoding="utf-8")
    try:
        (found,) = read_contract(path).lines
        said = found.number + found.text + found.not_tested
    except LimitsError as error:
        said = str(error)
        assert said.startswith("c.yaml: ")
    assert said.replace("\n", "").isprintable()


def test_an_option_that_names_no_contract_is_refused_by_its_name(tmp_path):
    with pytest.raises(RefusedError, match=r"^--contract: c\.yaml: there is no such file: "):
        read_own_files(None, tmp_path / "c.yaml")


PROFILE = make_profile(
    make_limit("nccl.all_reduce.busbw", ceiling=450.0),
    make_limit("nccl.all_reduce.latency", at_most=30, unit="us"),
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "metrics: [nccl.all_reduce.buswb]",
            "metrics: nccl.all_reduce.buswb matches no limit of profile h200-sxm; did you mean 'nccl.all_reduce.busbw'?",
        ),
        (
            "metrics: ['nccl.*'], at_least: 350, unit: GB/s",
            "at_least: the limit of nccl.all_reduce.latency in h200-sxm.yaml has no at_least, and a figure is compared where its limit is",
        ),
        ("metrics: ['nccl.*.busbw'], at_least: 0.35, unit: TB/s", "at_least: in 'TB/s', and nccl.all_reduce.busbw is in GB/s"),
        (
            "metrics: ['nccl.*.busbw'], at_least: 3500, unit: GB/s",
            "at_least: 3500 GB/s is above what is physically possible of nccl.all_reduce.busbw, 450",
        ),
    ],
)
def test_what_the_profile_could_never_answer_is_refused(tmp_path, text, says):
    with pytest.raises(LimitsError, match=f"^{re.escape(f'c.yaml: lines.8.2.{says}')}$"):
        refuse_unanswerable(contract(tmp_path, line(text)), PROFILE)


def test_what_it_can_answer_is_not(tmp_path):
    refuse_unanswerable(contract(tmp_path, line("metrics: ['nccl.*.busbw'], at_least: 450, unit: GB/s")), PROFILE)
    refuse_unanswerable(contract(tmp_path, line("metrics: [nccl.all_reduce.latency], at_most: 20, unit: us")), PROFILE)
    h200 = shipped_profile("h200-sxm")
    refuse_unanswerable(read_contract(EXAMPLE), h200)


def test_the_questions_of_a_bring_up_name_limits_that_are_there():
    """Over what nodes are connected, and how fast, the network between them says."""
    questions = read_contract(BRING_UP_FILE)
    refuse_unanswerable(questions, shipped_profile("h200-sxm", "8x400-ib"))
    with pytest.raises(LimitsError) as caught:
        refuse_unanswerable(questions, shipped_profile("h200-sxm"))
    unanswered = re.findall(r": (\S+) matches no limit", str(caught.value))
    assert unanswered == ["nccl.transport.internode", "nccl.*.busbw_internode"]
