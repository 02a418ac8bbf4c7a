"""Two runs of one cluster beside each other, as after a repair: what is gone, new or moved, and whether anything is worse. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.thresholds.values import plural
from gpu_acceptance.verdict.failures import Failures, compare_failures, tested
from gpu_acceptance.verdict.figures import Figures, Moved, compare_figures
from gpu_acceptance.verdict.lost import Lost, find_lost
from gpu_acceptance.verdict.settings import Differing, differing

NOTHING_WORSE, SOMETHING_WORSE, NOT_COMPARABLE = 0, 1, 6
_WORDS = {NOTHING_WORSE: "NOTHING WORSE", SOMETHING_WORSE: "SOMETHING WORSE", NOT_COMPARABLE: "NOT COMPARABLE"}
_NO_FIGURES = Figures(0, ())


@dataclass(frozen=True)
class Comparison:
    """All that two runs say of each other."""

    before: RunRecord
    after: RunRecord
    differing: list[Differing]
    failures: Failures
    lost: tuple[Lost, ...]
    figures: Figures
    num_compared: int  # validations that both runs tested

    @property
    def worse(self) -> list[Moved]:
        return [one for one in self.figures.moved if one.direction == "worse"]

    @property
    def better(self) -> list[Moved]:
        return [one for one in self.figures.moved if one.direction == "better"]

    @property
    def moved(self) -> list[Moved]:
        """Of these nobody said which way is better."""
        return [one for one in self.figures.moved if one.direction == "moved"]

    @property
    def exit_code(self) -> int:
        """What was not compared is not said to be no worse."""
        if self._forbidden or not self.num_compared:
            return NOT_COMPARABLE
        if self.failures.new or self.worse:
            return SOMETHING_WORSE
        return NOT_COMPARABLE if self.failures.not_compared or self.lost else NOTHING_WORSE

    @property
    def line(self) -> str:
        if self._forbidden:
            return f"NOT COMPARABLE: {'; '.join(self._forbidden)}"
        if not self.num_compared:
            return "NOT COMPARABLE: no validation was tested in both runs"
        compared = f"{plural(self.num_compared, 'validation')} and {plural(self.figures.num_compared, 'figure')} compared"
        return f"{_WORDS[self.exit_code]}: {', '.join(self._counts()) or 'no failure in either run'}; {compared}"

    def _counts(self) -> Iterator[str]:
        failures = self.failures
        for number, what in (
            (len(failures.new), "new"),
            (len(failures.not_compared), "not compared"),
            (len(failures.still), "still there"),
            (len(failures.gone), "gone"),
        ):
            if number:
                yield f"{plural(number, 'failure')} {what}"
        if self.lost:
            yield f"{len(self.lost)} right before and not tested again"
        for number, what in ((len(self.worse), "worse"), (len(self.better), "better"), (len(self.moved), "moved")):
            if number:
                yield f"{plural(number, 'figure')} {what}"

    @property
    def _forbidden(self) -> list[str]:
        return [f"other {one.what}" for one in self.differing if one.forbids]


def compare(before: RunRecord, after: RunRecord) -> Comparison:
    """Where something forbids it, nothing is compared but what that is."""
    found = differing(before, after)
    if any(one.forbids for one in found):
        return Comparison(before, after, found, Failures(), (), _NO_FIGURES, 0)
    num_compared = len(tested(before) & tested(after))
    failures, lost, figures = compare_failures(before, after), find_lost(before, after), compare_figures(before, after)
    return Comparison(before, after, found, failures, lost, figures, num_compared)
