import os
import threading

import pytest

from gpu_acceptance.worker import channel
from gpu_acceptance.worker.channel import ChannelError, LineReader, write_message


@pytest.fixture
def pipe():
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    yield LineReader(read_fd), write_fd
    os.close(read_fd)
    os.close(write_fd)


def test_a_message_arrives_as_it_was_sent(pipe):
    reader, write_fd = pipe
    message = {"type": "done", "message": "line 1\nline 2 µ \ud800", "figures": [{"value": 1.5}], "nothing": None}
    write_message(write_fd, message)
    assert reader.read() == [message]


def test_nothing_there_is_no_end(pipe):
    reader, _ = pipe
    assert reader.read() == []


def test_several_in_one_read_and_one_in_several(pipe):
    reader, write_fd = pipe
    os.write(write_fd, b'{"type": "a"}\n{"type": "b"}\n{"ty')
    assert reader.read() == [{"type": "a"}, {"type": "b"}]
    os.write(write_fd, b'pe": "c"}')
    assert reader.read() == []
    os.write(write_fd, b"\n")
    assert reader.read() == [{"type": "c"}]


def test_the_end_of_the_stream_is_none():
    read_fd, write_fd = os.pipe()
    reader = LineReader(read_fd)
    os.write(write_fd, b'{"type": "a"}\n{"half')
    os.close(write_fd)
    assert reader.read() == [{"type": "a"}]
    assert reader.read() is None
    os.close(read_fd)


@pytest.mark.parametrize("line", [b"Segmentation fault", b"[1, 2]", b'{"no": "type"}', b'{"type": "a"', b"\xff\xfe"])
def test_what_is_no_message_is_named(pipe, line):
    reader, write_fd = pipe
    os.write(write_fd, line + b"\n")
    with pytest.raises(ChannelError) as caught:
        reader.read()
    assert str(caught.value).startswith(f"not a message: {line!r}")


def test_what_is_nested_too_deep_is_no_message(pipe):
    reader, write_fd = pipe
    os.write(write_fd, b'{"type": ' + b"[" * 20_000 + b"]" * 20_000 + b"}\n")
    with pytest.raises(ChannelError, match=r"not a message: .*maximum recursion depth exceeded"):
        reader.read()


def test_a_line_without_end_is_refused(pipe, monkeypatch):
    monkeypatch.setattr(channel, "MAX_LINE_BYTES", 100)
    reader, write_fd = pipe
    os.write(write_fd, b"x" * 101)
    with pytest.raises(ChannelError, match="a line of more than 100 bytes"):
        reader.read()


def test_a_message_larger_than_the_pipe_is_written_whole(pipe):
    reader, write_fd = pipe
    message = {"type": "done", "message": "x" * 300_000}
    writer = threading.Thread(target=write_message, args=(write_fd, message))
    writer.start()
    received = []
    while not received:
        received += reader.read()
    writer.join()
    assert received == [message]
