"""A text that is kept is of bounded length."""

MAX_TEXT = 16_384  # characters of one message, stack or log tail in a record


def clip(text: str, limit: int = MAX_TEXT) -> str:
    """The text itself, or its two ends where it is longer than `limit` characters; always encodable as UTF-8."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) <= limit:
        return text
    mark = "\n[... cut ...]\n"
    half = (limit - len(mark)) // 2
    return text[:half] + mark + text[len(text) - half :]
