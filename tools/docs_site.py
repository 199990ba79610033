"""Give mkdocs what the site has besides docs/: an order, a page for each public name, and the files
that pages link to.

mkdocs calls the functions that begin with `on_` (`hooks:` in mkdocs.yml). The order of the pages is
that of the links in docs/index.md; the reference is what the packages list in `__all__`. The rest
needs no mkdocs: tests/docs has it.
"""

from __future__ import annotations

import ast
import doctest
import functools
import importlib
import inspect
import os
import posixpath
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGES = (
    *("bringup", "bringup.compiler", "bringup.compiler.aten", "bringup.compiler.onnx"),
    *("bringup.conformance", "bringup.devices", "bringup.devices.sim", "bringup.errors"),
    *("bringup.graphs", "bringup.ir", "bringup.jit", "bringup.kernels", "bringup.kernels.npu"),
    *("bringup.ops", "bringup.passes", "bringup.passes.bootstrap", "bringup.passes.host"),
    *("bringup.plugins", "bringup.report"),
)
# devices is below ops, so its __init__ imports them when they are asked for.
ELSEWHERE = {
    f"bringup.devices.{name}": f"bringup.ops.operators.operator_kernel.{name}"
    for name in ("OperatorKernel", "kernel")
}
LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)")
FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
LIST_AFTER_TEXT = re.compile(r"^(?!\* |[|#>]|- |\d+\. | |$)(.*\n)(?=(?:\*|-|\d+\.) )", re.MULTILINE)


def names(package: str) -> list[str]:
    """Return the public names of a package that are no packages themselves."""
    listed: list[str] = importlib.import_module(package).__all__
    return sorted(name for name in listed if f"{package}.{name}" not in PACKAGES)


# --- where a name is used ---


def used_names(code: str) -> set[str]:
    """Return the public names, `package.name`, that Python code uses through its imports."""
    packages: dict[str, str] = {}
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "bringup":
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                packages[name.asname or name.name] = whole
                found.add(whole)
        elif isinstance(node, ast.Import):
            packages |= {n.asname or n.name: n.name for n in node.names}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute):
            base, _, rest = ast.unparse(node).partition(".")
            found.add(f"{packages.get(base, base)}.{rest}")
    return found


def docstring_examples(item: Any) -> Iterator[str]:
    """Yield the docstrings with `>>>` of a function, or of a class and its methods."""
    members = vars(item).values() if inspect.isclass(item) else ()
    for one in (item, *members):
        text = getattr(getattr(one, "__func__", one), "__doc__", None) or ""
        if callable(one) and ">>> " in text:
            yield inspect.cleandoc(text)


