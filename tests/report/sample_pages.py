"""The pages of the sample runs, and what a test reads of them."""

import re

from gpu_acceptance.report.build import build_page
from tests.report import samples
from tests.report.pages import parse

PAGES = {name: build_page(make()) for name, make in samples.ALL.items()}


def section(name, anchor):
    """The text of one section, blanks folded."""
    return section_of(PAGES[name], anchor)


def section_of(page, anchor):
    """The text of one section; empty without it."""
    found = [one.text for one in parse(page).all("section") if one.attributes["id"] == anchor]
    return re.sub(r"\s+", " ", "".join(found))


def page_with(record, **changes):
    """The page of a record with changes of its fields."""
    return build_page(record.model_copy(update=changes))
