"""Text of an HTML page: one line per block element, tags and invisible parts left out."""

from __future__ import annotations

from html.parser import HTMLParser

_BLOCKS = frozenset(
    (
        *("address", "article", "aside", "blockquote", "body", "br", "caption", "dd", "div", "dl", "dt", "figcaption"),
        *("footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "html", "li", "main", "nav", "ol"),
        *("option", "p", "pre", "section", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "ul"),
    )
)
_HIDDEN = frozenset(("script", "style", "head", "title", "noscript", "template", "textarea", "svg"))


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[str] = []
        self._parts: list[str] = []
        self._hidden: list[str] = []

    def end_line(self) -> None:
        line = " ".join("".join(self._parts).replace("\n", " ").split(" ")).strip()
        if line:
            self.lines.append(line)
        self._parts = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "body":
            self._hidden.clear()
        if tag in _HIDDEN:
            self._hidden.append(tag)
        if tag in _BLOCKS:
            self.end_line()

    def handle_endtag(self, tag: str) -> None:
        if tag in self._hidden:
            while self._hidden.pop() != tag:
                pass
        if tag in _BLOCKS:
            self.end_line()

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._parts.append(data)


def html_lines(page: str) -> list[str]:
    """Lines of text of an HTML page; character references are resolved."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    reader.end_line()
    return reader.lines
