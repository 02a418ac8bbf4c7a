"""A change of a dict shows in its version."""

import random
import sys
from collections import UserDict

import pytest

from gpu_acceptance.worker import settings
from gpu_acceptance.worker.functions import _AllWatched
from gpu_acceptance.worker.settings import Versions

counts = pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python 3.14 does not count changes of dicts (PEP 699)")


class Owner:
    value = 1

    def method(self):
        return self.value


CHANGES = {
    "another value": lambda space: space.update(value=2),
    "a new key": lambda space: space.setdefault("new", 1),
    "a key that is gone": lambda space: space.pop("value"),
    "an equal value": lambda space: space.update(value=1.0),
    "all gone": lambda space: space.clear(),
}


@counts
@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_each_change_of_a_dict_is_counted(change):
    spaces = [{"other": 1}, {"value": 1}]
    watched = Versions(spaces)
    before = watched.read()
    assert before is not None
    assert list(spaces[1].items()) == [("value", 1)]  # to read changes nothing
    assert watched.read() == before
    change(spaces[1])
    assert watched.read() != before


def test_without_a_dict_there_is_no_version():
    assert Versions([{}, UserDict()]).read() is None


@counts
@pytest.mark.parametrize(("owner", "name", "use"), [(Owner, "method", lambda: Owner().method()), (random, "choice", random.random)])
def test_an_attribute_that_is_set_in_a_class_or_a_module_is_counted(monkeypatch, owner, name, use):
    watched = Versions([vars(owner)])
    before = watched.read()
    use()
    assert watched.read() == before
    monkeypatch.setattr(owner, name, min)
    assert watched.read() != before


@pytest.mark.parametrize("is_counted", [pytest.param(True, marks=counts), False])
def test_a_replaced_function_is_found_with_and_without_the_count(monkeypatch, is_counted):
    monkeypatch.setattr(settings, "_IS_COUNTED", is_counted)
    watched = _AllWatched()
    assert watched.replaced() == {}
    with monkeypatch.context() as patch:
        patch.setattr(random, "choice", min)
        assert list(watched.replaced()) == ["random.choice"]
    assert watched.replaced() == {}
