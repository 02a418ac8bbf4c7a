import hashlib
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.measure.lora import reading
from gpu_acceptance.measure.lora.calls import Call, DialogueError, Message
from gpu_acceptance.measure.lora.reading import read
from tools.made_dialogues import made

WANTED = f"wanted: {reading.WANTED}"
ON_EVERY_NODE = WANTED.replace("wanted", "wanted on every node", 1)
ADD = {"name": "add", "description": "Adds", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
SUB = {"name": "sub", "parameters": {}}
TOOL = {"type": "function", "function": ADD}
ASKED = {"role": "user", "content": "one more than 3"}
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "x", "type": "function", "function": {"name": "add", "arguments": {"a": 3}}}],
}
ANSWERED = {"role": "tool", "content": "4", "tool_call_id": "x"}
SAID = {"role": "assistant", "content": "It is 4."}
GOOD = {"tools": [TOOL], "messages": [ASKED, CALLED, ANSWERED, SAID]}


@pytest.fixture
def read_lines(tmp_path):
    def read_all(*lines):
        path = tmp_path / "calls.jsonl"
        path.write_bytes(b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines))
        return read(path)

    return read_all


@pytest.fixture
def error_of(read_lines, tmp_path):
    def problem(*lines):
        with pytest.raises(DialogueError) as caught:
            read_lines(*lines)
        assert "\n" not in str(caught.value)
        return str(caught.value).removeprefix(f"{tmp_path}/")

    return problem


# --- chat format ---------------------------------------------------------------------------------------------------------------


def test_a_dialogue_in_chat_format(read_lines):
    system = {"role": "system", "content": "Be brief."}
    found = read_lines({"messages": [system, *GOOD["messages"]], "tools": [TOOL, SUB]})
    (dialogue,) = found.dialogues
    assert dialogue.tools == (TOOL, {"type": "function", "function": SUB})
    said = (Message("user", "one more than 3"), Message("assistant", "", (Call("add", {"a": 3}),)), Message("tool", "4"))
    assert dialogue.messages == (Message("system", "Be brief."), *said, Message("assistant", "It is 4."))
    assert (dialogue.line, found.num_lines, found.num_calls, found.dropped) == (1, 1, 1, {})


def test_arguments_may_be_the_text_of_an_object(read_lines):
    call = {"function": {"name": "add", "arguments": '{"a": 3}'}}
    (dialogue,) = read_lines({"tools": [ADD], "messages": [ASKED, {"role": "assistant", "content": "", "tool_calls": [call]}]}).dialogues
    assert dialogue.messages[1].calls == (Call("add", {"a": 3}),)


def test_blank_lines_are_no_lines_and_a_file_is_known_by_its_hash(read_lines):
    content = json.dumps(GOOD).encode()
    found = read_lines(content, b"", b"  \r", {"messages": [ASKED, SAID]})
    assert [dialogue.line for dialogue in found.dialogues] == [1, 4]
    assert found.num_lines == 2
    assert read_lines(content).sha256 == hashlib.sha256(content + b"\n").hexdigest()


def test_all_that_are_made_are_read(read_lines):
    found = read_lines(*made(200, seed=1))
    assert (len(found.dialogues), found.dropped) == (200, {})


def call_of(**function):
    return {**CALLED, "tool_calls": [{"type": "function", "function": function}]}


