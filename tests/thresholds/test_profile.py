import hashlib
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_acceptance.thresholds.changes import limit_differences, summary
from gpu_acceptance.thresholds.file import MAX_PROBLEMS, read_file
from gpu_acceptance.thresholds.limit import Limit, Peers
from gpu_acceptance.thresholds.profile import LimitsError, load_profile, profile_names, select_profile, shipped_dir

SHIPPED = sorted(shipped_dir().glob("*.yaml"))
SOURCE = "policy: a sentence that is long enough"
BASE = f"""\
deadline_s: 300
requires: [environment]
parameters: {{gemm.size: 8192}}
limits:
  environment.gpu.shared: {{at_most: 0, unit: count, scope: rank, source: "{SOURCE}"}}
"""
CHILD = f"""\
extends: base
match: {{device_name: "NVIDIA X1"}}
requires: [hbm]
limits:
  hbm.copy.bandwidth: {{at_least: 100, unit: GB/s, scope: rank, ceiling: 200, spread_at_most: 2, source: "{SOURCE}"}}
"""


@pytest.fixture
def folder(tmp_path):
    def write(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name.replace('_', '-')}.yaml").write_text(text)
        return tmp_path

    write(base=BASE, child=CHILD)
    write.path = tmp_path
    return write


def entry(text, metric="hbm.copy.bandwidth"):
    return f"limits:\n  {metric}:\n" + "".join(f"    {line}\n" for line in text.splitlines())


def plain(*lines, unit="GB/s", scope="rank", source=SOURCE):
    return entry("\n".join([*lines, f"unit: {unit}", f"scope: {scope}", f'source: "{source}"']))


def error_of(text, tmp_path):
    path = tmp_path / "f.yaml"
    path.write_text(text)
    with pytest.raises(LimitsError) as caught:
        read_file(path)
    return str(caught.value)


WORLD = "the GPUs per node it applies to, a list of whole numbers from 1; without the key: all"
BOUND = "a finite number, or a mapping from GPUs per node (a whole number from 1) to finite numbers"
SPREAD = "percent, above 0, or a mapping from GPUs per node to percent; a figure that spreads more is not judged"
MEANT = "the most that is physically possible; is it in GB/s? If it is meant, give a higher ceiling beside it"
CONDITIONS = "world, nodes, min_ranks, min_ranks_per_node"
ENTRY_KEYS = (
    f"at_least, at_most, equals, uniform, peers, unit, scope, {CONDITIONS}, floor, ceiling, spread_at_most, source, remedy, reading"
)


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
        (plain("equals: [1]"), ".equals (line 3): [1] is not allowed; allowed: a finite number, a text, true or false"),
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


TOP_KEYS = "extends, match, reason, requires, figures, limits, parameters, deadline_s, levels, not_applicable"


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
            "allowed: a mapping from levels (health, quick, full, soak) to mappings from subjects to seconds, above 0",
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
        ("match: {}", "match.device_name (line 1): is missing; needed: the GPU's name exactly as NVML gives it"),
        ("match: {device: X, device_name: Y}", "match.device (line 1): unknown key; known: device_name; did you mean 'device_name'?"),
        ("extends: ../base", "extends (line 1): '../base' is not allowed; allowed: the name of one parent profile, as in hopper-sxm"),
        ('reason: "\\ud800"', "reason (line 1): '\\ud800' is not allowed; allowed: a text on one line: why this overlay exists"),
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


# Profiles


def test_a_child_inherits_and_replaces_whole_entries(folder):
    shared = f'limits:\n  environment.gpu.shared: {{at_most: 1, unit: count, scope: rank, source: "{SOURCE}"}}\n'
    directory = folder(
        parent="extends: base\ndeadline_s: 100\nlevels: {quick: {gemm: 5}, full: {gemm: 5}}\n"
        f'not_applicable: {{"environment.x*": "none"}}\n{shared}',
        grand='extends: parent\nmatch: {device_name: "G"}\n'
        "parameters: {gemm.size: 16, localise.asked: true}\nlevels: {quick: {hbm: 2}, full: {hbm: 3}}\n",
    )
    profile = load_profile("grand", directory)
    assert profile.name == "grand"
    assert profile.device_name == "G"
    assert profile.deadline_s == 100
    assert profile.requires == {"environment"}
    assert profile.parameters == {"gemm.size": 16, "localise.asked": True}
    assert profile.levels == {"quick": {"gemm": 5, "hbm": 2}, "full": {"gemm": 5, "hbm": 3}}
    assert profile.not_applicable == {"environment.x*": "none"}
    assert profile.limits["environment.gpu.shared"] == Limit(
        "environment.gpu.shared", unit="count", scope="rank", source=SOURCE, file="parent.yaml", at_most=1.0
    )
    assert [file.file for file in profile.files] == ["base.yaml", "parent.yaml", "grand.yaml"]
    assert profile.changes == ()


