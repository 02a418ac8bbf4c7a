"""Hooks of other plugins that take the running of validations out of our hands: each would repeat, leave out or share out some."""

from collections.abc import Iterator
from itertools import takewhile

import pytest

from gpu_acceptance.base.text import one_line

# pytest takes the first answer to each of these hooks. The plugin named here gives the right one.
_ANSWERED_BY = {"pytest_runtestloop": "main", "pytest_runtest_protocol": "gpu-acceptance"}


def find_foreign_hooks(config: pytest.Config) -> Iterator[str]:
    """One sentence for each plugin that pytest would ask before the right one. Ask once all conftests are loaded."""
    for hook, right in _ANSWERED_BY.items():
        for name in takewhile(right.__ne__, _asked(config, hook)):
            yield f"{one_line(name)} would run validations in its own way ({hook}): leave it out (a plugin: -p no:NAME)"


def _asked(config: pytest.Config, hook: str) -> Iterator[str]:
    """The names of the plugins that answer a hook, first asked first (pluggy keeps them the other way round). A wrapper gives no answer."""
    implementations = reversed(getattr(config.hook, hook).get_hookimpls())
    yield from (one.plugin_name for one in implementations if not (one.wrapper or one.hookwrapper))
