"""One metric twice: a good second figure must not cover a bad first one."""


def test_value(check):
    check("checked_twice.value", 0.5, "GB/s")
    check("checked_twice.value", 9.0, "GB/s")
