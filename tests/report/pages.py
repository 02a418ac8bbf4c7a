"""A page taken apart by a parser that is not ours."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr", "img", "input", "rect", "path"}

APART = {"td", "th", "dt", "dd", "li", "p", "caption", "summary", "pre"}  # their texts stand apart on the page


@dataclass
class Element:
    tag: str
    attributes: dict[str, str | None]
    text: str = ""
    path: tuple[str, ...] = ()


@dataclass
class Page(HTMLParser):
    """All elements in order, with the text directly and deeply inside them, and what does not close."""

    elements: list[Element] = field(default_factory=list)
    unclosed: list[str] = field(default_factory=list)

    def __post_init__(self):
        super().__init__(convert_charrefs=True)
        self._open = []

    def handle_starttag(self, tag, attrs):
        element = Element(tag, dict(attrs), path=tuple(one.tag for one in self._open))
        assert len(attrs) == len(element.attributes), f"an attribute twice in <{tag}>"
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        if tag in APART:
            self.handle_data(" ")
        if self._open and self._open[-1].tag == tag:
            self._open.pop()
        else:
            self.unclosed.append(tag)

    def handle_data(self, data):
        for element in self._open:
            element.text += data

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