IB = f'limits:\n  ib.ports.state: {{equals: "ACTIVE", unit: text, scope: node, source: "{SOURCE}"}}\n'


def test_whoever_requires_a_subject_takes_back_that_it_is_not_applicable(folder):
    declared = 'not_applicable: {"ib.*": "nobody asks for it", "ib.roce.*": "no RoCE here"}\n'
    directory = folder(
        parent=f"extends: base\n{IB}{declared}",
        leaves='extends: parent\nmatch: {device_name: "L"}\n',
        asks='extends: parent\nmatch: {device_name: "A"}\nrequires: [ib]\n',
        site="requires: [ib]\n",
    )
    assert set(load_profile("leaves", directory).not_applicable) == {"ib.*", "ib.roce.*"}
    assert set(load_profile("asks", directory).not_applicable) == {"ib.roce.*"}
    demanded = load_profile("leaves", directory, [directory / "site.yaml"])
    assert demanded.not_applicable == {"ib.roce.*": "no RoCE here"}
    assert [(change.kind, change.key) for change in demanded.changes] == [("added", "requires ib")]


def test_everything_an_entry_can_say_arrives_in_the_limit(folder):
    text = plain(
        "at_least: {2: 1, 8: 2.5}",
        "at_most: {2: 3, 8: 3}",
        "equals: 2",
        "uniform: true",
        "peers: {deficit_at_most: 0.03, sigma: 0.005}",
        "world: [8, 2]",
        "nodes: several",
        "min_ranks: 4",
        "min_ranks_per_node: 2",
        "floor: 0.5",
        "ceiling: 4",
        "spread_at_most: 1.5",
    )
    profile = load_profile("full", folder(full='extends: base\nmatch: {device_name: "F"}\n' + text))
    assert profile.limits["hbm.copy.bandwidth"] == Limit(
        "hbm.copy.bandwidth",
        "GB/s",
        "rank",
        SOURCE,
        "full.yaml",
        at_least={2: 1.0, 8: 2.5},
        at_most={2: 3.0, 8: 3.0},
        equals=2,
        uniform=True,
        peers=Peers(0.03, 0.005),
        world=(8, 2),
        nodes="several",
        min_ranks=4,
        min_ranks_per_node=2,
        floor=0.5,
        ceiling=4.0,
        spread_at_most=1.5,
    )


def test_the_digest_is_that_of_sha256sum(folder):
    directory = folder()
    listing = "".join(f"{hashlib.sha256((directory / name).read_bytes()).hexdigest()}  {name}\n" for name in ("base.yaml", "child.yaml"))
    assert load_profile("child", directory).digest == hashlib.sha256(listing.encode()).hexdigest()


def test_a_circle_is_shown_whole(folder):
    directory = folder(a="extends: b", b="extends: c", c="extends: a")
    with pytest.raises(LimitsError, match=r"^c.yaml: extends: profiles go round in a circle: a -> b -> c -> a$"):
        load_profile("a", directory)
    with pytest.raises(LimitsError, match=r"^self.yaml: extends: profiles go round in a circle: self -> self$"):
        load_profile("self", folder(self="extends: self"))


def test_unknown_profiles_and_parents(folder):
    directory = folder(cpu="extends: base\n")
    with pytest.raises(LimitsError, match=r"^no profile 'chld'; profiles: child, cpu; did you mean 'child'\?$"):
        load_profile("chld", directory)
    folder(lost="extends: bese\n")
    with pytest.raises(
        LimitsError, match=r"^lost.yaml: extends: no profile 'bese'; profiles: base, child, cpu, lost; did you mean 'base'\?$"
    ):
        load_profile("lost", directory)
    with pytest.raises(LimitsError, match=r"^'lost' is a parent of other profiles, not a machine's; profiles: child, cpu$"):
        load_profile("lost", folder(lost="extends: base\n"))


def test_a_folder_without_profiles(tmp_path):
    with pytest.raises(LimitsError, match=r"^there are no profiles in "):
        load_profile("x", tmp_path / "nowhere")


