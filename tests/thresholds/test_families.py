"""One entry of a file for many metrics, what an entry inherits, and each way to write either wrongly."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_acceptance.thresholds.families import expanded
from gpu_acceptance.thresholds.file import LimitsError, read_file
from gpu_acceptance.thresholds.limit import Peers
from gpu_acceptance.thresholds.profile import load_profile

SOURCE = "policy: a sentence that is long enough"
BASE = f"""\
deadline_s: 300
limits:
  "hbm.{{copy,triad}}.bandwidth":
    at_least: {{copy: 100, triad: {{4: 110, 8: 120}}}}
    at_most: {{copy: 150, triad: {{4: 160, 8: 170}}}}
    peers: {{deficit_at_most: 0.03, sigma: {{copy: 0.01, triad: 0.02}}}}
    unit: GB/s
    scope: rank
    ceiling: 200
    reading: {{copy: 4295, triad: "1-2"}}
    source: "measured: a reading of {{reading}}; less 5 %"
    remedy: {{"copy,triad": "look at the memory"}}
  "{{hbm,nccl}}.{{a,b}}.wrong": {{at_most: {{a: 0, b: 1}}, unit: {{hbm: count, nccl: words}}, scope: rank, source: "{SOURCE}"}}
  hbm.name.text: {{uniform: true, unit: text, scope: rank, source: "{SOURCE}"}}
