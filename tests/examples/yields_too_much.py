"""One rank's figures are larger than one message through the control store may be."""


def test_fault(check, record, ranks):
    check("yields_too_much.value", 5.0, "GB/s")
    if ranks.rank == 1:
        for number in range(1200):
            record(f"yields_too_much.part_{number}", "x" * 1000, "text")