def test_what_only_holds_after_merging(folder):
    match = 'match: {device_name: "Z"}\n'
    with pytest.raises(LimitsError) as caught:
        load_profile("z", folder(z=match + 'requires: [gemm]\nnot_applicable: {"ib.*": "none here"}\n'))
    assert str(caught.value).splitlines() == [
        "z.yaml: deadline_s is missing, here and in all parents",
        "z.yaml: requires 'gemm', but there is no limit of it; subjects with limits: none",
        "z.yaml: not_applicable.ib.*: matches nothing; subjects with limits: none",
    ]


def test_a_profile_has_no_reason(folder):
    with pytest.raises(LimitsError, match=r"^z.yaml: reason: belongs into an overlay; a profile says why in the source of each limit$"):
        load_profile("z", folder(z="reason: because\n"))


def test_selection_by_device_name(folder):
    directory = folder(cpu="extends: base\n", parent="extends: base\n", site_x="reason: no profile\n")
    assert profile_names(directory) == ["child", "cpu"]
    assert select_profile(None, directory) == "cpu"
    assert select_profile("NVIDIA X1", directory) == "child"
    with pytest.raises(LimitsError) as caught:
        select_profile("NVIDIA X1 PCIe\n", directory)
    assert str(caught.value) == (
        "no profile for the GPU 'NVIDIA X1 PCIe\\n'; profiles: child (NVIDIA X1); --measure-only records without judging"
    )
    with pytest.raises(LimitsError, match="is matched by two profiles, child and twin; name one with --hardware=NAME"):
        select_profile("NVIDIA X1", folder(twin=CHILD))


# Overlays


def overlay(folder, text):
    path = folder.path / "mine.yaml"
    path.write_text(text)
    return load_profile("child", folder.path, [path])


def changes_of(folder, text):
    return [(change.kind, change.key, change.old, change.new) for change in overlay(folder, text).changes]


def test_an_overlay_names_each_change_with_its_file(folder):
    text = plain("at_least: 90", "ceiling: 200", "spread_at_most: 2")
    profile = overlay(folder, text)
    assert profile.limits["hbm.copy.bandwidth"].at_least == 90
    (change,) = profile.changes
    assert (change.kind, change.key, change.old, change.new) == ("loosened", "hbm.copy.bandwidth at_least", "100", "90")
    assert change.file == "mine.yaml"
    assert change.sha256 == hashlib.sha256(text.encode()).hexdigest() == profile.files[-1].sha256
    assert profile.digest != load_profile("child", folder.path).digest


