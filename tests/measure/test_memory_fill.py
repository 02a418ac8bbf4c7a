import itertools
import json
import re
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_acceptance.measure import memory_fill
from gpu_acceptance.measure.memory_fill import MOST_NAMED, PATTERNS, FillResult, WrongWord

CPU = torch.device("cpu")
PIECE = 32
NUM_WORDS = 100  # three full pieces and one of 4 words
CONSTANT = ("0x00", "0xFF", "0x55", "0xAA")
ALL_BITS = 2**64 - 1


@pytest.fixture(autouse=True, scope="module")
def small_pieces():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_fill, "_PIECE", PIECE)
        patch.setattr(memory_fill, "_SEARCHED", 5)
        yield


def measure(hook=None, *, num_words=NUM_WORDS, **options):
    given = {"device": CPU, "fraction": 0.5, "hold_s": 0.0, "min_bytes": 8, "cpu_bytes": 16 * num_words, **options}
    return memory_fill.measure(**given, between_write_and_verify=hook)


def signed(word):
    return word - 2**64 if word >= 2**63 else word


def changing(changes, pattern=None):
    """Word -> bits that flip; after each pattern, or after one."""

    def change(name, pieces):
        for word, bits in changes.items():
            if pattern in {None, name}:
                pieces[word // PIECE][word % PIECE] ^= signed(bits)

    return change


def aliased(line):
    """Alias words as an address line that is stuck at 1 does: of two addresses that differ in it alone, only one exists."""

    def change(name, pieces):
        memory = torch.cat(pieces)
        words = torch.arange(len(memory))
        lost = words[((words >> line) & 1 == 0) & (words + 2**line < len(memory))]
        memory[lost] = memory[lost + 2**line]
        for piece, values in zip(pieces, memory.split(PIECE), strict=True):
            piece.copy_(values)

    return change


@pytest.mark.parametrize("num_words", [1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, NUM_WORDS])
def test_sound_memory_has_no_wrong_word_and_all_of_it_is_tested(num_words):
    seen = []
    result = measure(lambda pattern, pieces: seen.append((pattern, sum(map(len, pieces)))), num_words=num_words)
    assert result == FillResult(16 * num_words, 8 * num_words, 0, ())
    assert (result.fraction, result.where) == (0.5, "")
    assert seen == [(pattern, num_words) for pattern in PATTERNS]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        *((f"0x{byte:02X}", [int.from_bytes(bytes([byte]) * 8)] * NUM_WORDS) for byte in (0x00, 0xFF, 0x55, 0xAA)),
        ("address", list(range(NUM_WORDS))),
    ],
)
def test_a_constant_pattern_holds_its_byte_everywhere_and_a_word_of_address_its_own_index(pattern, words):
    values = []
    measure(lambda _, pieces: values.append(torch.cat(pieces)), patterns=[pattern])
    assert values[0].tolist() == list(map(signed, words))


def test_random_words_use_every_bit_and_differ_and_come_again():
    values = []
    for _ in range(2):
        measure(lambda _, pieces: values.append(torch.cat(pieces)), patterns=["random"])
    assert torch.equal(*values)
    words = [word % 2**64 for word in values[0].tolist()]
    assert len(set(words)) == NUM_WORDS
    assert all(0 < sum(word >> bit & 1 for word in words) < NUM_WORDS for bit in range(64))


