"""Whose kernel runs on the device: somebody else's for every operator that the kit has one for,
registered before the driver or after it, in C++ or in Python, as `devices.explain` tells; and the
kit's again when the vendor's library goes.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from tests.forked_python import output_of_module
from tests.sweeps.vendor_programs import OF_THE_KIT, WAYS


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = str(tmp_path_factory.mktemp("vendor"))
    told: dict[str, Any] = json.loads(output_of_module("tests.sweeps.vendor_programs", folder))
    return told


def test_the_list_of_the_kits_own_kernels_is_whole(report: dict[str, Any]) -> None:
    own = {name for name, told in report["kit"].items() if "fallback.cpp" not in told}
    assert own == {f"aten::{name}" for name in OF_THE_KIT}


@pytest.mark.parametrize("way", WAYS)
def test_a_vendors_kernel_runs_and_the_kits_again_without_it(
    way: str, report: dict[str, Any], sweep_counts: Counter[str]
) -> None:
    told = report["ways"][way]
    sweep_counts["names"] += len(told["loaded"])
    lost = {name: by for name, by in told["loaded"].items() if "vendor_" not in by}
    assert lost == {}
    left = {name: by for name, by in told["removed"].items() if by != report["kit"][name]}
    assert left == {}
