"""Never collected: the module itself asks to be skipped."""

import pytest

pytest.importorskip("a_library_that_nobody_has", reason="needs a library that nobody has")


def test_value(check):
    check("skips_as_a_whole.value", 5.0, "GB/s")
