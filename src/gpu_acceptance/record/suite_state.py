"""Which suite a run used, and how it differs from the one that was committed or packed."""

from typing import Literal

from pydantic import Field

from gpu_acceptance.base.model import Model

MOST_NAMES = 50  # of each kind that a record keeps; the number of changed files is whole


class ForeignFixture(Model):
    """A fixture of the suite's own name that another file provides, so that validations use that one."""

    name: str = Field(max_length=200)
    file: str = Field(max_length=1_000)


class SuiteState(Model):
    """What rank 0 saw of the suite before the run. Names are of files below the suite's folder, or node ids."""

    source: Literal["checkout", "bundle", "wheel", "unknown"] = "unknown"  # what `changed` is compared with
    commit: str = Field("", max_length=64)  # of a checkout or a bundle
    changed: tuple[str, ...] = Field((), max_length=MOST_NAMES)  # changed, added or missing
    num_changed: int = 0
    conftests: tuple[str, ...] = Field((), max_length=MOST_NAMES)  # but the suite's own
    fixtures: tuple[ForeignFixture, ...] = Field((), max_length=MOST_NAMES)
    threads: tuple[str, ...] = Field((), max_length=MOST_NAMES)  # that an import started and Python waits for: name and module
    hidden: tuple[str, ...] = Field((), max_length=MOST_NAMES)  # test functions that gave fewer validations than they define
