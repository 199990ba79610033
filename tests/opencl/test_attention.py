"""Attention, its gradients, and dequantisation on an OpenCL device, as values kernels."""

from __future__ import annotations

from pathlib import Path

from tests.forked_python import output_of
from tests.opencl.conftest import ROOT, UNOPTIMIZED
from tests.opencl.operators_program import LOADED

ATTENTION = """
from torch.nn.functional import scaled_dot_product_attention

def attend(q, k, v, mask, causal, scale):
    given = [x.detach().requires_grad_() for x in (q, k, v)]
    grouped = q.shape[1] != k.shape[1]
    y = scaled_dot_product_attention(
        *given, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped
    )
    assert y.device.type == "cpu" or "FlashAttentionForCpu" in type(y.grad_fn).__name__
    weights = torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(y.device)
    return y.detach(), *torch.autograd.grad((y * weights).sum(), given)


def case(batch, heads, key_heads, rows, keys, size, mask=None, causal=False, scale=None, wide=None):
    torch.manual_seed(rows)
    q = torch.randn(batch, rows, heads, size).transpose(1, 2)
    k = torch.randn(batch, keys, key_heads, size).transpose(1, 2)
    v = torch.randn(batch, key_heads, keys, size if wide is None else wide)
    compare(lambda *x: attend(*x, causal, scale), q, k, v, mask, rtol=1e-4, atol=2e-5)


case(1, 2, 2, 5, 5, 8)
case(2, 4, 4, 33, 33, 64, causal=True)
case(1, 2, 2, 17, 9, 16, causal=True)
case(2, 4, 2, 33, 17, 40, scale=0.3)
case(2, 4, 4, 9, 17, 16, torch.randn(2, 1, 9, 17))
case(2, 2, 2, 3, 20, 256, torch.randn(3, 20))
hidden = torch.zeros(9, 17)
hidden[3] = -torch.inf  # a row that sees nothing: zeros, and no gradient
case(1, 2, 2, 9, 17, 16, hidden)
case(1, 2, 2, 9, 17, 16, torch.rand(9, 17) > 0.4)
case(1, 1, 1, 1, 100, 24)
x = torch.randn(1, 1, 4, 8, device="ocl")
torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(x, x, x, 0.5)
try:
    torch.ocl.synchronize()
except RuntimeError as error:
    assert "dropout_p: this attention has no dropout" in str(error), error
else:
    raise AssertionError("dropout was left out without a word")
print("done")
"""


def test_attention_and_its_gradients_are_the_cpus(library: Path) -> None:
    """Odd sizes, grouped heads, masks of every shape, more keys than rows and fewer."""
    program = f"ROOT = {str(ROOT / 'drivers/opencl/src')!r}\n{LOADED}{ATTENTION}"
    assert output_of(program, str(library), **UNOPTIMIZED) == "done"


DEQUANTISATION = """
from bringup import kernels
from bringup.errors import KernelError


def case(*tensors, **options):
    compare(lambda *x: kernels.dequantize(*x, **options), *tensors, rtol=0, atol=0)


every = torch.arange(256, dtype=torch.uint8).view(8, 32)
for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float4_e2m1fn_x2):
    x = every.view(dtype)
    here = kernels.dequantize(x.to("ocl"))
    torch.testing.assert_close(here.cpu(), kernels.dequantize(x), rtol=0, atol=0, equal_nan=True)
case(every, packed="int4")
torch.manual_seed(0)
x = torch.randint(-128, 128, (3, 20, 50), dtype=torch.int8)
offset = torch.randint(-9, 9, (3, 5, 4), dtype=torch.int32)
case(x, torch.rand(3, 5, 4), offset, block=(4, 16), out_dtype="bfloat16")
case(x[0], torch.rand(20).half(), out_dtype="float16")
powers = torch.randint(100, 140, (20, 2), dtype=torch.uint8).view(torch.float8_e8m0fnu)
here = kernels.dequantize(x[0].to("ocl"), powers.to("ocl"))
assert torch.equal(here.cpu(), kernels.dequantize(x[0], powers))
case(x[0], torch.tensor([1.5]), out_dtype=torch.int8)
case(x[:, :0])
try:
    kernels.dequantize(x.to("ocl"), torch.rand(3, 4, 4).to("ocl"), block=(4, 16))
except KernelError as error:
    assert "one for each block" in str(error)
else:
    raise AssertionError("scales of other blocks were taken")

print("done")
"""


def test_dequantisation_has_the_cpus_bits(library: Path) -> None:
    """Every float of 8 and 4 bits, blocks, zero points, 16-bit scales, powers of two."""
    program = f"ROOT = {str(ROOT / 'drivers/opencl/src')!r}\n{LOADED}{DEQUANTISATION}"
    assert output_of(program, str(library), **UNOPTIMIZED) == "done"
