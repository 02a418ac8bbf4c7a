"""Files of named values, files that may be long, and answers that are only whole together."""

import pytest
from host_root import fill

from gpu_acceptance.inventory import answer
from gpu_acceptance.inventory.answer import Missing, Why, all_of, kib_in_bytes, one_line, read_fields, read_whole

LOST = Missing(Why.NOT_THERE, "x")


@pytest.fixture
def meminfo(tmp_path):
    return fill(tmp_path, {"meminfo": "MemTotal:  2 kB\nSwapTotal: ? kB\nMemTotal:  3 kB\nno separator\n"}) / "meminfo"


def test_a_field_is_its_first_value(meminfo):
    assert read_fields(meminfo).get("MemTotal", kib_in_bytes) == 2048


def test_a_field_that_is_not_in_the_file_is_named(meminfo):
    assert read_fields(meminfo).get("MemAvailable", kib_in_bytes) == Missing(Why.NOT_THERE, f"{meminfo} has no MemAvailable")


def test_a_field_of_another_form_is_shown(meminfo):
    assert read_fields(meminfo).get("SwapTotal", kib_in_bytes) == Missing(Why.UNREADABLE, f"{meminfo}: SwapTotal is '? kB'")


def test_without_the_file_no_field_is_there(tmp_path):
    assert read_fields(tmp_path / "none").get("MemTotal", one_line) == Missing(Why.NOT_THERE, str(tmp_path / "none"))


def test_a_long_file_is_read_whole_or_not_at_all(meminfo, monkeypatch):
    assert read_whole(meminfo) == meminfo.read_text()
    monkeypatch.setattr(answer, "_MOST_FILE_BYTES", 10)
    assert read_whole(meminfo) == Missing(Why.UNREADABLE, f"{meminfo} is longer than 10 bytes")


def test_a_long_file_that_is_not_there(tmp_path):
    assert read_whole(tmp_path / "maps") == Missing(Why.NOT_THERE, str(tmp_path / "maps"))


def test_answers_are_whole_together():
    assert all_of([1, 2]) == (1, 2)
    assert all_of([1, LOST, 2]) == LOST
    assert all_of([]) == ()
