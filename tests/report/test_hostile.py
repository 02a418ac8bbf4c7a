"""Text from machines can change what a page says, never what a page is."""

import re
import string
from collections.abc import Mapping
from dataclasses import MISSING, is_dataclass
from functools import cache
from importlib.resources import files
from typing import get_origin, get_type_hints

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.build import build_page
from tests.report import samples
from tests.report.pages import parse

pytestmark = pytest.mark.slow

# Words of the format itself: another value would be no record.
FIXED = {"kind", "verdict", "outcome", "status", "scope", "state", "metrics"}
PIECES = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"' onload=x autofocus onfocus=alert(1) x='\"",
    "</style></title></textarea><svg onload=alert(1)>",
    "</script><script>alert(1)//",
    "<!--",
    "-->]]>",
    "{{ 7 * 7 }}{% raw %}",
    "&lt;b&gt;&#x3c;b&#62;",
    "\x1b[31m\x1b]8;;http://example.invalid\x07",
    "\0",
    "\ud800",
    "\u202e\u2066\u200b",
    "javascript:alert(1)",
]
hostile = st.lists(st.sampled_from(PIECES) | st.text(st.characters(), max_size=20), min_size=1, max_size=4).map(
    lambda pieces: "x" + "".join(pieces)
)  # no tainted key is a key we know


def tainted(value, taint, key=""):
    """Return the data with `taint` before every text in it, keys of free tables included."""
    if isinstance(value, str) and key == "metric":  # the subject stays: it is not free text
        subject, dot, rest = value.partition(".")
        return f"{subject}{dot}{taint}{rest}"
    if isinstance(value, str):
        return value if key in FIXED or not value else taint + value
    if isinstance(value, dict):
        free = key in {"versions", "environment", "inventory", "parameters", "not_applicable", "waivers", "throttled_s"}
        return {(taint + name if free else name): tainted(entry, taint, "" if free else name) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return tuple(tainted(entry, taint, key) for entry in value)
    return value


def tainted_record(sample, taint):
    """A tainted sample. Built past the text checks of the record, which refuse some of this already."""
    return construct(RunRecord, tainted(samples.ALL[sample]().model_dump(), taint))


def for_hostile_text(text, max_examples=15):
    """Decorate a test that takes a sample and a taint. `text`: an example that is dangerous in one format."""

    def decorate(test):
        test = given(taint=hostile | st.text(st.characters(), min_size=1, max_size=20))(test)
        for taint in (text + "".join(PIECES), "x" * 1_000_000):
            test = example(taint=taint)(test)
        test = settings(max_examples=max_examples, deadline=None)(test)
        return pytest.mark.slow(pytest.mark.parametrize("sample", ["rejected", "stuck", "incomplete", "trained"])(test))

    return decorate


def page_of(sample, taint):
    return build_page(tainted_record(sample, taint))


def construct(model, data):
    """Models and dataclasses all the way down: no validation, so that even what a record refuses reaches the page."""
    filled = {}
    if hasattr(model, "__pydantic_fields__"):
        defaults = {name: field.get_default(call_default_factory=True) for name, field in model.__pydantic_fields__.items()}
    else:
        fields = model.__dataclass_fields__.items()
        defaults = {name: field.default if field.default_factory is MISSING else field.default_factory() for name, field in fields}
    hints = get_type_hints(model)
    for name, default in defaults.items():
        annotations = (hints[name], *getattr(hints[name], "__args__", ()))
        inner = next((one for one in annotations if hasattr(one, "__pydantic_fields__") or is_dataclass(one)), None)
        value = data.get(name, default)
        if inner and isinstance(value, tuple):
            value = tuple(construct(inner, entry) for entry in value)
        elif inner and get_origin(hints[name]) in {dict, Mapping}:
            value = {key: construct(inner, entry) for key, entry in value.items()}
        elif inner and isinstance(value, dict):
            value = construct(inner, value)
        filled[name] = value
    if not is_dataclass(model):
        return model.model_construct(**filled)
    made = object.__new__(model)
    for name, value in filled.items():
        object.__setattr__(made, name, value)
    return made


def build_of(page):
    """Return what no text may change: the elements, the policy of the page and its script."""
    (script,) = page.all("script")
    return page.shape, page.all("meta")[1].attributes["content"], script.text


@cache
def benign_build(sample):
    page = parse(page_of(sample, "x"))
    policy = page.all("meta")[1].attributes["content"]
    assert policy.count("'sha256-") == policy.count("script-src") == 1
    return build_of(page)


@pytest.mark.parametrize("sample", ["rejected", "stuck", "incomplete", "trained"])
@settings(max_examples=40, deadline=None)
@example(taint="x" + "".join(PIECES))
@example(taint="<script>" * 2048)
@example(taint="x\n")
@given(taint=hostile)
def test_hostile_text_adds_no_element_and_no_attribute(sample, taint):
    text = page_of(sample, taint)
    page = parse(text)
    assert build_of(page) == benign_build(sample)
    assert page.unclosed == []
    assert not any(name.startswith("on") for one in page.elements for name in one.attributes)
    text.encode("utf-8")


def test_a_reason_of_1_mb_changes_its_own_cell_alone():
    def page(reason):
        record = samples.incomplete()
        return build_page(record.model_copy(update={"plan": record.plan.model_copy(update={"waivers": {"hbm.copy.*": reason}})}))

    reason = "<script>alert(1)</script>" * 40_000
    assert len(reason) == 1_000_000
    assert parse(page(reason)).shape == parse(page("agreed")).shape
    assert page(reason).count("&lt;script&gt;") == 40_000 + page(reason[:300]).split("<main>")[0].count("&lt;script&gt;")


@pytest.mark.parametrize("sample", samples.ALL)
@given(taint=hostile)
@settings(max_examples=10, deadline=None)
def test_nothing_on_a_page_is_invisible(sample, taint):
    text = page_of(sample, taint).replace("\n", "").replace("\t", "")
    assert {char for char in text if not char.isprintable()} == set()


def test_hostile_text_is_still_readable():
    page = parse(page_of("rejected", "<script>alert('1')</script>\x1b[31m"))
    assert "<script>alert('1')</script>\\x1b[31mnode-01.example" in page.all("body")[0].text


def test_no_template_steps_around_the_gates():
    for template in files("gpu_acceptance.report").iterdir():
        if template.name.endswith((".html", ".css", ".js")):
            assert not re.search(r"\|\s*(safe|tojson|forceescape)|autoescape|Markup", template.read_text()), template.name


def test_markup_is_made_by_the_charts_alone():
    """They format it with escaped text; anywhere else, a text could become markup."""
    paths = [path for path in files("gpu_acceptance.report").iterdir() if path.name.endswith((".py", ".html"))]
    assert [path.name for path in paths if re.search(r"Markup\([^)]|<svg", path.read_text(encoding="utf-8"))] == ["charts.py"]


def test_values_in_attributes_are_ours():
    """An attribute is a number or a word from our own tables, whatever a machine's text is."""
    page = parse(page_of("incomplete", "<'\">"))
    allowed = set(string.ascii_letters + string.digits + " .-_#=;:,'/()%+°")
    assert {char for one in page.elements for value in one.attributes.values() for char in value or ""} <= allowed
