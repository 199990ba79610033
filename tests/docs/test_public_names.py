"""tests/docs/public_names.txt: every public name, so that a change of them shows in a diff."""

from __future__ import annotations

import importlib
from pathlib import Path

from tools.docs_site import PACKAGES

from bringup import settings

PAGE = Path(__file__).with_name("public_names.txt")


def public_names() -> list[str]:
    """Return names of packages and what belongs to their classes, and environment variables."""
    found = [row["variable"] for row in settings.table()]
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            found.append(f"{package}.{name}")
            value = getattr(module, name)
            if isinstance(value, type):
                members = {*vars(value), *getattr(value, "__dataclass_fields__", ())}
                found += [f"{package}.{name}.{m}" for m in members if not m.startswith("_")]
    return sorted(set(found))


def test_public_names_are_those_of_the_list() -> None:
    """After a wanted change: `python -m tests.docs.test_public_names`."""
    assert public_names() == PAGE.read_text().splitlines()


if __name__ == "__main__":
    PAGE.write_text("\n".join(public_names()) + "\n")
