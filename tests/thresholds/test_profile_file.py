"""A profile's file is read, or refused with its key, its value and the allowed values."""

from pathlib import Path

import pytest

from gpu_acceptance.thresholds.file import MAX_PROBLEMS, read_file
from gpu_acceptance.thresholds.profile import LimitsError
from gpu_acceptance.thresholds.schema import Match
from tests.thresholds.profile_texts import ENTRY_KEYS, TOP_KEYS, plain


def error_of(text, tmp_path):
    path = tmp_path / "f.yaml"
    path.write_text(text)
    with pytest.raises(LimitsError) as caught:
        read_file(path)
    return str(caught.value)


WORLD = "the GPUs per node it applies to, a list of whole numbers from 1; without the key: all"
BOUND = "a finite number, or one by GPUs per node as in {8: 449}, or by the number of nodes as in {nodes: {2: 408, 3-8: 304}}"
VALUES = "a finite number, a text, true or false, or a list of those that are allowed"
NODES = "not a key that is allowed here; allowed: a number of nodes, 2, or a range, 3-8"
SPREAD = "percent, above 0, or a mapping from GPUs per node to percent; a figure that spreads more is not judged"
MEANT = "the most that is physically possible; is it in GB/s? If it is meant, give a higher ceiling beside it"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (plain("at_leest: 5"), f".at_leest (line 3): unknown key; known: {ENTRY_KEYS}; did you mean 'at_least'?"),
        (plain("at_least: 1e3"), f".at_least (line 3): '1e3' is not allowed; allowed: {BOUND}; 1e3 is text in YAML, write 1.0e+3"),
        (plain("at_least: 5.e-3"), f".at_least (line 3): '5.e-3' is not allowed; allowed: {BOUND}; 5.e-3 is text in YAML, write 5.0e-3"),
        (plain("at_least: yes"), f".at_least (line 3): 'yes' is not allowed; allowed: {BOUND}"),
        (plain("at_least: true"), f".at_least (line 3): True is not allowed; allowed: {BOUND}"),
        (plain('at_least: "5"'), f".at_least (line 3): '5' is not allowed; allowed: {BOUND}"),
        (plain("at_least: {}"), f".at_least (line 3): {{}} is not allowed; allowed: {BOUND}"),
        (plain("at_least: {4: x}"), f".at_least.4 (line 3): 'x' is not allowed; allowed: {BOUND}"),
        (plain("at_least: {0: 5}"), ".at_least.0 (line 3): not a key that is allowed here; allowed: GPUs per node, a whole number from 1"),
        (
            plain('at_least: {"8": 5}'),
            ".at_least.8 (line 3): not a key that is allowed here; allowed: GPUs per node, a whole number from 1",
        ),
        (plain("at_least: {nodes: {}}"), f".at_least.nodes (line 3): {{}} is not allowed; allowed: {BOUND}"),
        (plain("at_least: {nodes: {2: x}}"), f".at_least.nodes.2 (line 3): 'x' is not allowed; allowed: {BOUND}"),
        (plain("at_least: {nodes: {0: 5}}"), f".at_least.nodes.0 (line 3): {NODES}"),
        (plain("at_least: {nodes: {2 to 8: 5}}"), f".at_least.nodes.'2 to 8' (line 3): {NODES}"),
        (plain("at_least: {nodes: {8-3: 5}}"), ".at_least.nodes.8-3 (line 3): '8-3' goes backwards; write the smaller number first"),
        (plain("at_least: {nodes: {2-4: 5, 4-8: 4}}"), ".at_least (line 3): 4 nodes are in two ranges, 2-4 and 4-8"),
        (plain("at_least: {nodes: {2: 5}, 8: 4}"), ".at_least.8 (line 3): not a key that is allowed here; known: nodes"),
        (plain("equals: [1]"), f".equals (line 3): [1] is not allowed; allowed: {VALUES}"),
        (plain("equals: [1, 1]"), ".equals (line 3): [1, 1] names one of them twice"),
        (plain("equals: [1, fast]"), " (line 2): equals is 'fast', so the unit must be text, not 'GB/s'"),
        (plain("equals: 1e3"), ".equals (line 3): 1e3 is text in YAML, write 1.0e+3"),
        (plain("uniform: false"), ".uniform (line 3): False is not allowed; allowed: true, or leave the key out"),
        (
            plain("peers: {deficit_at_most: 3, sigma: 0.01}"),
            ".peers.deficit_at_most (line 3): 3 is not allowed; allowed: a fraction between 0 and 1; 0.03 is 3 %",
        ),
        (plain("peers: {deficit_at_most: 0.03}"), ".peers.sigma (line 3): is missing; needed: a fraction between 0 and 1; 0.03 is 3 %"),
        (plain("at_least: 5", scope="gpu"), ".scope (line 5): 'gpu' is not allowed; allowed: whose figure it is: rank, node or job"),
        (plain("at_least: 5", "nodes: two"), ".nodes (line 4): 'two' is not allowed; allowed: any, one or several"),
        (
            plain("at_least: 5", "world: 8"),
            ".world (line 4): 8 is not allowed; allowed: " + WORLD,
        ),
        (
            plain("at_least: 5", "world: []"),
            ".world (line 4): [] is not allowed; allowed: " + WORLD,
        ),
        (
            plain("at_least: 5", "min_ranks: 0"),
            ".min_ranks (line 4): 0 is not allowed; allowed: minimum world size that this limit applies to (integer >= 1)",
        ),
        (
            plain("at_least: 5", "min_ranks_per_node: [2]"),
            ".min_ranks_per_node (line 4): [2] is not allowed; allowed: minimum number of ranks on the largest node (integer >= 1)",
        ),
        (
            plain("at_least: {2: 1, 8: 5}", "min_ranks_per_node: 4"),
            " (line 2): at_least names the sizes [2], and it applies to no node of less than 4 ranks",
        ),
        (
            plain("at_least: 5", "world: [1, 2, 8]", "nodes: one", "min_ranks: 4"),
            " (line 2): world names the sizes [1, 2], and it applies to no node of less than 4 ranks",
        ),
        (plain("at_least: 5", "world: [8, 8]"), ".world (line 4): [8, 8] names one of them twice"),
        (
            plain("at_least: 5", "spread_at_most: 0"),
            ".spread_at_most (line 4): 0 is not allowed; allowed: " + SPREAD,
        ),
        (
            plain("at_least: 5", source="guess: somebody said that once"),
            ".source (line 6): 'guess: somebody said that once' is not allowed; allowed: a sentence of 20 characters or more "
            "that begins with measured, datasheet, derived, published or policy and a colon",
        ),
        (
            plain("at_least: 5", source="measured: yes"),
            ".source (line 6): 'measured: yes' is not allowed; allowed: a sentence of 20 characters or more "
            "that begins with measured, datasheet, derived, published or policy and a colon",
        ),
        (
            plain("at_least: 5", source="policy: one\\ntwo three four five"),
            ".source (line 6): 'policy: one\\ntwo three four five' holds a line break, a control character or an invisible one; "
            "write plain text on one line",
        ),
        (
            plain('equals: "a\\0b"', unit="text"),
            ".equals (line 3): 'a\\x00b' holds a line break, a control character or an invisible one; write plain text on one line",
        ),
        (plain(), " (line 2): no bound; one of at_least, at_most, equals, uniform, peers is needed"),
        (
            plain("uniform: true", scope="job"),
            " (line 2): peers and uniform compare members, and a job is only one; scope must be rank or node",
        ),
        (
            plain("peers: {deficit_at_most: 0.03, sigma: 0.01}", scope="job"),
            " (line 2): peers and uniform compare members, and a job is only one; scope must be rank or node",
        ),
        (plain("at_least: 5", "ceiling: 4"), f" (line 2): at_least is 5, above the ceiling 4, {MEANT}"),
        (plain("at_most: {4: 3, 8: 5}", "ceiling: 4"), f" (line 2): at_most at 8 is 5, above the ceiling 4, {MEANT}"),
        (plain("equals: 5", "ceiling: 4"), f" (line 2): equals is 5, above the ceiling 4, {MEANT}"),
        (plain("equals: [5, 3]", "ceiling: 4"), f" (line 2): equals is 5, above the ceiling 4, {MEANT}"),
        (plain("at_most: -5"), " (line 2): at_most is -5, below 0; where that is possible, give a floor"),
        (plain("at_least: {4: 3, 8: -1}"), " (line 2): at_least at 8 is -1, below 0; where that is possible, give a floor"),
        (plain("equals: -1"), " (line 2): equals is -1, below 0; where that is possible, give a floor"),
        (plain("at_least: 5", "floor: 6"), " (line 2): at_least is 5, below the floor 6"),
        (plain("uniform: true", "floor: 6", "ceiling: 5"), f" (line 2): floor is 6, above the ceiling 5, {MEANT}"),
        (
            plain("at_least: 5", "floor: .5.5"),
            ".floor (line 4): '.5.5' is not allowed; allowed: the finite number below which a reading is a measuring error; "
            "without the key: 0",
        ),
        (plain("at_least: 5", "at_most: 4"), " (line 2): at_least is 5, above at_most 4"),
        (plain("at_least: {2: 1, 4: 5}", "at_most: 4"), " (line 2): at_least at 4 is 5, above at_most 4"),
        (
            plain("at_least: 5", "spread_at_most: {8: 0}"),
            ".spread_at_most.8 (line 4): 0 is not allowed; allowed: " + SPREAD,
        ),
        (
            plain("at_least: 5", "spread_at_most: {x: 2}"),
            ".spread_at_most.x (line 4): not a key that is allowed here; allowed: GPUs per node, a whole number from 1",
        ),
        (
            plain("at_least: {2: 1}", "spread_at_most: {2: 5, 4: 2}"),
            " (line 2): at_least names the sizes [2], spread_at_most [2, 4]; they must be the same",
        ),
        (plain("at_least: {2: 1}", "at_most: {4: 4}"), " (line 2): at_least names the sizes [2], at_most [4]; they must be the same"),
        (
            plain("at_least: {2: 1}", "world: [2, 4]"),
            " (line 2): at_least names the sizes [2], world [2, 4]; they must be the same, or leave world out",
        ),
        (plain("at_least: 5", unit="text"), " (line 2): at_least needs a number, and the unit is text; text takes equals or uniform"),
        (
            plain("uniform: true", "ceiling: 5", unit="bool"),
            " (line 2): ceiling needs a number, and the unit is bool; bool takes equals or uniform",
        ),
        (
            plain("uniform: true", "floor: 0", unit="text"),
            " (line 2): floor needs a number, and the unit is text; text takes equals or uniform",
        ),
        (plain("equals: 5", unit="text"), " (line 2): equals is 5, and the unit text wants a text"),
        (plain("equals: five", unit="bool"), " (line 2): equals is 'five', and the unit bool wants true or false"),
        (plain("equals: true"), " (line 2): equals is True, so the unit must be bool, not 'GB/s'"),
        (plain("equals: NVLS"), " (line 2): equals is 'NVLS', so the unit must be text, not 'GB/s'"),
    ],
)
def test_a_wrong_limit_names_key_value_and_what_is_allowed(text, message, tmp_path):
    assert error_of(text, tmp_path) == f"f.yaml: limits.hbm.copy.bandwidth{message}"


