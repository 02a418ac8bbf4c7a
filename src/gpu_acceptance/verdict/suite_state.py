"""How a suite that is not as it was committed or packed weakens a verdict, in words. Pure."""

from collections.abc import Iterator, Sequence

from gpu_acceptance.base.text import one_line
from gpu_acceptance.record.run_record import SuiteState
from gpu_acceptance.thresholds.values import first_of, plural

_PROFILES = ("thresholds/", "gpu_acceptance/profiles/")  # in a checkout, and in a wheel
_AS = {"checkout": "committed", "bundle": "packed", "wheel": "installed", "unknown": "known"}
_MOST_NAMES = 2


def suite_notes(state: SuiteState | None) -> Iterator[str]:
    """The parts of the verdict line; none of a suite that is as it was committed or packed. None: an earlier version did not look."""
    if state is None:
        return
    profiles = [name for name in state.changed if name.startswith(_PROFILES)]
    others = [name for name in state.changed if not name.startswith(_PROFILES)]
    was = _AS[state.source]
    if profiles:
        yield f"{_named('limits file', [name.rpartition('/')[2] for name in profiles])} not as {was}"
    if others:
        number = state.num_changed - len(profiles)
        yield f"{plural(number, 'file')} of the suite not as {was}: {_few(others)}"
    if state.conftests:
        yield f"{_named('conftest', state.conftests)} beside the suite's own"
    for fixture in state.fixtures[:_MOST_NAMES]:
        yield f"fixture {one_line(fixture.name)} from {one_line(fixture.file)}"
    if len(state.fixtures) > _MOST_NAMES:
        yield f"{plural(len(state.fixtures) - _MOST_NAMES, 'more fixture')} not the suite's own"
    if state.threads:
        yield f"{plural(len(state.threads), 'thread')} started by an import: {_few(state.threads)}"
    if state.hidden:
        yield f"{plural(len(state.hidden), 'test')} not collected in full: {_few([name.rpartition('/')[2] for name in state.hidden])}"


def _named(what: str, names: Sequence[str]) -> str:
    return f"{what}{'s' if len(names) > 1 else ''} {_few(names)}"


def _few(names: Sequence[str]) -> str:
    return first_of([one_line(name) for name in names], _MOST_NAMES)
