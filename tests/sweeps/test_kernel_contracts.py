"""What the CPU refuses, the kernels of `devices.kernel` do not compute, and what it answers they
answer, too: with an exception of the CPU's type, or the CPU's numbers.
"""

from __future__ import annotations

import pytest
from tests.sweeps.kernel_contracts import CASES, differences, kernels
from tests.sweeps.support import part

ALWAYS = [("documented", "max", "empty")]


@pytest.mark.parametrize(("registered", "name", "kind"), part(CASES, ALWAYS))
def test_a_call_is_refused_or_answered_as_on_cpu(registered: str, name: str, kind: str) -> None:
    with kernels(registered):
        tried, found = differences(name, kind)
    assert found == {}, f"{len(found)} of {tried}"
