"""What of the code of a loop stands before or behind it."""

from __future__ import annotations

import pytest
import torch
from torch._inductor.utils import run_and_get_code

from bringup.compiler.inductor.loop_code import added_apart, cut, hoisted, runs_at_once

PARTS = """\
int64_t tmp0 = (int64_t)(x0);
int64_t tmp1 = ((int64_t)tmp0);
int64_t tmp2 = INT64_C(3);
bool tmp3 = tmp1 < tmp2;
int64_t tmp4 = (int64_t)((-2) + x0);
bool tmp5 = tmp4 > tmp2;
bool tmp6 = tmp4 < tmp7;
float tmp8 = (0.0f);
if (tmp3) {
int64_t tmp9 = INT64_C(1);
bool tmp10 = tmp1 >= tmp9;
tmp8 = in_ptr0[x0];
}
int64_t tmp11 = INT64_C(9);
bool tmp12 = x0 < tmp11;"""


def test_comparisons_of_an_index_with_numbers_are_the_same_between_two_ends() -> None:
    code = PARTS.splitlines()
    ends, before, rest = cut("x0", code)
    assert ends == [3, 6, 9]  # x0 < 3; x0 - 2 > 3; x0 < 9
    assert before == [*code[:6], *code[-2:]]
    assert rest == [code[0], code[1], code[4], *code[6:-2]]
    assert cut("x1", code)[0] == []


@pytest.mark.parametrize(
    ("text", "end"), [("<", 4), (">=", 4), ("<=", 5), (">", 5)], ids=["lt", "ge", "le", "gt"]
)
def test_an_end_is_the_first_value_with_another_result(text: str, end: int) -> None:
    code = ["int64_t tmp0 = INT64_C(4);", f"bool tmp1 = x0 {text} tmp0;"]
    assert cut("x0", code) == ([end], code, [])


def test_what_holds_for_a_whole_row_or_none_of_it_has_no_end() -> None:
    code = ["int64_t tmp0 = INT64_C(0);", "bool tmp1 = x0 >= tmp0;"]
    assert cut("x0", code) == ([], code, [])


def test_what_a_loop_changes_or_may_not_do_stays_in_it() -> None:
    once = ["int64_t tmp0 = in_ptr0[x1];", "if (tmp0 < 0) { report_fault(fault, 1, tmp0); }"]
    stays = [
        "float tmp1 = in_ptr1[x0];",
        "float tmp2 = (tmp1 + 1);",
        "float tmp3 = out_ptr0[x1];",
        "acc0_lanes[lane] = acc0_lanes[lane] + tmp2;",
        "if (tmp2) {",
        "float tmp4 = in_ptr1[x1];",
        "}",
    ]
    assert hoisted(["const int64_t x0 = lane;"], [*stays, *once]) == (once, stays)
    changed = ["float tmp0 = in_ptr0[x1];", "tmp0 = tmp0 + x0;"]
    assert hoisted(["const int64_t x0 = lane;"], changed) == ([], changed)


def test_what_is_added_to_shared_places_is_kept_for_each_lane() -> None:
    code = ["float tmp0 = in_ptr0[x0];", "out_ptr0[x0] = tmp0;"]
    added = "atomic_add_float(&out_ptr1[x0], (float)(tmp0));"
    assert not runs_at_once([*code, added])
    assert added_apart([added, *code], 16) == (
        ["float tmp0_lanes[16];"],
        [*code, "tmp0_lanes[lane] = tmp0;"],
        ["const float tmp0 = tmp0_lanes[lane];", added],
    )
    assert added_apart(code, 16) is None
    assert added_apart([*code, "if (tmp0 < 0) { report_fault(fault, 1, 0); }", added], 16) is None


def test_parts_of_a_row_are_joined_without_a_comparison_for_each_element() -> None:
    def joined(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = torch.cat((x[:, :1], y, x * 2, y[:, 3:]), 1)
        return parts, torch.nn.functional.pad(x, (1, 2), value=5.0)

    given = torch.randn(7, 19, device="npu"), torch.randn(7, 5, device="npu")
    got, (code,) = run_and_get_code(torch.compile(joined), *given)
    torch.testing.assert_close(got, joined(*given), rtol=0, atol=0)
    loops = code.split("#pragma omp simd")[1:]
    assert len(loops) == 2
    assert not any(" < " in loop.partition("x_at +=")[0].partition("++lane")[2] for loop in loops)