DROPPED = {
    "no messages": ({"text": "x"}, "an object of no known format"),
    "messages": ({"messages": "x"}, "messages that are no list of objects"),
    "message": ({"messages": ["x"]}, "messages that are no list of objects"),
    "none": ({"messages": []}, "no user who begins"),
    "tools": ({**GOOD, "tools": {"a": 1}}, "tools that are no list"),
    "tool": ({**GOOD, "tools": ["add"]}, "a function without a name is offered"),
    "unnamed tool": ({**GOOD, "tools": [{"type": "function", "function": {}}]}, "a function without a name is offered"),
    "twice": ({**GOOD, "tools": [TOOL, {**ADD, "description": "x"}]}, "two functions of one name are offered"),
    "role": ({"messages": [{"role": "owner", "content": "x"}, SAID]}, "a role other than system, user, assistant, tool"),
    "list as role": ({"messages": [{"role": ["user"], "content": "x"}, SAID]}, "a role other than system, user, assistant, tool"),
    "parts": ({"messages": [{"role": "user", "content": [{"type": "text"}]}, SAID]}, "content that is no text"),
    "begins": ({"messages": [SAID, ASKED]}, "no user who begins"),
    "unanswered": ({"messages": [ASKED]}, "no answer"),
    "late system": ({"messages": [ASKED, SAID, {"role": "system", "content": "x"}]}, "a system message that is not the first"),
    "empty": ({"messages": [ASKED, {"role": "assistant", "content": " "}]}, "an empty message"),
    "null": ({"messages": [{"role": "user", "content": None}, SAID]}, "an empty message"),
    "two answers": ({"messages": [ASKED, SAID, SAID]}, "two answers, and nothing between them"),
    "not called": ({"messages": [ASKED, SAID, ANSWERED]}, "a function answers that was not called"),
    "not offered": ({"messages": [ASKED, CALLED]}, "a call of a function that is not offered"),
    "calling user": ({**GOOD, "messages": [{**CALLED, "role": "user"}, SAID]}, "calls that are not of an assistant"),
    "calls": ({**GOOD, "messages": [ASKED, {**CALLED, "tool_calls": {"name": "add"}}]}, "calls that are no list"),
    "text as call": ({**GOOD, "messages": [ASKED, {**CALLED, "tool_calls": ["add"]}]}, "a call without a function's name"),
    "unnamed call": ({**GOOD, "messages": [ASKED, call_of(arguments={})]}, "a call without a function's name"),
    "list": ({**GOOD, "messages": [ASKED, call_of(name="add", arguments=[1])]}, "arguments that are no object"),
    "broken": ({**GOOD, "messages": [ASKED, call_of(name="add", arguments="{")]}, "arguments that are no object"),
    "no functions": ({**GOOD, "tools": [], "functions": []}, "a call of a function that is not offered"),
    "no texts": ({"system": None, "chat": "x"}, "system or chat that is no text"),
}


@pytest.mark.parametrize(("line", "reason"), DROPPED.values(), ids=DROPPED)
def test_what_is_dropped_is_counted_by_its_reason(read_lines, line, reason):
    found = read_lines(GOOD, line, line)
    assert (len(found.dialogues), found.dropped, found.num_lines) == (1, {reason: (2, 3)}, 3)


# --- Glaive --------------------------------------------------------------------------------------------------------------------

SYSTEM = f"""SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -
{json.dumps(ADD, indent=4)}

{json.dumps(SUB, indent=4)}

"""
CHAT = """USER: Hi, what is one more than 3? It's urgent: please


ASSISTANT: Let me see. <functioncall> {"name": "add", "arguments": '{"a": 3}'} <|endoftext|>


FUNCTION RESPONSE: {"sum": 4}


ASSISTANT: It is 4. <|endoftext|>


USER: Thank you


ASSISTANT: You're welcome! <|endoftext|>


"""


def test_a_dialogue_of_glaive(read_lines):
    (dialogue,) = read_lines({"system": SYSTEM, "chat": CHAT}).dialogues
    assert dialogue.tools == (TOOL, {"type": "function", "function": SUB})
    assert dialogue.messages == (
        Message("system", "You are a helpful assistant with access to the following functions. Use them if required"),
        Message("user", "Hi, what is one more than 3? It's urgent: please"),
        Message("assistant", "Let me see.", (Call("add", {"a": 3}),)),
        Message("tool", '{"sum": 4}'),
        Message("assistant", "It is 4."),
        Message("user", "Thank you"),
        Message("assistant", "You're welcome!"),
    )


def test_a_dialogue_of_glaive_without_functions(read_lines):
    said = "You are a helpful assistant, with no access to external functions."
    _, dialogue = read_lines(GOOD, {"system": f"SYSTEM: {said}\n", "chat": "USER: Hi\n\n\nASSISTANT: Hello"}).dialogues
    assert dialogue.tools == ()
    assert dialogue.messages == (Message("system", said), Message("user", "Hi"), Message("assistant", "Hello"))


