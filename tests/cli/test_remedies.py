"""`gpu-acceptance remedy`: the table of remedies on a terminal."""

import pytest

from gpu_acceptance.cli.verbs import main
from gpu_acceptance.report.remedies import table


def test_without_a_kind_all_are_listed_one_a_line(capsys):
    assert main(["remedy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(table().remedies)
    assert any(line.split(maxsplit=2)[1:] == ["reset", "a repair of GPU memory waits for a reset"] for line in lines)


@pytest.mark.parametrize("kind", table().remedies)
def test_a_kind_is_printed_whole(capsys, kind):
    assert main(["remedy", kind]) == 0
    out, remedy = capsys.readouterr().out, table().remedies[kind]
    severity = table().severities[remedy.severity]
    assert out.startswith(f"{kind}: {remedy.title}\n")
    for part in (remedy.means, remedy.do, *remedy.checks, *severity.commands.values()):
        assert part in out


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("repair_pendin", "no kind of failure 'repair_pendin'; did you mean 'repair_pending'? (gpu-acceptance remedy lists them)"),
        ("zzzz", "no kind of failure 'zzzz' (gpu-acceptance remedy lists them)"),
        ("\x1b[31m\n", "no kind of failure '\\\\x1b[31m\\\\n' (gpu-acceptance remedy lists them)"),
    ],
)
def test_a_kind_that_is_not_in_the_table_is_a_usage_error(capsys, kind, said):
    assert main(["remedy", kind]) == 4
    assert capsys.readouterr().err == f"gpu-acceptance: {said}\n"
