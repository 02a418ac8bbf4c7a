"""A page taken apart by a parser that is not ours."""

import re
from dataclasses import dataclass, field
from functools import cached_property
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr", "img", "input", "rect", "path"}

APART = {"td", "th", "dt", "dd", "li", "p", "caption", "summary", "pre"}  # their texts stand apart on the page


@dataclass
class Element:
    tag: str
    attributes: dict[str, str | None]
    path: tuple[str, ...] = ()
    texts: list[str] = field(default_factory=list, repr=False)  # of the whole page
    begin: int = 0
    end: int | None = 0  # None while it is open

    @cached_property
    def text(self):
        return "".join(self.texts[self.begin : self.end])


@dataclass
class Page(HTMLParser):
    """All elements in order, with the text directly and deeply inside them, and what does not close."""

    elements: list[Element] = field(default_factory=list)
    unclosed: list[str] = field(default_factory=list)

    def __post_init__(self):
        super().__init__(convert_charrefs=True)
        self._open, self._texts = [], []

    def handle_starttag(self, tag, attrs):
        element = Element(tag, dict(attrs), tuple(one.tag for one in self._open), self._texts, len(self._texts), len(self._texts))
        assert len(attrs) == len(element.attributes), f"an attribute twice in <{tag}>"
        self.elements.append(element)
        if tag not in VOID:
            element.end = None
            self._open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        if tag in APART:
            self.handle_data(" ")
        if self._open and self._open[-1].tag == tag:
            self._open.pop().end = len(self._texts)
        else:
            self.unclosed.append(tag)

    def handle_data(self, data):
        self._texts.append(data)

    def all(self, tag):
        return [element for element in self.elements if element.tag == tag]

    @property
    def shape(self):
        """Elements with their attribute names: what hostile text must not change."""
        return [(element.tag, *sorted(element.attributes)) for element in self.elements]


def parse(text):
    page = Page()
    page.feed(text)
    page.close()
    page.unclosed += [element.tag for element in page._open]
    return page


def shapes(svg, tag, style):
    """Return the elements of a drawing with this tag and class."""
    return [one for one in parse(svg).all(tag) if one.attributes["class"] == style]


def described(svg):
    """Return what a screen reader says of a drawing."""
    return parse(svg).all("svg")[0].attributes["aria-label"]


def ticks(svg, axis):
    """Return the words beneath (`across`) or beside (`up`) the axes, each with its place."""
    place = "x" if axis == "across" else "y"
    return [(float(one.attributes[place]), one.text) for one in shapes(svg, "text", axis)]


def points(path):
    """Return the pairs of numbers in a path."""
    return [tuple(map(float, pair.split())) for pair in re.findall(r"[\d.]+ [\d.]+", path)]


def line(chart, style="first"):
    """Return the points of one line of a chart; none where it is not drawn."""
    return [point for one in shapes(chart.svg, "path", style) for point in points(one.attributes["d"])]


def labels(chart):
    """Return the labels of a legend."""
    return [label for _, label in chart.legend]
