"""What `make docs` adds to docs/, without mkdocs: the order, the public names, linked files."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from tests.docs.test_pages import LINK, PAGES
from tools import docs_site

DOCS = Path(__file__).parents[2] / "docs"


def pages_of(entry: Any) -> list[str]:
    """The pages of an entry of mkdocs' `nav`, in their order."""
    if isinstance(entry, str):
        return [entry]
    entries = entry if isinstance(entry, list) else list(entry.values())
    return [page for below in entries for page in pages_of(below)]


def test_the_order_of_the_site_has_every_page_once() -> None:
    found = pages_of(docs_site.order())
    own = [page for page in found if not page.startswith("api/")]

    assert sorted(own) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES)
    assert set(found) - set(own) == set(docs_site.reference())


def test_every_public_name_has_a_page() -> None:
    listed = (Path(__file__).parent / "public_names.txt").read_text().splitlines()
    pages = docs_site.reference()
    names = {
        f"{package}.{name}" for package in docs_site.PACKAGES for name in docs_site.names(package)
    }
    above = names | set(docs_site.PACKAGES)

    assert {
        name for name in listed if "." in name and name.rpartition(".")[0] not in above
    } == set()
    for package in docs_site.PACKAGES:
        for name in docs_site.names(package):
            assert f"heading: {package}.{name}" in pages[f"api/{package}/{name}.md"]


def test_links_of_every_page_lead_to_pages_of_the_site() -> None:
    sources = docs_site.sources()
    origins = {page.relative_to(DOCS).as_posix(): page for page in PAGES} | sources
    assert {"source/README.md", "source/CONTRIBUTING.md", "source/LICENSE.md"} <= set(sources)
    for path, origin in origins.items():
        text = docs_site.for_site(docs_site.source_page(origin), path, origin)
        outside_blocks = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        for link in LINK.findall(outside_blocks) if origin.suffix == ".md" else []:
            target = os.path.normpath((DOCS / path).parent / link.partition("#")[0])
            if not link.startswith(("http", "#")):
                inside = os.path.relpath(target, DOCS)
                assert inside in origins or Path(target).exists(), (path, link)


def test_a_list_after_a_line_of_text_begins_a_block() -> None:
    text = docs_site.for_site("**Why.**\n* one\n* two\n  more\n* three\n", "a.md", DOCS / "a.md")
    assert text == "**Why.**\n\n* one\n* two\n  more\n* three\n"


def test_a_public_name_is_found_through_the_imports_of_a_block() -> None:
    code = (
        "from bringup import devices as d, ops\nfrom bringup.jit import Source\n"
        "d.sim.faults(); ops.check(f)"
    )
    assert {"bringup.devices.sim.faults", "bringup.ops.check", "bringup.jit.Source"} <= (
        docs_site.used_names(code)
    )
