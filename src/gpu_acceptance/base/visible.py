"""Text from machines, made safe to look at: on a page, in a terminal, in one line of an error."""

MAX_LINE = 500  # characters of a foreign text inside one line of ours


def visible(text: str) -> str:
    r"""The text with every character that does not print shown as its escape; newline and tab stay.

    That covers control characters (`\x1b`), bidi overrides (`\u202e`), zero-width characters and lone surrogates.
    """
    if text.isprintable():
        return text
    return "".join(char if char in "\n\t" or char.isprintable() else _escape(char) for char in text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """The text on one line, for terminals: newline and tab are shown as escapes too, and a long text is cut."""
    line = text[: MAX_LINE + 1]
    if not line.isprintable():
        line = "".join(char if char.isprintable() else _escape(char) for char in line)
    return line if len(text) <= MAX_LINE else f"{line[:MAX_LINE]}..."


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
