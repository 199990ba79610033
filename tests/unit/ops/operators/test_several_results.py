"""Pointwise kernels with several results: of any layouts, in both forms of the simulator."""

from __future__ import annotations

import pytest
from tests.forked_python import output_of

LOADED = """
import hashlib, sys, torch
from torch.nn import functional
from bringup import devices, jit
torch.set_num_threads(1)
devices.load_driver("sim")
two = jit.Source(name="two.cpp", text='''
#include <cmath>
template <class T> void frexp(T x, T* mantissa, T* exponent) {
  int e = 0;
  *mantissa = std::frexp(x, &e);
  *exponent = std::isfinite(x) ? e : 0;
}
''')
devices.kernel("aten::frexp", source=two)
devices.pointwise_kernels()
aten = torch.ops.aten
"""

LAYOUTS = """
from hypothesis import given, seed, settings, strategies as st
digest = hashlib.sha256()

@st.composite
def tensors(draw):
    '''Operands of one shape in any order of strides, some broadcast, and results likewise.'''
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    def laid_out(shape, dtype, number):
        order = draw(st.permutations(range(len(shape))))
        larger = [n + draw(st.sampled_from((0, 0, 1))) for n in shape]
        base = torch.arange(max(1, torch.Size(larger).numel()) + 0.0)[:torch.Size(larger).numel()]
        made = ((base * 0.37 + number) % 5 - 2.5).to(dtype).reshape([larger[d] for d in order])
        made = made.permute([order.index(d) for d in range(len(shape))])
        return made[tuple(slice(0, n) for n in shape)]
    dtype = draw(st.sampled_from((torch.float32, torch.bfloat16)))
    weight = [n if draw(st.booleans()) else 1 for n in shape]
    operands = [laid_out(shape, dtype, 0), laid_out(shape, dtype, 1), laid_out(weight, dtype, 2)]
    shapes = st.sampled_from((shape, shape, [0]))  # the last one is resized
    outs = [laid_out(draw(shapes), one, 3) for one in (dtype, torch.int32)]
    return operands, outs

def there(tensor):
    spread = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="npu")
    if any(n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride())):
        return tensor.to("npu")
    return spread.copy_(tensor)

def check(function, *arguments, lies=True):
    wanted, got = function(*arguments), function(*map(there, arguments))
    # What fakes say: some kernels of the CPU give rows.
    fakes = function(*(torch.empty_strided(
        one.shape, one.stride(), dtype=one.dtype, device="meta") for one in arguments))
    for one, other, fake in zip(got, wanted, fakes, strict=True):
        assert one.dtype is other.dtype and one.shape == other.shape
        strides = zip(one.shape, one.stride(), fake.stride())
        assert not lies or one.numel() == 0 or all(n == 1 or s == t for n, s, t in strides)
        torch.testing.assert_close(one.cpu(), other, equal_nan=True)
        digest.update(repr(one.cpu().flatten().tolist()).encode())

@seed(3)
@settings(max_examples=60, deadline=None, database=None)
@given(tensors())
def every(drawn):
    (x, y, weight), (mantissa, exponent) = drawn
    with devices.fallback_policy("forbid"):
        # The CPU's looks at `self` first for how its results lie.
        check(aten._prelu_kernel_backward, x, y, weight, lies=False)
        check(aten.log_sigmoid_forward, x)
        check(torch.frexp, x)
        out = aten.native_dropout(there(x), 0.5, False)
        assert torch.equal(out[0].cpu(), x) and out[1].dtype is torch.bool and out[1].cpu().all()
    own = [there(one) for one in (mantissa, exponent)]
    import warnings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = torch.frexp(there(x), out=own)
        wanted = torch.frexp(x, out=(mantissa.clone(), exponent.clone()))
    for one, mine, other in zip(got, own, wanted, strict=True):
        assert one is mine and one.shape == other.shape
        assert torch.equal(one.cpu(), other)
        digest.update(repr(one.cpu().flatten().tolist()).encode())

every()
report = devices.fallback_report()
print(digest.hexdigest())
print([row.operator for row in report.rows])
"""


def test_results_lie_and_are_as_on_the_cpu_and_alike_in_both_forms() -> None:
    by_host, by_values = (
        output_of(LOADED + LAYOUTS, BRINGUP_SIM_HOST_CODE=form).splitlines() for form in "10"
    )
    assert by_host == by_values
    assert by_host[1] == "[]"


GIVEN = """
x = torch.tensor([0.5, -3.0, 24.0]).to("npu")
devices.fallback_report(reset=True)

def told(what):
    report = devices.fallback_report(reset=True)
    print(what, [row.operator for row in report.native], [row.operator for row in report.rows])

y = x.clone()
devices.fallback_report(reset=True)
aten.log_sigmoid_forward.output(y, output=y, buffer=torch.empty_like(y))
torch.testing.assert_close(y.cpu(), functional.logsigmoid(x.cpu()))
told("a result is an operand")
twice = torch.empty(3, device="npu")
aten.log_sigmoid_forward.output(x, output=twice, buffer=twice)
told("a result twice")
shared = torch.zeros(6, device="npu")
try:
    aten.log_sigmoid_forward.output(shared[:3], output=shared[1:4], buffer=twice)
except RuntimeError as error:
    print(str(error).splitlines()[0][:60])
for expression in ("self", "self, self, self", ()):
    try:
        devices.kernel("aten::log_sigmoid_forward", expression=expression or "()")
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_results_that_overlap_or_do_not_fit_are_the_cpus() -> None:
    said = output_of(LOADED + GIVEN, BRINGUP_SIM_HOST_CODE="0").splitlines()
    assert said[0] == "a result is an operand ['aten::log_sigmoid_forward.output'] []"
    assert said[1] == "a result twice [] ['aten::log_sigmoid_forward.output']"
    assert said[2].startswith("unsupported operation: some elements of the input tensor")
    reasons = ["it has 1 results, the operator 2", "it has 3 results, the operator 2"]
    for line, words in zip(said[3:], [*reasons, "it has no result"], strict=True):
        assert line.startswith("SchemaError ")
        assert words in line


TRAINED = """
def gradients(device):
    torch.manual_seed(0)
    x = torch.randn(4, 3, 5).to(device).requires_grad_()
    prelu = torch.nn.PReLU(3).to(device)
    loss = (functional.logsigmoid(prelu(x)) * torch.arange(60.0).reshape(4, 3, 5).to(device)).sum()
    loss.backward()
    return loss.detach().cpu(), x.grad.cpu(), prelu.weight.grad.cpu()

devices.fallback_report(reset=True)
for one, other in zip(gradients("npu"), gradients("cpu"), strict=True):
    torch.testing.assert_close(one, other)
names = {row.operator for row in devices.fallback_report().native}
print(len(names & {"aten::log_sigmoid_forward", "aten::log_sigmoid_backward", "aten::_prelu_kernel",
                   "aten::_prelu_kernel_backward"}))
"""


@pytest.mark.parametrize("host_code", ["1", "0"])
def test_gradients_through_operators_with_two_results(host_code: str) -> None:
    assert output_of(LOADED + TRAINED, BRINGUP_SIM_HOST_CODE=host_code) == "4"
