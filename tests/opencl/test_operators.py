"""The operators of drivers/opencl against the CPU's, without a fallback on coarse memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.forked_python import output_of
from tests.opencl.conftest import ROOT
from tests.opencl.operators_program import LOADED

CASES = {
    "functions": """
bits = torch.arange(-(1 << 31), 1 << 31, 400_009).to(torch.int32)
x = torch.cat([bits.view(torch.float32), torch.tensor([0.0, -0.0, float("inf"), -float("inf")])])
for function in (torch.erf, torch.tanh):
    with devices.fallback_policy("forbid"):
        got = function(x.to("ocl")).cpu()
    wanted = function(x.double())
    rounded = wanted.float()
    unit = torch.nextafter(rounded.abs(), torch.tensor(2.0)) - rounded.abs()
    assert (got.isnan() == wanted.isnan()).all()
    errors = ((got.double() - wanted).abs() / unit.double())[~wanted.isnan()]
    assert errors.max() <= 1.5, (function, errors.max())
""",
    "products": """
a, b = torch.randn(37, 50), torch.randn(50, 33)
compare(torch.mm, a, b)
compare(lambda a, b: a.t() @ b.t(), torch.randn(50, 37), torch.randn(33, 50))
compare(lambda a, b: torch.mm(a[1:, ::2], b[:25]), a, b)
for left in (torch.randn(130, 35), torch.randn(35, 130).t(), torch.randn(130, 70)[:, ::2]):
    for right in (torch.randn(35, 71), torch.randn(71, 35).t(), torch.randn(71, 70)[:, ::2].t()):
        compare(torch.mm, left, right)  # several tiles, none full
compare(torch.mm, torch.randn(3, 0), torch.randn(0, 2))
compare(torch.mm, torch.randn(0, 3), torch.randn(3, 2))
compare(lambda a, b: torch.mm(a, b, out=torch.zeros(33, 37, device=a.device).t()), a, b)
compare(torch.bmm, torch.randn(3, 5, 7), torch.randn(3, 7, 40).transpose(1, 2)[:, :7, :7])
compare(torch.matmul, torch.randn(2, 3, 5, 7), torch.randn(7, 4))
for bias in (torch.randn(33), torch.randn(1), torch.randn(37, 33), torch.randn(33, 37).t()):
    compare(torch.addmm, bias, a, b)
    compare(lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=-2), bias, a, b)
compare(lambda c, a, b: torch.addmm(c, a, b, beta=0), torch.full((33,), float("nan")), a, b)
compare(torch.addmm, torch.randn(37, 1), a, b, falls_back=True)
compare(torch.addmm, torch.tensor(2.0), a, b, falls_back=True)
compare(torch.baddbmm, torch.randn(2, 5, 6), torch.randn(2, 5, 7), torch.randn(2, 7, 6))
compare(torch.mm, a.double(), b.double(), falls_back=True)
""",
    "rows": """
import torch.nn.functional as F
def gradient(y, x):
    return torch.autograd.grad(y.square().sum(), x)[0]
x = torch.randn(5, 7, 130)
for dim in (-1, 0, 1):
    for function in (torch.softmax, torch.log_softmax):
        compare(lambda x: function(x, dim), x)
        compare(lambda x: function(x.transpose(0, 2), dim), x)
    compare(lambda x: gradient(torch.softmax(x.requires_grad_(), dim), x), x)
# Gradients are as near to float64 as the CPU's: some roundings of what is added up.
for dim, values in ((-1, x.detach()), (0, x.detach()), (1, torch.randn(70, 100))):
    y = torch.softmax(values, dim)
    for here, log in ((y, False), (y.log(), True)):
        backward = getattr(torch.ops.aten, f"_{'log_' * log}softmax_backward_data")
        grad = 2 * here
        with devices.fallback_policy("forbid"):
            got = backward(grad.to("ocl"), here.to("ocl"), dim, torch.float32).cpu()
        wanted = backward(grad.double(), here.double(), dim, torch.float64)
        added = (grad if log else grad * y).abs().sum(dim, keepdim=True) * y
        added += grad.abs() if log else grad.abs() * y
        for one in (got, backward(grad, here, dim, torch.float32)):
            assert ((one - wanted).abs() <= 6 * 2.0**-24 * added).all()