KEPT = ("ceiling: 200", "spread_at_most: 2")
DROPPED = ("dropped", "hbm.copy.bandwidth at_least", "100", "none")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (plain("at_least: 110", *KEPT), [("tightened", "hbm.copy.bandwidth at_least", "100", "110")]),
        (plain("at_most: 150", *KEPT), [("added", "hbm.copy.bandwidth at_most", "none", "150")]),
        (plain("at_most: 150", "at_least: none"), [DROPPED, ("added", "hbm.copy.bandwidth at_most", "none", "150")]),
        (plain("equals: 150", *KEPT), [DROPPED, ("added", "hbm.copy.bandwidth equals", "none", "150")]),
        (plain("at_least: 0", *KEPT), [("dropped", "hbm.copy.bandwidth at_least", "100", "0")]),
        (plain("at_least: 100", "ceiling: 300", "spread_at_most: 2"), [("loosened", "hbm.copy.bandwidth ceiling", "200", "300")]),
        (plain("at_least: 100", "ceiling: none"), [("loosened", "hbm.copy.bandwidth ceiling", "200", "none")]),
        (plain("at_least: 100", "spread_at_most: none"), [("loosened", "hbm.copy.bandwidth spread_at_most", "2", "none")]),
        (plain("at_least: 100", "ceiling: 200", "spread_at_most: 1"), [("tightened", "hbm.copy.bandwidth spread_at_most", "2", "1")]),
        (
            plain("at_least: 100", "ceiling: 200", "spread_at_most: {4: 2, 8: 5}"),
            [
                ("dropped", "hbm.copy.bandwidth at_least at other sizes", "100", "none"),
                ("loosened", "hbm.copy.bandwidth spread_at_most at 8", "2", "5"),
            ],
        ),
        (plain("at_least: 100", *KEPT, "floor: -5"), [("loosened", "hbm.copy.bandwidth floor", "0", "-5")]),
        (plain("at_least: 100", *KEPT, "floor: 5"), [("tightened", "hbm.copy.bandwidth floor", "0", "5")]),
        (plain("at_least: 100", *KEPT, scope="node"), [("changed", "hbm.copy.bandwidth scope", "rank", "node")]),
        (plain("at_least: 100", "nodes: one", *KEPT), [("loosened", "hbm.copy.bandwidth nodes", "any", "one")]),
        (plain("at_least: 100", "min_ranks: 2", *KEPT), [("loosened", "hbm.copy.bandwidth min_ranks", "1", "2")]),
        (plain("at_least: 100", "min_ranks_per_node: 3", *KEPT), [("loosened", "hbm.copy.bandwidth min_ranks_per_node", "1", "3")]),
        (plain("at_least: 100", "world: [8]", *KEPT), [("dropped", "hbm.copy.bandwidth at_least at other sizes", "100", "none")]),
        (
            plain("at_least: {4: 100, 8: 90}", *KEPT),
            [
                ("dropped", "hbm.copy.bandwidth at_least at other sizes", "100", "none"),
                ("loosened", "hbm.copy.bandwidth at_least at 8", "100", "90"),
            ],
        ),
        # A second bound by size takes the first one away everywhere else.
        (
            plain("at_least: 100", "at_most: {8: 150}", *KEPT),
            [
                ("dropped", "hbm.copy.bandwidth at_least at other sizes", "100", "none"),
                ("added", "hbm.copy.bandwidth at_most at 8", "none", "150"),
            ],
        ),
        (plain("at_least: 100", *KEPT, source="policy: the same number for another reason"), []),
        (
            "figures: {hbm.new.bandwidth: GB/s}\n" + plain("at_least: 5").replace("copy", "new"),
            [("added", "hbm.new.bandwidth", "", "at_least 5 GB/s")],
        ),
        (
            "parameters: {gemm.size: 16, pcie.num_copies: 1}",
            [("changed", "parameter gemm.size", "8192", "16"), ("added", "parameter pcie.num_copies", "", "1")],
        ),
        ("deadline_s: 10", [("changed", "deadline_s", "300", "10")]),
        ("requires: [hbm]", []),
        ('not_applicable: {"hbm.copy.*": "no HBM here"}', [("not applicable", "hbm.copy.*", "", "no HBM here")]),
        ("reason: nothing at all is different\nparameters: {gemm.size: 8192}", []),
        ('match: {device_name: "NVIDIA X1"}\ndeadline_s: 300', []),
    ],
)
def test_what_an_overlay_changed(text, expected, folder):
    assert changes_of(folder, text) == expected


def test_a_subject_can_be_required(folder):
    folder(other=f"extends: base\nlimits:\n  ib.write.bandwidth: {{at_least: 1, unit: GB/s, scope: rank, source: '{SOURCE}'}}\n")
    text = plain("at_least: 5").replace("hbm.copy", "ib.write") + "requires: [ib]\n"
    assert changes_of(folder, text) == [("added", "ib.write.bandwidth", "", "at_least 5 GB/s"), ("added", "requires ib", "", "ib")]


def test_peers_and_equals_of_an_overlay(folder):
    folder(
        child=CHILD
        + f"  hbm.copy.rank: {{peers: {{deficit_at_most: 0.03, sigma: 0.01}}, unit: x, scope: rank, source: '{SOURCE}'}}\n"
        + f"  hbm.copy.name: {{equals: NVLS, unit: text, scope: rank, source: '{SOURCE}'}}\n"
    )
    text = (
        "limits:\n"
        f"  hbm.copy.rank: {{peers: {{deficit_at_most: 0.05, sigma: 0.005}}, unit: x, scope: rank, source: '{SOURCE}'}}\n"
        f"  hbm.copy.name: {{equals: Ring, unit: text, scope: rank, source: '{SOURCE}'}}\n"
    )
    assert changes_of(folder, text) == [
        ("changed", "hbm.copy.name equals", "NVLS", "Ring"),
        ("loosened", "hbm.copy.rank peers.deficit_at_most", "0.03", "0.05"),
        ("tightened", "hbm.copy.rank peers.sigma", "0.01", "0.005"),
    ]


