import hashlib
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_acceptance.thresholds.file import MAX_PROBLEMS, read_file
from gpu_acceptance.thresholds.limit import Limit, Peers
from gpu_acceptance.thresholds.profile import LimitsError, load_profile, profile_names, select_profile, shipped_dir
from tests.thresholds.profile_texts import CHILD, ENTRY_KEYS, IB, SOURCE, TOP_KEYS, numbers, plain

SHIPPED = sorted(shipped_dir().glob("*.yaml"))


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


def test_a_profile_is_for_nodes_of_any_size(folder):
    with pytest.raises(
        LimitsError, match=r"^z.yaml: match.gpus_per_node: belongs into an overlay; a profile is for nodes with any number "
    ):
        load_profile("z", folder(z='match: {device_name: "Z", gpus_per_node: 1}\n'))


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