@pytest.mark.parametrize(
    ("system", "chat", "reason"),
    [
        (SYSTEM, f"Hello {CHAT}", "a text before the first speaker"),
        (SYSTEM[:-10], CHAT, "functions that are no JSON"),
        (SYSTEM, CHAT.replace("'{", "{"), "a call in the text that cannot be read"),
        (SYSTEM, CHAT.replace("add", "multiply"), "a call of a function that is not offered"),
        ("", CHAT, "a call of a function that is not offered"),
        (SYSTEM, "", "no user who begins"),
        (SYSTEM, CHAT.replace("FUNCTION RESPONSE", "ASSISTANT"), "two answers, and nothing between them"),
    ],
)
def test_what_is_dropped_of_glaive(read_lines, system, chat, reason):
    assert read_lines(GOOD, {"system": system, "chat": chat}).dropped == {reason: (2,)}


@given(st.text("{}[]\"',:a1\n\\ "), st.lists(st.sampled_from([*CHAT.split(" "), "USER:", "\nASSISTANT:", "\n"])).map(" ".join))
def test_no_text_of_glaive_raises_anything_else(tmp_path_factory, system, chat):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n{json.dumps({'system': system, 'chat': chat})}")
    assert read(path).num_lines == 2


# --- what is no such file ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"messages": [}', "column 15: Expecting value"),
        (b'{"messages": [], "messages": []}', "key 'messages' is given twice"),
        (b'{"a": NaN}', "NaN is no JSON"),
        (b'{"a": ' + b"1" * 50 + b"}", f"number '{'1' * 50}' has more than 40 digits"),
        (rb'{"a": "\ud800"}', "a text with a NUL, or with half of a surrogate pair"),
        (b'{"a": "\xff"}', "not UTF-8: byte 8 is 0xff"),
        (b'{"a": "\0"}', "a NUL byte; it is not text"),
        (b"\xef\xbb\xbf{}", "a byte order mark; save it as UTF-8 without one"),
        (b'{"a": 1e400}', "number '1e400' is too large"),
        (json.dumps(GOOD).encode()[:50], "column 51: Invalid control character at"),
        (b'{"a":' * 100_000, "nested deeper than 64 levels"),
        (b"7", "no object"),
    ],
)
def test_a_malformed_line_costs_that_line_and_has_its_reason(read_lines, line, said):
    found = read_lines(GOOD, b"", GOOD, line, GOOD, line)
    assert [dialogue.line for dialogue in found.dialogues] == [1, 3, 5]
    assert (found.dropped, found.num_lines) == ({said: (4, 6)}, 5)


def test_a_byte_order_mark_may_begin_a_file(read_lines):
    content = json.dumps(GOOD).encode()
    for mark_and_file, num in ((b"\xef\xbb\xbf" + content, 1), (b"\xef\xbb\xbf[" + content + b", " + content + b"]", 2)):
        found = read_lines(mark_and_file)
        assert (len(found.dialogues), found.dropped, found.is_list) == (num, {}, num == 2)
        assert found.sha256 == hashlib.sha256(mark_and_file + b"\n").hexdigest()


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((b"[", GOOD), "object 1: neither a comma nor ] after it; was it copied whole?"),
        ((b"[", GOOD, b","), "object 2: line 4, column 1: Expecting value"),
        ((b"[", GOOD, b"]", GOOD), "object 1: more after the list"),
        ((b"[", GOOD, b", 7]"), "object 2: no object"),
        ((b"[",), "object 0: the list does not end; was it copied whole?"),
        ((b"", b"[1, \xff"), "object 0: not UTF-8: byte 6 is 0xff"),
    ],
)
def test_a_list_that_is_torn_is_an_error_with_the_number_of_its_object(error_of, lines, said):
    assert error_of(*lines) == f"calls.jsonl, {said}; {WANTED}"