def test_overlays_lie_in_their_order(folder):
    for name, number in (("one", 1), ("two", 2)):
        (folder.path / f"{name}.txt").write_text(f"deadline_s: {number}")
    profile = load_profile("child", folder.path, [folder.path / "one.txt", folder.path / "two.txt"])
    assert profile.deadline_s == 2
    assert [(change.old, change.new) for change in profile.changes] == [("300", "1"), ("1", "2")]
    assert [file.file for file in profile.files] == ["base.yaml", "child.yaml", "one.txt", "two.txt"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: base", "mine.yaml: extends: not allowed in an overlay; it lies on the profile of the machine"),
        (
            'match: {device_name: "NVIDIA H200"}',
            "mine.yaml: match.device_name: this overlay is for 'NVIDIA H200', and profile child is for 'NVIDIA X1'",
        ),
        ("requires: [ib]", "mine.yaml: requires 'ib', but there is no limit of it; subjects with limits: environment, hbm"),
        ('not_applicable: {"ib.*": "none"}', "mine.yaml: not_applicable.ib.*: matches nothing; subjects with limits: environment, hbm"),
    ],
)
def test_an_overlay_that_does_not_fit(text, message, folder):
    with pytest.raises(LimitsError) as caught:
        overlay(folder, text)
    assert str(caught.value) == message


def test_a_bare_name_is_an_overlay_of_the_folder(folder, monkeypatch):
    directory = folder(site_x="deadline_s: 7\n")
    assert load_profile("child", directory, [Path("site-x")]).deadline_s == 7
    with pytest.raises(LimitsError, match=r"^no overlay site-y: neither a file nor one of site-x; did you mean 'site-x'\?$"):
        load_profile("child", directory, [Path("site-y")])
    with pytest.raises(LimitsError, match=r"^child: there is no such file: '.*child'$"):
        load_profile("child", directory, [directory / "child"])
    monkeypatch.chdir(directory)
    Path("site-x").write_text("deadline_s: 9\n")
    assert load_profile("child", directory, [Path("site-x")]).deadline_s == 9


def test_summary_is_one_line():
    limit = Limit("a.b.c", "GB/s", "rank", SOURCE, "f.yaml", at_least={8: 2.5, 2: 1}, uniform=True, peers=Peers(0.03, 0.01))
    assert summary(limit) == "at_least 2: 1, 8: 2.5, uniform, peers within 0.03 GB/s"


# Properties

numbers = st.floats(-1e6, 1e6).map(lambda number: round(number, 3))
sizes = st.integers(1, 16)
bounds = st.one_of(st.none(), numbers, st.dictionaries(sizes, numbers, min_size=1, max_size=3))
limits = st.builds(
    Limit,
    metric=st.just("a.b.c"),
    unit=st.just("GB/s"),
    scope=st.just("rank"),
    source=st.just(SOURCE),
    file=st.just("f.yaml"),
    at_least=bounds,
    at_most=bounds,
    equals=st.one_of(st.none(), numbers),
    uniform=st.booleans(),
    peers=st.one_of(st.none(), st.builds(Peers, st.floats(0.01, 0.9), st.floats(0.01, 0.9))),
    world=st.one_of(st.none(), st.lists(sizes, min_size=1, max_size=3, unique=True).map(tuple)),
    nodes=st.sampled_from(["any", "one", "several"]),
    min_ranks=st.integers(1, 3),
    min_ranks_per_node=st.integers(1, 3),
    floor=numbers,
    ceiling=st.one_of(st.none(), numbers),
    spread_at_most=st.one_of(st.none(), st.floats(0.1, 10), st.dictionaries(sizes, st.floats(0.1, 10), min_size=1, max_size=3)),
)
SWAPPED = {
    "dropped": {"tightened", "added", "changed", "loosened"},  # loosened: where the ceiling fell as well
    "loosened": {"tightened", "added", "dropped"},
    "tightened": {"loosened", "dropped"},
    "added": {"loosened", "dropped"},
    "changed": {"changed", "dropped"},
}


@pytest.mark.slow
@given(old=limits, new=limits)
@settings(max_examples=500, deadline=None)
def test_loosened_one_way_is_tightened_the_other(old, new):
    there = {(key, was, now): kind for kind, key, was, now in limit_differences(old, new)}
    back = {(key, now, was): kind for kind, key, was, now in limit_differences(new, old)}
    assert there.keys() == back.keys()
    for change, kind in there.items():
        assert back[change] in SWAPPED[kind]


@given(limit=limits)
@settings(max_examples=200, deadline=None)
def test_nothing_changed_is_no_change(limit):
    assert list(limit_differences(limit, replace(limit, source="policy: another reason for it", file="g.yaml"))) == []