compare(lambda x: torch.softmax(x, 0), torch.tensor(3.0))
infinite = torch.randn(9, 31)
for row, number in enumerate((float("inf"), float("nan"), -float("inf"))):
    infinite[row, :1], infinite[3 + row, 29:], infinite[6 + row] = number, number, number
compare(lambda x: torch.softmax(x, -1), infinite)
compare(lambda x: torch.log_softmax(x, -1), infinite)
compare(lambda x: torch._safe_softmax(x, -1), infinite)
compare(lambda x: gradient(torch._safe_softmax(x.requires_grad_(), 1), x), infinite[:3, 1:])
compare(lambda x: torch.softmax(x, -1), torch.randn(3, 1)[:, ::1])
compare(lambda x: torch.softmax(x, -1), torch.empty(3, 0))
def out(x):
    made = torch.empty(130, 7, 5, device=x.device).permute(2, 1, 0)
    return torch.ops.aten._softmax.out(x.detach(), -1, False, out=made)
compare(out, x.detach(), falls_back=True)
weight, bias = torch.randn(130), torch.randn(130)
compare(lambda x, w, b: F.layer_norm(x, (130,), w, b), x, weight, bias)
compare(lambda x, w: F.layer_norm(x, (130,), w), x, weight)
compare(lambda x: F.layer_norm(x, (7, 130)), x)
compare(lambda x: F.layer_norm(x.reshape(70, 65), (65,)), x)  # several rows a block
compare(lambda x: F.layer_norm(x.transpose(0, 1), (5, 130)), x)
def gradients(x, w, b):
    wanted = [x.requires_grad_(), w.requires_grad_(), b.requires_grad_()]
    return torch.autograd.grad(F.layer_norm(x, w.shape, w, b).square().sum(), wanted)
compare(gradients, x, weight, bias, rtol=1e-4, atol=1e-4)
compare(gradients, torch.randn(67, 130)[:, :65], weight[:65], bias[:65], rtol=1e-4, atol=1e-4)
for given in (None, 1e-3):
    compare(lambda x, w: F.rms_norm(x, (130,), w, given), x, weight)
compare(lambda x: F.rms_norm(x.transpose(0, 1), (5, 130)), x)
def gradients(x, w):
    wanted = [x.detach().requires_grad_(), w.detach().requires_grad_()]
    return torch.autograd.grad(F.rms_norm(wanted[0], (130,), wanted[1]).pow(3).sum(), wanted)
compare(gradients, x, weight, rtol=1e-4, atol=1e-4)
compare(gradients, x.half(), weight.half(), rtol=1e-2, atol=1e-2, falls_back=True)
""",
    "reductions": """
x = torch.randn(4, 65, 9)
for function in (torch.sum, torch.mean, torch.amax, torch.amin):
    for dim in (0, 1, -1, (0, 2), (0, 1, 2)):
        compare(lambda x: function(x, dim), x)
        compare(lambda x: function(x.transpose(0, 2), dim, keepdim=True), x)
for function in (torch.sum, torch.mean, torch.amax, torch.any):  # several results a block
    compare(lambda x: function(x.reshape(65, 36), 1), x)
for function in (torch.max, torch.min):
    compare(function, x)
    compare(lambda x: tuple(function(x, 1)), x)
    compare(lambda x: tuple(function(x.transpose(0, 1), 0)), torch.randint(5, (4, 65, 9)))
for function in (torch.argmax, torch.argmin):
    compare(lambda x: function(x, 1), torch.randint(5, (4, 65, 9)).float())
    compare(function, x)
compare(lambda x: torch.max(x, 0).values, torch.tensor([1.0, float("nan"), 3.0, float("nan")]))
for p in (2, 1, 0, 3, float("inf"), -float("inf")):
    compare(lambda x: torch.linalg.vector_norm(x, p, 1), x)
    compare(lambda x: torch.linalg.vector_norm(x, p), x)
for function in (torch.all, torch.any):
    compare(lambda x: function(x > 2, 1), x)
    compare(lambda x: function(x > -9), x)
compare(lambda x: torch.prod(x, 1), torch.rand(3, 5) + 0.5)
compare(torch.sum, torch.tensor(3.0))
compare(torch.sum, torch.empty(0))
compare(lambda x: x.sum(0), torch.randint(100, (70, 3)))
""",
    "indices": """