@pytest.mark.parametrize("missing", ["unit", "scope", "source"])
def test_a_limit_needs_unit_scope_and_source(missing, tmp_path):
    text = "\n".join(line for line in plain("at_least: 5").splitlines() if f"    {missing}:" not in line)
    assert f"f.yaml: limits.hbm.copy.bandwidth.{missing} (line 2): is missing; needed: " in error_of(text, tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("require: [gemm]", f"require (line 1): unknown key; known: {TOP_KEYS}; did you mean 'requires'?"),
        ("5: x", f"5 (line 1): not a key that is allowed here; known: {TOP_KEYS}"),
        ("limits: [1]", "limits (line 1): [1] is not allowed; allowed: a mapping from metrics to limits"),
        ("limits: {hbm.copy.bandwidth: 5}", f"limits.hbm.copy.bandwidth (line 1): 5 is not allowed; allowed: a mapping of {ENTRY_KEYS}"),
        ("requires: [GEMM]", "requires.0 (line 1): 'GEMM' is not allowed; allowed: a list of subjects, as in [gemm, hbm]"),
        ("requires: [gemm, gemm]", "requires (line 1): ['gemm', 'gemm'] names one of them twice"),
        ("parameters: 5", "parameters (line 1): 5 is not allowed; allowed: a mapping from parameters to values"),
        ("deadline_s: 0", "deadline_s (line 1): 0 is not allowed; allowed: seconds, above 0"),
        (
            "levels: {full: {gemm: x}}",
            "levels.full.gemm (line 1): 'x' is not allowed; "
            "allowed: a mapping from levels (health, quick, full, soak) to mappings from subjects to seconds, above 0, or to from_gpus",
        ),
        (
            "levels: {fast: {gemm: 1}}",
            "levels.fast (line 1): not a key that is allowed here; "
            "allowed: health, quick or full, and in each of them the name of a subject",
        ),
        (
            'not_applicable: {"*": "no"}',
            "not_applicable.* (line 1): not a key that is allowed here; allowed: a glob that names its subject first, as in 'infiniband.*'",
        ),
        (
            'not_applicable: {"ib.*": ""}',
            "not_applicable.ib.* (line 1): '' is not allowed; allowed: a mapping from globs to a reason, a text on one line",
        ),
        ("match: {}", "match (line 1): needs device_name, or for a network fabric, or for an overlay gpus_per_node"),
        (
            "match: {gpus_per_node: 0}",
            f"match.gpus_per_node (line 1): 0 is not allowed; allowed: {Match.model_fields['gpus_per_node'].description}",
        ),
        (
            "match: {device_name: X, fabric: {link: IB}}",
            "match (line 1): device_name and fabric: a file is for a GPU or for a network, and not both",
        ),
        ("match: {fabric: {link: IB, speed: 4}}", "match.fabric.speed (line 1): unknown key; known: link, ports, gbit_per_s, gpus, driver"),
        (
            "match: {fabric: {link: WiFi}}",
            "match.fabric.link (line 1): 'WiFi' is not allowed; allowed: IB, RoCE, EFA, gVNIC, NVLink or none",
        ),
        (
            "match: {fabric: {link: IB, ports: 0}}",
            "match.fabric.ports (line 1): 0 is not allowed; allowed: the ports of a node that are nearest to a GPU, a whole number from 1",
        ),
        (
            "match: {device: X, device_name: Y}",
            "match.device (line 1): unknown key; known: device_name, nvlink, fabric, gpus_per_node, profiles; did you mean 'device_name'?",
        ),
        ("extends: ../base", "extends (line 1): '../base' is not allowed; allowed: the name of one parent profile, as in hopper-sxm"),
        ('reason: "\\ud800"', "line 1, column 12: found invalid Unicode character escape code"),
        ("a: .nan", "line 1, column 4: '.nan' is not a finite number; a limit must be one"),
    ],
)
def test_a_wrong_key_on_top(text, message, tmp_path):
    assert error_of(text, tmp_path) == f"f.yaml: {message}"


