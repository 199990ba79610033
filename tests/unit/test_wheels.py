"""What `tools/wheels.py` writes into a bill of materials."""

from __future__ import annotations

import pytest
from tests.tool_module import tool_module


def test_what_is_compiled_in_is_named_with_its_version() -> None:
    wheels = tool_module("wheels")
    record = {
        "metadata": {"component": {"bom-ref": "bringup"}},
        "components": [],
        "dependencies": [{"ref": "bringup", "dependsOn": ["numpy"]}],
    }
    version = wheels.pybind11_of_torch()
    assert [part.isdigit() for part in version.split(".")] == [True] * 3
    wheels.add_compiled_in(record, "pybind11", version, "_distributed")
    assert record["components"][0]["purl"] == f"pkg:pypi/pybind11@{version}"
    assert record["dependencies"][0]["dependsOn"] == ["numpy", f"pybind11=={version}"]
    with pytest.raises(ValueError):
        wheels.add_compiled_in({**record, "dependencies": []}, "pybind11", version, "")
