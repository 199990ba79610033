"""A page of HTML: what is given is on it, escaped, and nothing is loaded."""

from __future__ import annotations

import operator
import re
from datetime import date
from html.parser import HTMLParser
from pathlib import Path

import pytest

import bringup
from bringup import report


def page() -> report.Page:
    table = report.Table("Ops <b>", [report.Column("name"), report.Column("n", number=True)])
    table.add("a & b", "7")
    table.notes.append("a note")
    section = report.Section(
        "Part", ["words"], ["good", "bad"], [report.Bar("family", (0.25, 0.5), "1 of 4")], [table]
    )
    return report.Page("Title <x>", ["the headline"], {"torch": "2.13"}, [section])


class Texts(HTMLParser):
    """Collects text and the tags that are open."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


def test_everything_that_is_given_is_on_the_page_and_every_tag_is_closed() -> None:
    parser = Texts()
    parser.feed(report.to_html(page()))
    assert parser.open == []
    wanted = {"Title <x>", "the headline", "torch", "2.13", "Part", "words", "good", "bad"}
    assert wanted | {"family", "1 of 4", "Ops <b>", "a & b", "7", "a note"} <= set(parser.texts)


def test_a_bar_has_the_widths_of_its_parts_in_the_colours_of_the_key() -> None:
    text = report.to_html(page())
    widths = re.findall(r'width="([\d.]+)%" height="13" fill="(#\w+)"', text)
    assert [width for width, _ in widths] == ["25.00", "50.00"]
    key = re.findall(r'<span style="background:(#\w+)"></span>', text)
    assert key == [colour for _, colour in widths]


def test_the_page_loads_nothing() -> None:
    text = report.to_html(page())
    assert not re.search(r"<script|<link|<img|https?:|url\(|@import", text)


def test_what_is_empty_is_left_out() -> None:
    text = report.to_html(report.Page("t", sections=[report.Section("s")]))
    body = text.partition("<body>")[2]
    assert "<table" not in body
    assert 'class="key"' not in body


def test_a_page_is_written_with_the_date_the_version_and_what_was_typed(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    report.write_html(file, page(), ["bringup", "try", "a b"])
    text = file.read_text()
    typed = "bringup try &#39;a b&#39;"
    for fact in (date.today().isoformat(), bringup.__version__, typed, "2.13"):
        assert f"<td>{fact}" in text
    assert re.sub("<tr><th>(written|bringup|command)</th>.*\n", "", text) == report.to_html(page())
    with pytest.raises(OSError):
        report.write_html(tmp_path / "none" / "page.html", page())


def test_a_notebook_shows_pages_and_tables_escaped() -> None:
    for shown in (page(), page().sections[0].tables[0]):
        text = operator.methodcaller("_repr_html_")(shown)
        assert "Ops &lt;b&gt;" in text
        assert "a &amp; b" in text
        assert "<html" not in text


def test_pictures_and_what_is_given_as_one_are_escaped() -> None:
    ratio = report.paired_ratio([2.0] * 9, [1.0] * 9)
    for picture in (
        report.bars([("<i>", 1.0, "<i>")], title="<i>"),
        report.intervals([("<i>", ratio, "<i>")]),
        report.curve([1.0], "<i>"),
        report.to_html(report.Page("<i>", sections=[report.Section("s", figures=["<i>"])])),
    ):
        assert "&lt;i&gt;" in picture
        assert "<i>" not in picture


def test_one_headline_is_large_and_the_page_follows_a_dark_desktop() -> None:
    shown = page()
    shown.headline.append("the second")
    text = report.to_html(shown)
    assert '<p class="big">the headline</p>\n<p>the second</p>' in text
    assert "prefers-color-scheme: dark" in text
    assert "#fff" not in text.partition("</style>")[0].partition("body {")[2]
