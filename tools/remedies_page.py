"""The actions for each kind of failure, as a page: docs/remedies.md."""

from collections.abc import Iterator

from gpu_acceptance.report.remedies import Reference, Remedy, Severity, table

_HEAD = """# Remedies

What to do about each kind of failure: what it means, what to do with the node, and three things to check first. The report shows the same
beside each failure, with the culprit's own names in the commands; both come from one table,
[remedies.yaml](../src/gpu_acceptance/report/remedies.yaml), and `make docs` writes this page. A limit's own `remedy:` is one sentence
about one figure, and stands in [limits](limits.md); from a message to what to do, see [troubleshooting](troubleshooting.md).

A check changes nothing on the machine; some load it, which is said. What stands in `<...>` is to be filled in: `<HOST>`, `<UUID>` of the
GPU, `<BUS>` its PCI address (`0000:1b:00.0`), `<DEVICE>` and `<PORT>` of a network card (`mlx5_3`, `1`), `<RUN>` the folder of the run,
`<PID>` and `<POD>`. Run them on the node that is named, unless they ask a scheduler.
"""


def remedies_page() -> str:
    """docs/remedies.md."""
    return "\n".join([_HEAD, *_severities(), *_overview(), *_kinds()]) + "\n"


def _severities() -> Iterator[str]:
    yield "## What to do with the node\n"
    for name, severity in table().severities.items():
        yield f"### {name}\n\n{severity.means}\n"
        yield from _changes(severity)


def _changes(severity: Severity) -> Iterator[str]:
    if severity.commands:
        yield "These commands **change** something:\n"
    for command, changes in severity.commands.items():
        yield f"- {changes}\n\n{_code(command)}\n"


def _overview() -> Iterator[str]:
    yield "## All kinds\n\n| kind | what | first |\n|---|---|---|"
    for kind, remedy in table().remedies.items():
        yield f"| [{kind}](#{kind}) | {_cell(remedy.title)} | {remedy.severity} |"
    yield ""


def _kinds() -> Iterator[str]:
    for kind, remedy in table().remedies.items():
        yield f"## {kind}\n\n**{remedy.title}**: [{remedy.severity}](#{remedy.severity})\n"
        yield f"{remedy.means}\n\n**To do:** {remedy.do}\n"
        for number, (command, look) in enumerate(remedy.checks.items(), start=1):
            yield f"{number}. {look}\n\n{_code(command)}\n"
        yield f"{_found_by(remedy)}\n\nSee {'; '.join(_link(table().references[name]) for name in remedy.references)}.\n"


_FOUND_BY = {  # by the fields of FoundBy, in their order
    "metrics": "a missed limit of {}",
    "xids": "an XID with {}",
    "statuses": "a limit that is {}",
    "mistakes": "a figure that cannot be judged for its {}",
    "missing": "a figure that is {}",
    "lacking": "a figure of {} that the machine does not have",
    "outcomes": "the outcome {}",
    "causes": "a rank with the cause {}",
    "objections": "an objection to the whole run: {}",
    "control_lost": "a run whose ranks lost the store, their leader or a launcher",
    "lacks": "a validation that lacks {}",
    "says_of_run": "what the system says in an objection to the whole run",
    "says": "what libraries and the kernel say in a message or at the end of a log",
}


def _found_by(remedy: Remedy) -> str:
    by = remedy.found_by
    if by.before_a_run:
        return "Nothing of ours has started, so that no report can say so."
    return f"Found by {'; '.join(_FOUND_BY[name].format(_list(value)) for name, value in by if value)}."


def _list(words: object) -> str:
    return ", ".join(f"`{word}`" for word in words) if isinstance(words, list) else ""


def _link(reference: Reference) -> str:
    return f"[{reference.title}]({reference.url})" if reference.url else reference.title


def _code(command: str) -> str:
    return f"    ```sh\n    {command}\n    ```"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