@functools.cache
def examples() -> dict[str, dict[str, str]]:
    """Return where a public name is used in code that tests run: titles by their places."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]:
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        for name in {name for block in blocks for name in used_names(block)}:
            found[name][place(page)] = title(page)
    for package in PACKAGES:
        for own in names(package):
            for text in docstring_examples(getattr(importlib.import_module(package), own)):
                code = "".join(one.source for one in doctest.DocTestParser().get_examples(text))
                for name in used_names(code):
                    found[name][f"api/{package}/{own}.md"] = f"{package}.{own}"
    return dict(found)


# --- the pages ---


def order() -> list[Any]:
    """Return mkdocs' `nav`: the pages in the order in which docs/index.md leads to them.

    A page that several parts link to is in the last of them.
    """
    sections = re.split(r"^## ", (DOCS / "index.md").read_text(), flags=re.MULTILINE)
    parts = [part for section in sections[2:] for part in _parts(section)]
    owner = {link: title for title, text in parts for link in LINK.findall(text)}
    found: list[Any] = [{"Start": "index.md"}]
    for part in dict.fromkeys(owner.values()):
        found.append({part: [link for link in owner if owner[link] == part and link[:2] != ".."]})
    return [*found, {"Public names": ["api/index.md", *map(_package_order, PACKAGES)]}]


def _parts(section: str) -> list[tuple[str, str]]:
    """Return title and text of what begins in bold, or of the whole section."""
    bold = r"^\*\*(.+?)\.\*\*(.+?)(?=^\*\*|\Z)"
    heading, _, text = section.partition("\n")
    return re.findall(bold, text, re.MULTILINE | re.DOTALL) or [(heading, text)]


def _package_order(package: str) -> dict[str, Any]:
    below = [{name: f"api/{package}/{name}.md"} for name in names(package)]
    return {package: [f"api/{package}/index.md", *below]}


def reference() -> dict[str, str]:
    """Return the pages of the public names by their paths in the site."""
    lists = "\n".join(f"* [`{name}`]({name}/index.md): {len(names(name))}" for name in PACKAGES)
    pages = {"api/index.md": f"# Public names\n\nBy package, and how many each has.\n\n{lists}\n"}
    for package in PACKAGES:
        own = names(package)
        links = "\n".join(f"* [`{name}`]({name}.md)" for name in own)
        pages[f"api/{package}/index.md"] = (
            f"::: {package}\n    options: {{members: []}}\n\n{links}\n"
        )
        pages |= {f"api/{package}/{name}.md": _name_page(package, name) for name in own}
    return pages


def _name_page(package: str, name: str) -> str:
    whole = f"{package}.{name}"
    parts = [f"::: {ELSEWHERE.get(whole, whole)}\n    options: {{heading: {whole}}}"]
    value = getattr(importlib.import_module(package), name)
    if type(value).__module__.startswith("bringup"):  # an operator, whose text is made
        parts.append(f"```text\n{value.__doc__}\n```")
    uses = {where: text for where, text in examples().get(whole, {}).items() if text != whole}
    if uses:
        links = "\n".join(
            f"* [{text}]({posixpath.relpath(where, 'api/x')})" for where, text in uses.items()
        )
        parts.append(f"## Pages with examples\n\n{links}")
    return "\n\n".join(parts) + "\n"


def title(page: Path) -> str:
    """Return the first heading of a page."""
    return page.read_text().split("\n", 1)[0].removeprefix("# ")


def place(target: Path) -> str:
    """Return where the site has a file or folder of the repository: docs/ is its root."""
    if target.is_relative_to(DOCS):
        return target.relative_to(DOCS).as_posix()
    if target.is_dir() and (target / "README.md").exists():
        target /= "README.md"
    path = f"source/{target.relative_to(ROOT).as_posix()}"
    return path if path.endswith(".md") else f"{path}.md"


def linked(page: Path, text: str) -> Iterator[Path]:
    """Yield the files and folders outside of docs/ that a page links to, and what these link to."""
    for link in LINK.findall(FENCE.sub("", text)):
        target = Path(os.path.normpath(page.parent / link))
        if target.is_relative_to(ROOT) and not target.is_relative_to(DOCS) and target.exists():
            yield target


@functools.cache
def sources() -> dict[str, Path]:
    """Return what the site has of the repository beside docs/, by path: all that is linked to."""
    found: dict[str, Path] = {}
    waiting = sorted(DOCS.rglob("*.md"))
    while waiting:
        page = waiting.pop()
        for target in linked(page, page.read_text()):
            path = place(target)
            if path not in found:
                found[path] = (
                    target / "README.md"
                    if target.is_dir() and path.endswith("/README.md")
                    else target
                )
                waiting += [found[path]] if found[path].suffix == ".md" else []
    return found


def source_page(path: Path) -> str:
    """Return a page for a file of the repository, or for a folder: the names of what it has."""
    name = path.relative_to(ROOT).as_posix()
    if path.suffix == ".md":
        return path.read_text()
    if path.is_dir():
        git = subprocess.run(["git", "ls-files", name], cwd=ROOT, capture_output=True, check=True)
        return f"# {name}\n\n" + "".join(f"* `{line}`\n" for line in git.stdout.decode().split())
    language = {".h": "c"}.get(path.suffix, path.suffix.removeprefix("."))
    wide = "---\nhide: [navigation, toc]\n---\n"
    return f"{wide}# {name}\n\n````{language}\n{path.read_text()}\n````\n"


def for_site(text: str, path: str, origin: Path) -> str:
    """Return a page as mkdocs needs it: links within the site, and a blank line before a list.

    Args:
        text: the page, as GitHub shows it.
        path: where the site has it.
        origin: its file in the repository.
    """

    def link(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(origin.parent / match[1]))
        return (
            f"]({posixpath.relpath(place(target), posixpath.dirname(path))}"
            if target.exists()
            else match[0]
        )

    parts = FENCE.split(text)
    parts[::2] = [LIST_AFTER_TEXT.sub("\\1\n", LINK.sub(link, part)) for part in parts[::2]]
    return "".join(parts)


# --- mkdocs ---


def on_config(config: Any) -> Any:
    """Give mkdocs the order of the pages."""
    config.nav = order()
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages that are not in docs/."""
    from mkdocs.structure.files import File

    pages = reference() | {path: source_page(file) for path, file in sources().items()}
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Rewrite the pages that GitHub can show, too."""
    path = page.file.src_uri
    return (
        markdown
        if path.startswith("api/")
        else for_site(markdown, path, sources().get(path, DOCS / path))
    )
