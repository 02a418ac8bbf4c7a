"""A validation that writes files where pytest says."""


def test_value(check, tmp_path):
    (tmp_path / "file").write_text("x" * 1000)
    check("writes_files.value", 2.0, "GB/s")
