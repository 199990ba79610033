"""Results that are given with out=: where they are resized or share memory with other tensors. The
programs run where the host sees device memory and where it does not.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

PROGRAM = """
import json, warnings
import torch as T
from bringup import devices
devices.load_driver("sim")
warnings.simplefilter("ignore")
told = {}

pool = T.arange(8., device="npu")
T.cumsum(T.ones(3, device="npu"), 0, out=pool[4:4])
told["resized"] = pool.tolist(), pool.untyped_storage().nbytes()

pool = T.arange(4., device="npu")
out = T.cumsum(T.ones(3, device="npu"), 0, out=pool[2:2])
told["grown"] = pool.tolist(), out.tolist(), out.storage_offset(), pool.untyped_storage().nbytes()

pool = T.zeros(100_000, device="npu")
T.add(T.arange(64., device="npu"), 1, out=pool[:0])
others = [T.ones(64, device="npu") for _ in range(1000)]
pool.fill_(3.)
told["others"] = sum(int(t.ne(1).any()) for t in others)

pool = T.full((12,), 9., device="npu")
T.aminmax(T.tensor([[3., 1.], [5., 4.]], device="npu"), dim=1, out=(pool[2:2], pool[6:6]))
told["two"] = pool.tolist()

b = T.arange(12., device="npu")
try:
    T.gather(b, 0, T.arange(4, device="npu"), out=b[6:6])
except RuntimeError as error:
    told["overlap"] = str(error), b.tolist()

pool = T.full((8,), 9., device="npu")
T.bmm(T.ones(1, 2, 2, device="npu"), T.ones(1, 2, 3, device="npu"), out=pool[3:4].expand(1, 2, 3))
told["repeated"] = pool.tolist()

for _ in range(50):  # the CPU's kernel writes all of it, one element behind the other
    pool = T.full((4000,), 9., device="npu")
    T.narrow_copy(T.ones(2000, device="npu"), 0, 0, 2000, out=pool[3:4].expand(2000))
told["dense"] = pool[2:4].tolist()
print(json.dumps(told))
"""


@pytest.fixture(scope="module", params=["", "1"], ids=["visible", "isolated"])
def told(request: pytest.FixtureRequest, fresh_python: Callable[..., str]) -> dict[str, object]:
    return json.loads(fresh_python(PROGRAM, BRINGUP_SIM_ISOLATED=request.param))  # type: ignore


def test_a_result_that_is_resized_stays_in_its_buffer(told: dict[str, object]) -> None:
    assert told["resized"] == [[0, 1, 2, 3, 1, 2, 3, 7], 32]


def test_a_buffer_grows_where_a_result_needs_more(told: dict[str, object]) -> None:
    assert told["grown"] == [[0, 1, 1, 2], [1, 2, 3], 2, 20]


def test_nothing_is_written_behind_a_buffer_that_had_a_resized_result(
    told: dict[str, object],
) -> None:
    assert told["others"] == 0


def test_two_results_in_one_storage_do_not_overwrite_each_other(told: dict[str, object]) -> None:
    assert told["two"] == [9, 9, 1, 4, 9, 9, 3, 5, 9, 9, 9, 9]


def test_a_result_that_would_come_to_lie_on_an_input_is_refused_as_on_the_cpu(
    told: dict[str, object],
) -> None:
    words, values = told["overlap"]  # type: ignore[misc]
    assert "single memory location" in words
    assert values == list(range(12))


def test_a_result_that_lies_on_top_of_itself_is_written_as_on_the_cpu(
    told: dict[str, object],
) -> None:
    assert told["repeated"] == [9, 9, 9, 2, 9, 9, 9, 9]


def test_a_kernel_that_takes_its_result_for_a_dense_one_writes_nowhere_else(
    told: dict[str, object],
) -> None:
    assert told["dense"] == [9, 1]