import torch.nn.functional as F
x, rows = torch.randn(10, 6), torch.tensor([3, 0, 9, 3])
compare(lambda x, i: x.index_select(0, i), x, rows)
compare(lambda x, i: x.index_select(1, i[1:2]), x, rows)
compare(lambda x, i: x.t().index_select(1, i), x, rows)
compare(lambda x, i: x.index_select(0, i), torch.arange(20).reshape(10, 2), rows.int())
compare(lambda x, i: x.index_select(0, i[:0]), x, rows)
compare(lambda x, i: F.embedding(i.reshape(2, 2), x), x, rows)
def gradient(x, i):
    return torch.autograd.grad(F.embedding(i, x.requires_grad_(), padding_idx=0).square().sum(), x)
compare(gradient, x, rows)
compare(gradient, torch.randn(10, 70), torch.randint(10, (150,)))
a, b, c = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.empty(2, 0, 4)
compare(lambda *all: torch.cat(all, 1), a, b, c)
compare(lambda a, b: torch.cat((a.transpose(0, 1), b.transpose(0, 1))), a, b)
compare(lambda a: torch.cat((a[:1], a[1:, :, :])), a)
compare(lambda a: torch.stack((a[0, 0, 0], a[1, 1, 1])), a)
compare(lambda a: torch.cat([a] * 31), a)
compare(lambda a: torch.cat([a, a[:1], a[:0]] * 40), a)
compare(lambda a: torch.cat((a > 0, a > 1)), a)
compare(lambda a: torch.tril(a, 1), a)
compare(lambda a: torch.triu(a.transpose(1, 2), -1), a)
compare(lambda a: torch.arange(3, 30, 4, device=a.device), a)
chosen = torch.randint(5, (2, 7, 4))
for source in (b, b.double(), torch.randint(9, (2, 5, 4))):
    compare(lambda x, i: x.gather(1, i), source, chosen)
    added = torch.arange(56).reshape(2, 7, 4).to(source.dtype)
    compare(lambda x, i, y: x.scatter_add(1, i, y), source, chosen, added)
compare(lambda x, i: x.transpose(0, 2).gather(-1, i), b, torch.randint(2, (4, 5, 3)))
compare(lambda x, i: x.gather(0, i), torch.tensor(3.0), torch.tensor(0))
compare(lambda x, i: x.gather(1, i[:1]), b, chosen, falls_back=True)
compare(lambda x, i, y: x.scatter_add(1, i[:, :3], y), b, chosen, added.float(), falls_back=True)
def in_place(x, i, y):
    return x.clone().scatter_add_(0, i, y)
compare(in_place, torch.randn(200), torch.randint(200, (900,)), torch.randn(900))
compare(in_place, torch.randn(3, 5000), torch.randint(3, (4, 5000)), torch.randn(4, 5000))
def gradient_of_gathered(x, i):
    return torch.autograd.grad(x.requires_grad_().gather(1, i).square().sum(), x)
compare(gradient_of_gathered, b, chosen)
scores, targets = torch.randn(6, 5), torch.tensor([0, 4, 2, -100, 1, 1])
weight = torch.rand(5)
for reduction in ("mean", "sum", "none"):
    def loss(x, t, w):
        made = F.cross_entropy(x.requires_grad_(), t, w, reduction=reduction)
        return (made, *torch.autograd.grad(made.sum(), x))
    compare(loss, scores, targets, weight)
    compare(loss, torch.randn(2, 5, 3, 4), torch.randint(5, (2, 3, 4)), weight)
""",
    "convolutions": """
import torch.nn.functional as F
last = torch.channels_last
def convolved(options, bias=True, format=torch.contiguous_format):
    def run(x, w, b):
        given = [x.detach().to(memory_format=format), w.detach().clone(), b.detach().clone()]
        x, w, b = (one.requires_grad_() for one in given)
        made = F.conv2d(x, w, b if bias else None, **options)
        wanted = (x, w, b) if bias else (x, w)
        gradients = torch.autograd.grad(made.square().sum(), wanted)
        for one in (made, *gradients[:2]):
            assert one.dim() < 4 or one.numel() < 2 or one.is_contiguous(memory_format=format)
        return (made.detach(), *gradients)
    return run
