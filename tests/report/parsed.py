"""A page, parsed as far as tests need it."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"meta", "link", "br", "img", "input", "hr"}


@dataclass(slots=True, kw_only=True)
class Element:
    """One element: its name, its attributes, the text right in it and what stands in it."""

    name: str
    attributes: dict[str, str]
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def all(self, name: str, **attributes: str) -> list[Element]:
        """Return all elements below of a name; `kind` compares the class attribute."""
        wanted = {"class" if key == "kind" else key: value for key, value in attributes.items()}
        found = []
        for child in self.children:
            if child.name == name and wanted.items() <= child.attributes.items():
                found.append(child)
            found += child.all(name, **attributes)
        return found

    def texts(self) -> str:
        return " ".join([self.text, *(child.texts() for child in self.children)])


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Element(name="page", attributes={})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made = Element(name=tag, attributes={key: value or "" for key, value in attrs})
        self.open[-1].children.append(made)
        if tag not in _VOID:
            self.open.append(made)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made = Element(name=tag, attributes={key: value or "" for key, value in attrs})
        self.open[-1].children.append(made)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].name == tag, f"</{tag}> closes <{self.open[-1].name}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].text += data


def parse(text: str) -> Element:
    """Return the page; fails where an element is closed by another's end."""
    parser = _Parser()
    parser.feed(text)
    parser.close()
    assert [element.name for element in parser.open] == ["page"], "an element is not closed"
    return parser.open[0]
