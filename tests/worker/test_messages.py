import os
import sys
import threading
import traceback
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from waiting import wait_until

from gpu_acceptance.base.model import ChannelError, LineReader
from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.verdict import attempts
from gpu_acceptance.worker.messages import (
    FROM_WORKER,
    Done,
    Quit,
    Ready,
    RunFacts,
    Teardown,
    TornDown,
    ToSupervisor,
    write_message,
)
from gpu_acceptance.worker.options import Paths
from gpu_acceptance.worker.plugin import WorkerPlugin

READY, TEARDOWN, TORN_DOWN = (b'{"type": "%s"}\n' % kind for kind in (b"ready", b"teardown", b"torn_down"))


@pytest.fixture
def pipe():
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    yield LineReader(read_fd, FROM_WORKER), write_fd
    os.close(read_fd)
    os.close(write_fd)


def done(message, value=1.5):
    figure = Figure(metric="hbm.copy.bandwidth", value=value, unit="GB/s", judged=True)
    return Done(outcome=Outcome.FAILED, phase="call", message=message, duration_s=0.5, figures=(figure,))


def test_a_message_arrives_as_it_was_sent(pipe):
    reader, write_fd = pipe
    message = done("line 1\nline 2 µ \u2028")
    write_message(write_fd, message)
    assert reader.read() == [message]


def test_half_of_a_surrogate_pair_comes_as_its_escape(pipe):
    reader, write_fd = pipe
    write_message(write_fd, done("a file \udcff"))
    assert reader.read() == [done("a file \\udcff")]


def test_a_path_of_any_bytes_comes_as_it_was():
    path = Path(os.fsdecode(b"/tmp/\xff a%20\n"))
    facts = RunFacts(floors={}, parameters={}, digests={}, declared_nodes=(), paths=Paths(checkpoints=path, lora_data=Path("/data")))
    facts_alone = TypeAdapter(RunFacts)
    assert facts_alone.validate_json(facts_alone.dump_json(facts)) == facts


def test_an_empty_pipe_is_no_end(pipe):
    reader, _ = pipe
    assert reader.read() == []


def test_several_in_one_read_and_one_in_several(pipe):
    reader, write_fd = pipe
    os.write(write_fd, READY + TEARDOWN + TORN_DOWN[:5])
    assert reader.read() == [Ready(), Teardown()]
    os.write(write_fd, TORN_DOWN[5:-1])
    assert reader.read() == []
    os.write(write_fd, b"\n")
    assert reader.read() == [TornDown()]


def test_the_end_of_the_stream_is_none():
    read_fd, write_fd = os.pipe()
    reader = LineReader(read_fd, FROM_WORKER)
    os.write(write_fd, READY + b'{"half')
    os.close(write_fd)
    assert reader.read() == [Ready()]
    assert reader.read() is None
    os.close(read_fd)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"Segmentation fault", "not JSON"),
        (b"[1, 2]", "Input should be an object"),
        (b'{"no": "type"}', "Unable to extract tag"),
        (b'{"type": "a"}', "does not match any of the expected tags"),
        (b'{"type": "ready"', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"type": "ready", "more": 1}', "unknown key ready.more"),
        (b'{"type": "formed"}', "formed.facts is missing"),
        (b'{"type": "step", "name": 5}', "step.name: Input should be a valid string"),
        (b'{"type": "form_failed", "failed": true, "message": "", "cause": "the moon"}', "form_failed.cause: Input should be"),
        (b'{"type": "ready", "seq": ' + b"[" * 20_000 + b"]" * 20_000 + b"}", "not JSON: recursion limit exceeded"),
    ],
)
def test_an_invalid_message_is_named(pipe, line, why):
    reader, write_fd = pipe
    os.write(write_fd, line + b"\n")
    with pytest.raises(ChannelError) as caught:
        reader.read()
    assert str(caught.value).startswith(f"{line[:100]!r} (")
    assert why in str(caught.value)


def test_a_line_without_end_is_refused(pipe):
    reader, write_fd = LineReader(pipe[0].fd, FROM_WORKER, 100), pipe[1]
    os.write(write_fd, b"x" * 60)
    assert reader.read() == []
    os.write(write_fd, b"x" * 60)
    with pytest.raises(ChannelError, match="a line of more than 100 bytes"):
        reader.read()


def test_a_message_larger_than_the_pipe_is_written_whole(pipe):
    reader, write_fd = pipe
    message = done("x" * 300_000)
    writer = threading.Thread(target=write_message, args=(write_fd, message))
    writer.start()
    received = []
    while not received:
        received += reader.read()
    writer.join()
    assert received == [message]


def test_a_worker_that_waits_for_its_supervisor_is_recognised_by_its_stack():
    """The verdict tells a rank that waits from a stuck one by the files and functions of this code."""
    read_fd, write_fd = os.pipe()
    waiting = threading.Thread(target=lambda: next(ToSupervisor(read_fd, write_fd).commands()))
    waiting.start()

    def stack():
        found = traceback.extract_stack(sys._current_frames()[waiting.ident])
        return [attempts.Frame(one.filename, one.lineno, one.name) for one in reversed(found)]

    assert wait_until(lambda: "read" in {frame.function for frame in stack()})
    assert attempts.waits(stack())
    write_message(write_fd, Quit(seq=1))
    waiting.join()
    assert {*attempts._AFTER - {"_seal"}, "_gather"} <= vars(WorkerPlugin).keys()  # `_seal` is in older records
    for fd in (read_fd, write_fd):
        os.close(fd)
