"""Text as Markdown, for the pages that are made from code."""

import re

MADE_BY = "`make docs` writes this page from the code."


def escaped(text: str) -> str:
    """Return text as Markdown; what is between backticks stays as it is."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([<*\[])", r"\\\1", part) for part in parts)


def cell(text: str) -> str:
    """Return text for a cell of a table."""
    return escaped(text).replace("|", "\\|")


def with_block(text: str, name: str, block: str) -> str:
    """Return the text with the part between the two marks of a block replaced."""
    begin, end = f"<!-- generated: {name} -->\n", "<!-- end -->\n"
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"no block {begin.strip()} ... {end.strip()}")
    return f"{before}{begin}{block}{end}{after}"
