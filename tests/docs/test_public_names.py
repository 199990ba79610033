"""tests/docs/public_names.txt: every public name, so that a change of them shows in a diff."""

from __future__ import annotations

import importlib
from pathlib import Path

from bringup import settings

PAGE = Path(__file__).with_name("public_names.txt")
PACKAGES = (
    "bringup",
    "bringup.compiler",
    "bringup.compiler.aten",
    "bringup.compiler.onnx",
    "bringup.conformance",
    "bringup.devices",
    "bringup.devices.sim",
    "bringup.errors",
    "bringup.graphs",
    "bringup.ir",
    "bringup.jit",
    "bringup.kernels",
    "bringup.kernels.npu",
    "bringup.ops",
    "bringup.passes",
    "bringup.passes.bootstrap",
    "bringup.passes.host",
    "bringup.plugins",
    "bringup.report",
)


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