x, w, b = torch.randn(3, 4, 9, 11), torch.randn(6, 4, 3, 2), torch.randn(6)
compare(convolved({}), x, w, b, rtol=1e-4, atol=1e-4)
compare(convolved({"padding": 1}, False), x, w, b, rtol=1e-4, atol=1e-4)
uneven = {"stride": (2, 3), "padding": (2, 1), "dilation": (1, 2)}
compare(convolved(uneven), x, w, b, rtol=1e-4, atol=1e-4)
compare(convolved(uneven, format=last), x, w, b, rtol=1e-4, atol=1e-4)
compare(convolved({"groups": 2, **uneven}), x, w[:, :2], b, rtol=1e-4, atol=1e-4)
compare(convolved({"groups": 4}), x, torch.randn(8, 1, 3, 3), torch.randn(8), rtol=1e-4, atol=1e-4)
wide = torch.randn(40, 37, 5, 5), torch.randn(40)
compare(convolved({"padding": 2}), torch.randn(2, 37, 13, 7), *wide, rtol=1e-4, atol=2e-2)
compare(lambda x, w, b: F.conv2d(x.transpose(2, 3), w[:, :, ::2, :1], b), x, w, b)
compare(lambda x, w: F.conv2d(x[0], w), x, w)
compare(lambda x, w: F.conv2d(x, w), torch.empty(0, 4, 9, 9), w)
compare(convolved({"padding": 1}), torch.empty(0, 4, 9, 9), w, b)
compare(lambda x, w: F.conv1d(x[:, :, 0], w[..., 0], padding=2, stride=3), x, w, rtol=1e-4)
def asked(x, w, b):
    x, w, b = (one.detach().clone().requires_grad_() for one in (x, w, b))
    made = F.conv2d(x, w, b).sum()
    return tuple(torch.autograd.grad(made, one, retain_graph=True)[0] for one in (x, w, b))
compare(asked, x, w, b, rtol=1e-4, atol=1e-4)
# By rule on the host.
volumes = torch.randn(1, 2, 4, 5, 6), torch.randn(3, 2, 2, 2, 2)
compare(F.conv3d, *volumes, falls_back=True)
compare(lambda x, w: F.conv_transpose2d(x, w[:4]), x, w, falls_back=True)
compare(lambda x, w: F.conv2d(x, w), x.double(), w.double(), falls_back=True)
""",
    "images": """
import torch.nn.functional as F
last = torch.channels_last
x = torch.randn(3, 4, 9, 10)
def gradients(function, format=torch.contiguous_format):
    def run(x, *others):
        x = x.detach().clone(memory_format=torch.preserve_format)
        x = x.to(memory_format=format) if x.dim() == 4 else x
        x, others = x.requires_grad_(), [one.detach().clone().requires_grad_() for one in others]
        made = function(x, *others)
        assert x.dim() < 4 or made.is_contiguous(memory_format=format)
        return (made.detach(), *torch.autograd.grad((made * made * made).sum(), [x, *others]))
    return run
w, b, mean, var = torch.rand(4), torch.randn(4), torch.randn(4), torch.rand(4)
for training in (True, False):
    for format in (torch.contiguous_format, last):
        def normed(x, w, b, mean, var):
            kept = mean.detach().clone(), var.detach().clone()
            made = gradients(lambda *of: F.batch_norm(of[0], *kept, *of[1:], training, 0.3), format)
            return (*made(x, w, b), *kept)
        compare(normed, x, w, b, mean, var, rtol=1e-4, atol=1e-3)
    for shape in ((5, 4), (5, 4, 7), (2, 4, 1, 300)):
        one = torch.randn(shape)
        compare(lambda x, m, v: F.batch_norm(x, m.clone(), v.clone(), None, None, training), one,
                mean, var)
compare(lambda x: F.batch_norm(x.transpose(2, 3), None, None, training=True), x)
with devices.fallback_policy("forbid"):  # statistics in evaluation, which are empty on the CPU
    given = [one.to("ocl") for one in (x, w, b, mean, var)]
    kept = torch.native_batch_norm(*given, False, 0.1, 1e-5)[1:]
torch.testing.assert_close([one.cpu() for one in kept], [mean, (var + 1e-5).rsqrt()])
volumes = torch.randn(2, 3, 2, 3, 4)
compare(lambda x: F.batch_norm(x, None, None, training=True), volumes, falls_back=True)
strided = x[:, :, ::2, 1:]
for options in ((2,), (3, 2, 1), ((3, 2), (1, 2), (1, 0), (2, 1)), (3, 2, 1, 1, True)):
    for format in (torch.contiguous_format, last):
        compare(gradients(lambda x: F.max_pool2d(x, *options), format), x, rtol=1e-4, atol=1e-4)
    compare(gradients(lambda x: F.max_pool2d(x, *options)), x[0].transpose(1, 2), rtol=1e-4)
    compare(lambda x: F.max_pool2d(x, *options, return_indices=True), strided)