@settings(deadline=None, max_examples=60)
@given(pattern=st.sampled_from(sorted(PATTERNS)), word=st.integers(0, NUM_WORDS - 1), bit=st.integers(0, 63))
def test_one_flipped_bit_is_found_at_its_place(pattern, word, bit):
    result = measure(changing({word: 1 << bit}, pattern))
    (wrong,) = result.first_wrong
    assert (result.num_wrong, wrong.pattern, wrong.xor) == (1, pattern, 1 << bit)
    assert (wrong.piece, wrong.offset_bytes, wrong.address_bytes) == (word // PIECE, word % PIECE * 8, word * 8)
    assert wrong.expected ^ wrong.got == 1 << bit
    assert 0 <= wrong.expected < 2**64 > wrong.got >= 0


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(st.integers(0, NUM_WORDS - 1), st.integers(1, ALL_BITS), max_size=NUM_WORDS))
def test_all_wrong_words_are_counted_and_the_first_of_each_pattern_are_named_in_order(changes):
    result = measure(changing(changes))
    assert result.num_wrong == 6 * len(changes)
    found = [(one.pattern, one.address_bytes // 8, one.xor) for one in result.first_wrong]
    assert found == [(pattern, *change) for pattern in PATTERNS for change in sorted(changes.items())[:MOST_NAMED]]


@pytest.mark.parametrize("line", range(6))
def test_a_stuck_address_line_is_missed_by_every_constant_pattern_and_found_by_address_and_random(line):
    num_lost = sum(word + 2**line < NUM_WORDS for word in range(NUM_WORDS) if not word >> line & 1)
    assert measure(aliased(line), patterns=CONSTANT).num_wrong == 0
    result = measure(aliased(line), patterns=["address"])
    assert result.num_wrong == num_lost
    assert [(one.address_bytes, one.expected, one.xor) for one in result.first_wrong[:1]] == [(0, 0, 2**line)]
    assert measure(aliased(line), patterns=["random"]).num_wrong == num_lost


@pytest.mark.parametrize("bit", [0, 63])
@pytest.mark.parametrize(("stuck", "missed"), [(0, "0x00"), (1, "0xFF")])
def test_a_stuck_bit_is_missed_by_one_constant_and_found_by_another(bit, stuck, missed):
    def change(pattern, pieces):
        mask = torch.tensor(signed(1 << bit))
        pieces[1][7] = pieces[1][7] | mask if stuck else pieces[1][7] & ~mask

    wrong = {one.pattern for one in measure(change).first_wrong}
    assert missed not in wrong
    assert wrong & {"0x00", "0xFF"}
    assert wrong & {"0x55", "0xAA"}


def test_what_was_never_counted_is_wrong(monkeypatch):
    monkeypatch.setattr(torch, "sum", lambda *_, **__: None)
    assert measure(patterns=["0x00"]).num_wrong >= NUM_WORDS


def test_a_word_that_is_right_when_read_again_is_counted_and_said(monkeypatch):
    """As on a device that misread it once: it is repaired between counting and looking."""
    count = memory_fill._count_wrong

    def counted_then_repaired(pattern, pieces, scratch_N):
        counts = count(pattern, pieces, scratch_N)
        pieces[1][3] ^= 4
        return counts

    monkeypatch.setattr(memory_fill, "_count_wrong", counted_then_repaired)
    result = measure(changing({PIECE + 3: 4}), patterns=["0x55"])
    assert (result.num_wrong, result.first_wrong, result.where) == (1, (), "right when read again")


def test_a_wrong_word_in_one_line():
    result = measure(changing({40: 1 << 63, 41: 1}), patterns=["0x55", "0xAA"])
    assert result.where == (
        "0x55: byte 0x140 of the tested memory (piece 1 + 0x40) held 0xd555555555555555, not 0x5555555555555555, XOR 0x8000000000000000"
    )
    assert str(WrongWord("address", 0, 8, 8, 1, 0)).endswith("held 0x0000000000000000, not 0x0000000000000001, XOR 0x0000000000000001")


def test_it_holds_every_pattern_at_work_before_it_looks(monkeypatch):
    """Each question for the time is half a second later, so 1.5 s are begun, two rounds of products and the end."""
    events, now_s, real = [], itertools.count(0.0, 0.5), torch.mm

    def multiply(one, other, *, out):
        assert one.abs().sum() > 0
        events.append("mm")
        return real(one, other, out=out)

    monkeypatch.setattr(memory_fill, "time", SimpleNamespace(monotonic=lambda: next(now_s)))
    monkeypatch.setattr(torch, "mm", multiply)
    assert measure(lambda pattern, pieces: events.append(pattern), hold_s=1.5).num_wrong == 0
    assert [(event, len(list(group))) for event, group in itertools.groupby(events)] == [
        event for pattern in PATTERNS for event in (("mm", 100), (pattern, 1))
    ]


def test_words_that_a_drill_spoils_are_found():
    assert memory_fill.plant(0) is None
    result = measure(memory_fill.plant(2))
    assert result.num_wrong == 2
    assert [(wrong.pattern, wrong.xor) for wrong in result.first_wrong] == [("random", 1 << 40)] * 2
    assert [wrong.address_bytes for wrong in result.first_wrong] == [8 * (NUM_WORDS - 2), 8 * (NUM_WORDS - 1)]


def allocations(folder, hook=None, **options):
    """Bytes of every allocation, by torch's own account: those inside its operations too."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        measure(hook, **options)
    profile.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    return [event["args"]["Bytes"] for event in events if event.get("name") == "[memory]" and event["args"]["Bytes"] > 0]


@pytest.mark.parametrize(
    ("num_words", "hook", "beside"),  # bytes, beside the memory and one piece
    [(20 * 2**16 + 1, None, 2**16), (2**17, lambda pattern, pieces: [piece.bitwise_not_() for piece in pieces], None)],
    ids=["sound", "all wrong"],
)
def test_nothing_is_allocated_beside_the_memory_and_one_piece_and_little_to_look_for_wrong_words(
    num_words, hook, beside, monkeypatch, tmp_path
):
    monkeypatch.setattr(memory_fill, "_PIECE", 2**16)
    monkeypatch.setattr(memory_fill, "_SEARCHED", 2**10)
    allocated, needed = allocations(tmp_path, hook, num_words=num_words), 8 * (num_words + 2**16)
    if beside:
        assert needed <= sum(allocated) <= needed + beside
    else:
        assert sum(sorted(allocated)[-3:]) == needed
        assert sorted(allocated)[-4] <= 16 * 2**10


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"fraction": 0.95, "cpu_bytes": 1000, "min_bytes": 945}, "1000 bytes of memory are free, and 0.95 of it is 944"),
        ({"cpu_bytes": 0}, "0 bytes of memory are free, and 0.5 of it is 0"),  # nobody says what is free
    ],
)
def test_too_little_free_memory_is_refused(options, text):
    least = options.get("min_bytes", 8)
    with pytest.raises(RuntimeError, match=f"^{re.escape(f'cpu: {text} bytes in whole words; at least {least} must be tested')}$"):
        measure(**options)
    assert measure(fraction=0.95, cpu_bytes=1000, min_bytes=944).tested_bytes == 944


def test_of_a_gpu_the_driver_says_what_is_free_once_torch_has_given_back_what_it_keeps(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: asked.append("empty_cache"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: asked.append(str(device)) or (10_000, 150_000_000_000))
    text = r"^cuda:3: 10000 bytes of memory are free, and 0\.95 of it is 9496 bytes in whole words; at least 1000000 must be tested$"
    with pytest.raises(RuntimeError, match=text):
        measure(device=torch.device("cuda", 3), fraction=0.95, min_bytes=1_000_000, cpu_bytes=2**40)
    assert asked == ["empty_cache", "cuda:3"]