@pytest.mark.parametrize("metric", ["Hbm.copy.x", "hbm", "hbm..x", "hbm.copy.a.b.c", "1.a.b", "hbm.copy-x.y", '"hbm.copy\\n"'])
def test_metric_names(metric, tmp_path):
    text = plain("at_least: 5").replace("hbm.copy.bandwidth", metric)
    assert "not a key that is allowed here; allowed: a metric named <subject>.<operation>.<quantity>" in error_of(text, tmp_path)


@pytest.mark.parametrize("name", ["world_formation", "worker_end"])
@pytest.mark.parametrize(
    ("text", "key"),
    [
        (plain("at_least: 5").replace("hbm.copy", "NAME"), "limits.NAME.bandwidth (line 2): 'NAME.bandwidth'"),
        ("requires: [NAME]", "requires.0 (line 1): 'NAME'"),
        ("levels: {quick: {NAME: 5}}", "levels.quick.NAME (line 1): 'NAME'"),
    ],
)
def test_rows_of_the_suite_itself_are_no_subjects(name, text, key, tmp_path):
    message = error_of(text.replace("NAME", name), tmp_path)
    assert message == f"f.yaml: {key.replace('NAME', name)} is not allowed; worker_end and world_formation are rows of the suite itself"


def test_all_problems_of_a_file_are_told_but_not_more_than_ten(tmp_path):
    lines = error_of("".join(f"key{number}: 1\n" for number in range(14)), tmp_path).splitlines()
    assert len(lines) == MAX_PROBLEMS + 1
    assert lines[-1] == "and 4 more"


def test_texts_from_the_file_are_escaped_and_clipped(tmp_path):
    message = error_of(f'"{"k" * 1000}": 1\n"a\\nb": 2\n', tmp_path)
    assert len(message.splitlines()) == 2
    assert r"'a\nb'" in message
    assert len(message) < 600


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(LimitsError, match=r"^nowhere.yaml: there is no such file: '.*nowhere.yaml'$"):
        read_file(tmp_path / "nowhere.yaml")
    with pytest.raises(LimitsError, match="is not a regular file"):
        read_file(tmp_path)
    with pytest.raises(LimitsError, match="is not a regular file"):
        read_file(Path("/dev/zero"))
    with pytest.raises(LimitsError, match="cannot be read: File name too long"):
        read_file(tmp_path / ("x" * 5000))