compare(lambda x: F.max_pool2d(x, 2), torch.tensor([[[1.0, float("nan")], [2.0, 3.0]]]))
compare(lambda x: F.max_pool2d(x, 2), torch.empty(0, 4, 6, 6))
for options in ((2,), (3, 2, 1), ((3, 2), (1, 2), (1, 0)), (3, 2, 1, True), (3, 2, 1, True, False),
                (3, 2, 1, False, True, 5)):
    for format in (torch.contiguous_format, last):
        compare(gradients(lambda x: F.avg_pool2d(x, *options), format), x, rtol=1e-4, atol=1e-4)
    compare(lambda x: F.avg_pool2d(x[0], *options), strided)
for size in (1, 3, (2, 7), (9, 10), (12, 4)):
    compare(gradients(lambda x: F.adaptive_avg_pool2d(x, size)), x, rtol=1e-4, atol=1e-4)
    compare(lambda x: F.adaptive_avg_pool2d(x.to(memory_format=last), size), x)
compare(lambda x: x.mean((2, 3)), x)
""",
    "copies": """
x = torch.randn(5, 6, 7)
edges = torch.tensor([float("nan"), -0.0, float("inf"), -1.0])
for numbers in (x, edges, torch.arange(-3, 4)):
    compare(lambda x: x.clamp_min(0), numbers)
    compare(lambda x: x.clamp_max(1), numbers)
compare(lambda x: (x > 0) & (x < 1), x)
compare(lambda x: x & 6, torch.arange(9), falls_back=True)
compare(lambda x: x.transpose(0, 2).contiguous(), x)
compare(lambda x: x.new_empty(7, 6, 5).copy_(x.permute(2, 1, 0)), x)
compare(lambda x: x[:, ::2].half().transpose(0, 1).contiguous(), x)
compare(lambda x: x.t().contiguous(), torch.arange(20).reshape(4, 5))
compare(lambda x: (x > 0).transpose(0, 1).contiguous(), x)
compare(lambda x: x.expand(3, 5, 6, 7).clone(), x)
def into_a_part(x):
    made = torch.zeros(5, 12, 7, device=x.device)
    made[:, ::2] = x
    return made
compare(into_a_part, x)
numbers = torch.tensor([[-2.75, 0.0, 0.3], [1.5, 100.2, -0.6]])
pairs = '''float32 float16  float16 float32  float32 bfloat16  bfloat16 float32  float16 bfloat16
    float32 int64  int64 float32  float32 bool  bool float32  float32 uint8  float32 float64
    float64 float32  int64 int32  int64 bool'''.split()
for given, wanted in zip(pairs[::2], pairs[1::2], strict=True):
    given, wanted = getattr(torch, given), getattr(torch, wanted)
    compare(lambda x: x.to(wanted), numbers.to(given), rtol=0, atol=0)
    compare(lambda x: x.t()[::2].to(wanted), numbers.to(given), rtol=0, atol=0)
compare(lambda x: x.to(torch.bfloat16), torch.tensor([float("nan"), float("-inf"), 1e39]))
compare(lambda x: x.new_zeros(4, 3, dtype=torch.int64).copy_(x[0]), numbers)
compare(lambda x: x.new_zeros(6, 3, dtype=torch.half)[::3].copy_(x), numbers)
compare(lambda x: (x == 0.3).sum() * 9 + (x < 100.2).sum(), numbers.half(), rtol=0, atol=0)
compare(lambda x: torch.add(x, x, out=x.new_empty(6, dtype=torch.half)), torch.arange(6))
""",
}


@pytest.mark.parametrize("case", CASES)
def test_the_results_are_those_of_the_cpu(library: Path, case: str) -> None:
    begin = f"ROOT = {str(ROOT / 'drivers/opencl/src')!r}\n{LOADED}"
    program = f"{begin}\ntorch.manual_seed(0)\n{CASES[case]}\nprint('done')"
    said = output_of(program, str(library), BRINGUP_OPENCL_MEMORY="coarse")
    assert said.splitlines()[-1] == "done"
