"""A contract in lines, each with the metrics that answer it (`--contract=FILE`), and what a run made of them: as a record keeps it."""

from enum import StrEnum

from gpu_acceptance.base.model import Model
from gpu_acceptance.base.text import plural
from gpu_acceptance.thresholds.limit import Nodes, show_whole


class LineState(StrEnum):
    """The result of a run for one line of a contract."""

    MET = "met"
    MISSED = "missed"
    NOT_TESTED = "not tested"


class ContractLine(Model):
    """One line. It names metrics, or says why nothing of this suite tests it."""

    number: str  # as the contract has it: "8.2"
    text: str
    metrics: tuple[str, ...] = ()  # globs; each must match a limit that was judged and held
    nodes: Nodes = "any"  # number of nodes that a run needs to answer it
    at_least: float | None = None  # the contract's own bounds, which the figures must meet beside their limits
    at_most: float | None = None
    unit: str = ""  # the unit of both bounds
    not_tested: str = ""  # the reason, if the file says so beforehand

    @property
    def asks(self) -> str:
        """`>= 350 GB/s`: its own bounds."""
        bounds = ((">=", self.at_least), ("<=", self.at_most))
        return ", ".join(f"{symbol} {show_whole(bound)} {self.unit}" for symbol, bound in bounds if bound is not None)


class Contract(Model):
    """All lines in the order of the file."""

    file: str
    sha256: str
    title: str = ""
    lines: tuple[ContractLine, ...]


class JudgedLine(Model):
    line: ContractLine
    state: LineState
    reasons: tuple[str, ...] = ()  # reasons for missed or not tested; empty if it is met
    declared: bool = False  # not tested, and the contract's file itself says that this run need not test it


class JudgedContract(Model):
    file: str
    sha256: str
    title: str = ""
    lines: tuple[JudgedLine, ...]

    def of_state(self, state: LineState) -> tuple[JudgedLine, ...]:
        return tuple(one for one in self.lines if one.state is state)

    @property
    def unanswered(self) -> tuple[JudgedLine, ...]:
        """Missed, and not tested without excuse."""
        open_lines = [one for one in self.of_state(LineState.NOT_TESTED) if not one.declared]
        return (*self.of_state(LineState.MISSED), *open_lines)

    @property
    def excuse(self) -> str:
        """`2 of 12 lines of contract.yaml not tested`, as its own file says; empty where it excuses none."""
        excused = sum(one.declared for one in self.lines)
        return f"{excused} of {plural(len(self.lines), 'line')} of {self.file} not tested" if excused else ""

    @property
    def counts(self) -> str:
        """`12 lines: 9 met, 1 missed, 2 not tested`."""
        return f"{plural(len(self.lines), 'line')}: {', '.join(f'{len(self.of_state(state))} {state}' for state in LineState)}"