def test_one_list_of_all_is_read_and_its_objects_are_counted(read_lines):
    lines = [b"", b"[", GOOD, b",", ONLY, b",", GOOD, b"]", b""]
    found = read_lines(*lines)
    assert [dialogue.line for dialogue in found.dialogues] == [1, 3]
    assert (found.num_lines, found.dropped, found.reasons) == (3, {"no answer": (2,)}, "no answer (1: object 2)")
    assert read_lines(json.dumps([GOOD] * 3).encode()).num_lines == 3


def test_a_line_and_a_file_that_is_too_long(read_lines, error_of, monkeypatch):
    monkeypatch.setattr(reading, "MOST_LINE_BYTES", 1000)
    long = [b"x" * size for size in (1000, 2000, 5000)]
    found = read_lines(GOOD, b"x" * 999, *long, GOOD, long[0])
    assert [dialogue.line for dialogue in found.dialogues] == [1, 6]
    assert found.dropped == {"column 1: Expecting value": (2,), "longer than 1,000 bytes": (3, 4, 5, 7)}
    assert found.sha256 == read_lines(GOOD, b"x" * 999, *long, GOOD, long[0]).sha256 != read_lines(GOOD, b"x" * 999, *long, GOOD).sha256
    monkeypatch.setattr(reading, "MOST_BYTES", 1000)
    assert error_of(b" " * 1500) == "calls.jsonl: 1,501 bytes; wanted: at most 1,000, a part of it will do"


ONLY, PLAIN = {"messages": [ASKED]}, {"messages": [ASKED, SAID]}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((), f"0 lines, and no dialogue to learn from; {WANTED}"),
        (
            ({"a": 1}, ONLY, ONLY),
            f"3 lines, and no dialogue to learn from: no answer (2: lines 2, 3), an object of no known format (1: line 1); {WANTED}",
        ),
        ((PLAIN, PLAIN), "no call in 2 dialogues: nothing to learn about calling functions"),
        (
            (PLAIN, {**GOOD, "tools": []}),
            "no call in 1 dialogues: a call of a function that is not offered (1: line 2): nothing to learn about calling functions",
        ),
    ],
)
def test_nothing_to_learn_from(error_of, lines, said):
    assert error_of(*lines) == f"calls.jsonl: {said}"


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    faults = {"pipe": "not a file", ".": "not a file", "no": "cannot be read: No such file or directory"}
    for name, said in {**faults, "x" * 300: "cannot be read: File name too long"}.items():
        with pytest.raises(DialogueError) as caught:
            read(tmp_path / name)
        assert str(caught.value) == f"{tmp_path / name}: {said}; {ON_EVERY_NODE}"


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"PAR1\x15\x04", 'Parquet, not text in UTF-8; convert it: python -c "import pandas; pandas.read_parquet(FILE).to_json('),
        (b"ARROW1\0\0", 'Arrow, not text in UTF-8; convert it: python -c "import pandas; pandas.read_feather(FILE).to_json('),
        (b"\x1f\x8b\x08", "gzip, not text in UTF-8; convert it: gunzip FILE; wanted: one object a line"),
        (b"\x28\xb5\x2f\xfd", "zstd, not text in UTF-8; convert it: unzstd FILE; wanted: "),
        (b"BZh91AY", "bzip2, not text in UTF-8; convert it: bunzip2 FILE; wanted: "),
        (b"\xfd7zXZ\0", "xz, not text in UTF-8; convert it: unxz FILE; wanted: "),
        ("{}".encode("utf-16"), "UTF-16, not text in UTF-8; convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW; wanted: "),
        (b"\xfe\xff\0{", "UTF-16, not text in UTF-8; convert it: iconv "),
        (b"version https://git-lfs.", "a pointer of Git LFS, not text in UTF-8; convert it: git lfs pull; wanted: "),
        (b"PK\3\4", "zip, not text in UTF-8; convert it: unzip FILE; wanted: "),
    ],
)
def test_a_packed_file_is_refused_with_its_converter(error_of, start, said):
    assert error_of(start).startswith(f"calls.jsonl: {said}")


@given(st.lists(st.one_of(st.binary(), st.text().map(str.encode)), max_size=3).map(b"\n".join))
def test_no_bytes_raise_anything_else(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(content)
    with pytest.raises(DialogueError):
        read(path)
