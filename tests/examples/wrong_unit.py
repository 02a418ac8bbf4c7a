"""Five thousand of another unit are not more than one."""


def test_value(check):
    check("wrong_unit.value", 5000.0, "MB/s")