"""


@pytest.fixture
def load(tmp_path):
    """Load a child of BASE that has these limits."""

    def loaded(limits="{}"):
        (tmp_path / "base.yaml").write_text(BASE)
        (tmp_path / "child.yaml").write_text(f'extends: base\nmatch: {{device_name: "X"}}\nlimits:\n  {limits}\n')
        return load_profile("child", tmp_path).limits

    return loaded


def test_a_family_is_one_limit_for_each_of_its_metrics(load):
    limits = load()
    assert sorted(limits) == [
        *("hbm.a.wrong", "hbm.b.wrong", "hbm.copy.bandwidth", "hbm.name.text", "hbm.triad.bandwidth", "nccl.a.wrong", "nccl.b.wrong"),
    ]
    copy, triad = limits["hbm.copy.bandwidth"], limits["hbm.triad.bandwidth"]
    assert (copy.at_least, triad.at_least) == (100, {4: 110, 8: 120})
    assert (copy.peers, triad.peers) == (Peers(0.03, 0.01), Peers(0.03, 0.02))
    assert (copy.unit, copy.scope, copy.ceiling, copy.remedy) == ("GB/s", "rank", 200, "look at the memory")
    assert copy.source == "measured: a reading of 4295; less 5 %"
    assert triad.source == "measured: a reading of 1-2; less 5 %"
    assert (limits["nccl.a.wrong"].unit, limits["nccl.a.wrong"].at_most) == ("words", 0)
    assert (limits["hbm.b.wrong"].unit, limits["hbm.b.wrong"].at_most) == ("count", 1)


@pytest.mark.parametrize(
    ("limits", "metric", "expected"),
    [
        ("hbm.copy.bandwidth: {at_least: 90, ", "hbm.copy.bandwidth", {"at_least": 90, "at_most": 150, "ceiling": 200, "scope": "rank"}),
        ('"hbm.{copy,triad}.bandwidth": {at_least: 90, at_most: none, ', "hbm.triad.bandwidth", {"at_least": 90, "at_most": None}),
        ("hbm.copy.bandwidth: {equals: 90, ", "hbm.copy.bandwidth", {"equals": 90, "at_least": None, "at_most": None}),
        ("hbm.copy.bandwidth: {peers: none, ceiling: none, ", "hbm.copy.bandwidth", {"peers": None, "ceiling": None, "at_least": 100}),
        ("hbm.copy.bandwidth: {nodes: one, ", "hbm.copy.bandwidth", {"nodes": "one", "peers": Peers(0.03, 0.01), "at_least": 100}),
        ("hbm.name.text: {equals: none, ", "hbm.name.text", {"equals": "none", "uniform": False, "unit": "text"}),
    ],
)
def test_an_entry_inherits_what_it_does_not_give(load, limits, metric, expected):
    limit = load(f'{limits}source: "{SOURCE}"}}')[metric]
    assert {name: getattr(limit, name) for name in expected} == expected
    assert (limit.source, limit.file) == (SOURCE, "child.yaml")


NEEDED = "needed: one value for each of copy, triad"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('"hbm.{copy,triad.x": {}', "hbm.{copy,triad.x (line 4): 'hbm.{copy,triad.x': each { needs its }, as in hbm.{copy,triad}.best"),
        ('"hbm.{copy,Triad}.x": {}', "hbm.{copy,Triad}.x (line 4): 'hbm.Triad.x' is not a metric; allowed: <subject>."),
        ('"hbm.{copy,triad}.{x,copy}": {}', "hbm.{copy,triad}.{x,copy} (line 4): 'copy' stands in its braces twice"),
        (
            '"hbm.{copy,triad}.x": {at_least: {copy: 1, traid: 2}}',
            f"hbm.{{copy,triad}}.x.at_least (line 4): 'traid' is not a name in its braces; {NEEDED}; did you mean 'triad'?",
        ),
        ('"hbm.{copy,triad}.x": {at_least: {copy: 1}}', f"hbm.{{copy,triad}}.x.at_least (line 4): no value for triad; {NEEDED}"),
        (
            '"hbm.{copy,triad}.x": {at_least: {copy: 1, "copy,triad": 1}}',
            f"hbm.{{copy,triad}}.x.at_least (line 4): a name has two values, or a key is no name; {NEEDED}",
        ),
        (
            '"hbm.{copy,triad}.x": {at_least: {copy: 1, triad: 1, 8: 1}}',
            f"hbm.{{copy,triad}}.x.at_least (line 4): a name has two values, or a key is no name; {NEEDED}",
        ),
        (
            '"hbm.{copy,triad}.x": {peers: {deficit_at_most: 0.1, sigma: {copy: 0.1}}}',
            f"hbm.{{copy,triad}}.x.peers.sigma (line 4): no value for triad; {NEEDED}",
        ),
        ('"hbm.{copy,name}.text": {}', "hbm.{copy,name}.text (line 4): hbm.name.text is given twice, here and as 'hbm.name.text'"),
        (
            '"hbm.{copy,triad}.x": {at_least: {copy: 1, triad: x}, unit: a, scope: rank, SOURCE}',
            "hbm.{copy,triad}.x.at_least.triad (line 4): 'x' is not allowed; allowed: a finite number, or one by GPUs per node",
        ),
        (
            '"hbm.{copy,triad}.x": {at_leest: 1, at_least: 1, unit: a, scope: rank, SOURCE}',
            "hbm.{copy,triad}.x.at_leest (line 4): unknown key; known: at_least, ",
        ),
        (
            '"hbm.{copy,triad}.x": {at_least: 1, ceiling: {copy: 2, triad: 0.5}, unit: a, scope: rank, SOURCE}',
            "hbm.{copy,triad}.x (line 4): hbm.triad.x: at_least is 1, above the ceiling 0.5",
        ),
        (
            '"hbm.{copy,triad}.x": {at_least: 1, unit: a, scope: rank, source: "measured: {reading} of one GPU"}',
            "hbm.{copy,triad}.x.source (line 4): {reading} stands in it, and the key reading is missing",
        ),
        (
            "hbm.copy.x: {at_least: 1, unit: a, scope: rank, reading: 4, SOURCE}",
            "hbm.copy.x.reading (line 4): the source does not say where it belongs; write {reading} there",
        ),
        (
            'hbm.copy.x: {at_least: 1, unit: a, scope: rank, reading: true, source: "measured: {reading} of one GPU"}',
            "hbm.copy.x.reading (line 4): True is not allowed; allowed: a number or a text, or one for each name in braces",
        ),
        ("hbm.copy.x: {at_least: {copy: 1}, unit: a, scope: rank, SOURCE}", "hbm.copy.x.at_least.copy (line 4): not a key that is allowed"),
        ("hbm.copy.x: {ceiling: none, at_least: 1, unit: a, scope: rank, SOURCE}", "hbm.copy.x.ceiling (line 4): 'none' is not allowed"),
    ],
)
def test_a_wrong_family_names_file_key_and_what_is_allowed(tmp_path, entry, message):
    path = tmp_path / "f.yaml"
    entry = entry.replace("SOURCE", f'source: "{SOURCE}"')
    path.write_text(f'limits:\n  hbm.name.text: {{uniform: true, unit: text, scope: rank, source: "{SOURCE}"}}\n\n  {entry}\n')
    with pytest.raises(LimitsError) as caught:
        read_file(path)
    lines = str(caught.value).splitlines()
    assert any(line.startswith(f"f.yaml: limits.{message}") for line in lines), lines


def test_a_problem_of_a_whole_family_is_told_once(tmp_path):
    (tmp_path / "f.yaml").write_text(
        'limits:\n  "hbm.{copy,triad}.x": {at_least: 1, scope: gpu, unit: GB/s, source: "policy: too short"}\n'
    )
    with pytest.raises(LimitsError) as caught:
        read_file(tmp_path / "f.yaml")
    places = [line.split(": ")[1] for line in str(caught.value).splitlines()]
    assert places == ["limits.hbm.{copy,triad}.x.scope (line 2)", "limits.hbm.{copy,triad}.x.source (line 2)"]


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(["a", "b", "a,b", "none", "{reading}", ""]))
value_keys = st.sampled_from(["a", "b", "a,b", "c", 4, "peers", "source", "reading"])
values = st.recursive(scalars, lambda inner: st.dictionaries(value_keys, inner))
keys = st.sampled_from(["s.{a,b}.x", "s.{a,b}.{x,y}", "s.a.x", "{s.a", "s.{}.x", "{a,b}", 8, "s.{a,a}.x", "s.{a,b}.{a,x}"])


@given(limits=st.dictionaries(keys, values, max_size=4))
@settings(max_examples=500, deadline=None)
def test_any_structure_is_expanded_or_refused(limits):
    expansion = expanded({"limits": limits}, {})
    for path in [("limits", metric, *rest) for metric in expansion.data["limits"] for rest in ((), ("at_least",), ("peers", "sigma"))]:
        assert expansion.written(path)[0] == "limits"
    assert all(path[0] == "limits" and path[1] in limits and problem for path, problem in expansion.problems)
