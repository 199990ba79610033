"""The step that installs torch: which torch it lets pass, and with which words it refuses."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from tests.tool_module import tool_module


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return tool_module("install_torch")


def test_installed_torch_is_read_from_its_files(tool: ModuleType) -> None:
    version, platform = tool.installed()
    assert version == torch.__version__
    assert (platform is None) == (torch.version.cuda is None and torch.version.hip is None)


@pytest.mark.parametrize(
    ("found", "accepted", "words"),
    [
        (("2.13.0+cpu", None), False, None),
        (("2.13.1+cu130", "cuda 13.0"), True, None),
        (("2.13.1+cu130", "cuda 13.0"), False, "a build for cuda 13.0: take a CPU build"),
        (("2.12.0", None), True, "needs torch 2.13, this is 2.12.0"),
        (None, False, "cannot be found after installing it"),
    ],
)
def test_verdict_says_what_is_wrong_with_a_torch(
    tool: ModuleType, found: tuple[str, str | None] | None, accepted: bool, words: str | None
) -> None:
    said = tool.verdict(found, accepted=accepted)
    assert (said is None) if words is None else (words in said)