def holds(limit, value, size, num_nodes):
    """A judge of plain numbers, written apart from the code under test."""
    if not limit.applies(size, num_nodes):
        return True
    least = limit.at_least.get(size) if isinstance(limit.at_least, dict) else limit.at_least
    most = limit.at_most.get(size) if isinstance(limit.at_most, dict) else limit.at_most
    return (least is None or value >= least) and (most is None or value <= most) and (limit.equals is None or value == limit.equals)


@pytest.mark.slow
@given(old=limits, new=limits, value=numbers, size=st.integers(1, 20), num_nodes=st.integers(1, 3))
@settings(max_examples=500, deadline=None)
def test_no_figure_passes_thanks_to_an_overlay_that_loosened_nothing(old, new, value, size, num_nodes):
    if holds(new, value, size, num_nodes) and not holds(old, value, size, num_nodes):
        kinds = {kind for kind, *_ in limit_differences(old, new)}
        assert kinds & {"dropped", "loosened", "changed"}


def refusal(content, path):
    path.unlink(missing_ok=True)  # ext4 waits for its disk where a file that was there is written anew: 4 ms, 4,500 times
    path.write_bytes(content)
    try:
        read_file(path)
    except LimitsError as error:
        return str(error)
    return None


def refuses_or_reads(content, path):
    """Return True if the file was read. Only a LimitsError may come out, and its text is fit for a terminal."""
    message = refusal(content, path)
    if message is None:
        return True
    lines = message.split("\n")
    assert all(line.strip() and line.isprintable() and len(line) < 2000 for line in lines)
    assert len(lines) <= MAX_PROBLEMS + 1
    assert lines[0].startswith("f.yaml: ")
    return False


FUZZ = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
names = st.sampled_from(
    [
        *(*TOP_KEYS.split(", "), *ENTRY_KEYS.split(", "), "a.b.c", "gemm.bf16.sustained"),
        *('"a.{b,c}.d"', "b", "c", '"b,c"', '"{reading}"', "none", "8", "<<", "&a", "*a", "!!int", "~", ""),
    ]
)
scalars = st.one_of(
    names,
    st.sampled_from(["1e3", ".nan", ".inf", "yes", "12:30", "0x1f", "null", "true", "1.0e+400", "9" * 30]),
    st.text(max_size=12),
    numbers.map(str),
)
structures = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(st.tuples(scalars, inner), max_size=4).map(lambda items: "{" + ", ".join(f"{key}: {value}" for key, value in items) + "}"),
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(content=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))))
@settings(FUZZ, max_examples=2000)
def test_random_text_is_refused_in_words(content, tmp_path):
    refuses_or_reads(content, tmp_path / "f.yaml")


@pytest.mark.slow
@given(pairs=st.lists(st.tuples(names, structures), min_size=1, max_size=4))
@settings(FUZZ, max_examples=1000)
def test_random_structures_are_refused_in_words(pairs, tmp_path):
    text = "\n".join(f"{key}: {value}" for key, value in pairs)
    refuses_or_reads(text.encode("utf-8", "surrogatepass"), tmp_path / "f.yaml")


def mutated(content, chance):
    data = bytearray(content)
    for _ in range(chance.randint(1, 3)):
        start = chance.randrange(len(data))
        end = start + chance.randint(0, 8)
        data[start:end] = chance.choice(
            [
                b"",
                bytes([chance.randrange(256)]),
                b"\n",
                b"  ",
                b": ",
                b"&a ",
                b"*a",
                b".nan",
                b"1e3",
                b'"',
                b"{",
                b"\\U",
                b"\0",
                bytes(data[start:end]) * 2,
            ]
        )
    return bytes(data)


@pytest.mark.slow
def test_mutations_of_the_shipped_files_are_refused_in_words(tmp_path):
    contents = [b"\n".join(path.read_bytes().split(b"\n")[:40]) for path in SHIPPED]  # parsing is the cost: 40 lines have every key
    refused = 0
    for seed in range(1500):
        chance = random.Random(seed)
        refused += not refuses_or_reads(mutated(chance.choice(contents), chance), tmp_path / "f.yaml")
    assert refused > 375


def test_an_overlay_cannot_require_what_it_declares_not_applicable(folder):
    directory = folder(
        parent=f"extends: base\n{IB}",
        leaves='extends: parent\nmatch: {device_name: "L"}\n',
        site='requires: [ib]\nnot_applicable: {"ib.*": "not yet"}\n',
    )
    with pytest.raises(LimitsError, match=r"requires ib, and declares ib\.\* not applicable"):
        load_profile("leaves", directory, [directory / "site.yaml"])
