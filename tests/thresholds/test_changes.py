"""An overlay names each limit that it changed, and in which direction."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_acceptance.thresholds.changes import limit_differences, summary
from gpu_acceptance.thresholds.limit import ByNodes, Limit, Peers
from gpu_acceptance.thresholds.profile import LimitsError, load_profile
from tests.thresholds.profile_texts import CHILD, IB, SOURCE, numbers, plain


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
        (
            "match: {fabric: {link: IB}}",
            "mine.yaml: match.fabric: not allowed in an overlay; it lies on whatever network was chosen",
        ),
        ("requires: [ib]", "mine.yaml: requires 'ib', but there is no limit of it; subjects with limits: environment, hbm"),
        ('not_applicable: {"ib.*": "none"}', "mine.yaml: not_applicable.ib.*: matches nothing; subjects with limits: environment, hbm"),
    ],
)
def test_an_overlay_that_does_not_fit(text, message, folder):
    with pytest.raises(LimitsError) as caught:
        overlay(folder, text)
    assert str(caught.value) == message


def test_an_overlay_is_for_nodes_with_so_many_gpus(folder):
    profile = overlay(folder, "match: {gpus_per_node: 1}\ndeadline_s: 7")
    assert profile.gpus_per_node == {"mine.yaml": 1}
    assert profile.find_other_node([("a", 1), ("b", 1)]) is None
    text = "mine.yaml: match.gpus_per_node: this overlay is for nodes with 1 GPU, and b has 2"
    assert profile.find_other_node([("a", 1), ("b", 2)]) == text


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


def test_bounds_by_the_number_of_nodes(folder):
    first = overlay(folder, plain("at_least: {nodes: {2: 90, 3-8: 80, 9-9999: none}}", "nodes: several", *KEPT))
    assert first.limits["hbm.copy.bandwidth"].at_least == ByNodes({"2": 90, "3-8": 80, "9-9999": None})
    assert [(change.kind, change.key, change.old, change.new) for change in first.changes] == [
        ("dropped", "hbm.copy.bandwidth at_least on 9, 9999 and other numbers of nodes", "100", "none"),
        ("loosened", "hbm.copy.bandwidth at_least on 2 nodes", "100", "90"),
        ("loosened", "hbm.copy.bandwidth at_least on 3, 8 nodes", "100", "80"),
        ("loosened", "hbm.copy.bandwidth nodes", "any", "several"),
    ]


sizes = st.integers(1, 16)


@st.composite
def by_nodes(draw):
    """Ranges from some numbers of nodes to the next ones, each with a bound or with none."""
    ends = sorted(draw(st.sets(st.integers(1, 6), min_size=1, max_size=4)))
    ranges = [
        str(first) if first == last else f"{first}-{last}" for first, last in zip([1, *(end + 1 for end in ends)], ends, strict=False)
    ]
    kept = draw(st.lists(st.sampled_from(ranges), min_size=1, unique=True))
    return ByNodes({text: draw(st.one_of(st.none(), numbers)) for text in kept})


bounds = st.one_of(st.none(), numbers, st.dictionaries(sizes, numbers, min_size=1, max_size=3), by_nodes())
limits = st.builds(
    Limit,
    metric=st.just("a.b.c"),
    unit=st.just("GB/s"),
    scope=st.just("rank"),
    source=st.just(SOURCE),
    file=st.just("f.yaml"),
    at_least=bounds,
    at_most=bounds,
    equals=st.one_of(st.none(), numbers, st.lists(numbers, min_size=2, max_size=3, unique=True).map(tuple)),
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
    least, most = (bound_of(bound, size, num_nodes) for bound in (limit.at_least, limit.at_most))
    wanted = limit.equals if isinstance(limit.equals, tuple) else (limit.equals,)
    return (least is None or value >= least) and (most is None or value <= most) and (limit.equals is None or value in wanted)


def bound_of(bound, size, num_nodes):
    if isinstance(bound, ByNodes):
        listed = {int(number): one for text, one in bound.nodes.items() for number in numbers_of(text)}
        return listed.get(num_nodes)
    return bound.get(size) if isinstance(bound, dict) else bound


def numbers_of(text):
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


@pytest.mark.slow
@given(old=limits, new=limits, value=numbers, size=st.integers(1, 20), num_nodes=st.integers(1, 7))
@settings(max_examples=500, deadline=None)
def test_no_figure_passes_thanks_to_an_overlay_that_loosened_nothing(old, new, value, size, num_nodes):
    if holds(new, value, size, num_nodes) and not holds(old, value, size, num_nodes):
        kinds = {kind for kind, *_ in limit_differences(old, new)}
        assert kinds & {"dropped", "loosened", "changed"}


def test_an_overlay_cannot_require_what_it_declares_not_applicable(folder):
    directory = folder(
        parent=f"extends: base\n{IB}",
        leaves='extends: parent\nmatch: {device_name: "L"}\n',
        site='requires: [ib]\nnot_applicable: {"ib.*": "not yet"}\n',
    )
    with pytest.raises(LimitsError, match=r"requires ib, and declares ib\.\* not applicable"):
        load_profile("leaves", directory, [directory / "site.yaml"])
