"""The operators of drivers/opencl against the CPU's, without a fallback on coarse memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.forked_python import output_of
from tests.opencl.conftest import ROOT
from tests.opencl.operators_program import LOADED

CASES = {
    "products": """
a, b = torch.randn(37, 50), torch.randn(50, 33)
compare(torch.mm, a, b)
compare(lambda a, b: a.t() @ b.t(), torch.randn(50, 37), torch.randn(33, 50))
compare(lambda a, b: torch.mm(a[1:, ::2], b[:25]), a, b)
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
        compare(lambda x: gradient(function(x.requires_grad_(), dim), x), x)
compare(lambda x: torch.softmax(x, 0), torch.tensor(3.0))
infinite = torch.tensor([[1.0, float("inf")], [float("nan"), 1.0]])
compare(lambda x: torch.softmax(x, -1), infinite)
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
compare(lambda x: F.layer_norm(x.transpose(0, 1), (5, 130)), x)
def gradients(x, w, b):
    wanted = [x.requires_grad_(), w.requires_grad_(), b.requires_grad_()]
    return torch.autograd.grad(F.layer_norm(x, (130,), w, b).square().sum(), wanted)
compare(gradients, x, weight, bias, rtol=1e-4, atol=1e-4)
""",
    "reductions": """
x = torch.randn(4, 65, 9)
for function in (torch.sum, torch.mean, torch.amax, torch.amin):
    for dim in (0, 1, -1, (0, 2), (0, 1, 2)):
        compare(lambda x: function(x, dim), x)
        compare(lambda x: function(x.transpose(0, 2), dim, keepdim=True), x)
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
a, b, c = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.empty(2, 0, 4)
compare(lambda *all: torch.cat(all, 1), a, b, c)
compare(lambda a, b: torch.cat((a.transpose(0, 1), b.transpose(0, 1))), a, b)
compare(lambda a: torch.cat((a[:1], a[1:, :, :])), a)
compare(lambda a: torch.stack((a[0, 0, 0], a[1, 1, 1])), a)
compare(lambda a: torch.cat([a] * 31), a, falls_back=True)
compare(lambda a: torch.cat((a > 0, a > 1)), a)
compare(lambda a: torch.tril(a, 1), a)
compare(lambda a: torch.triu(a.transpose(1, 2), -1), a)
compare(lambda a: torch.arange(3, 30, 4, device=a.device), a)
scores, targets = torch.randn(6, 5), torch.tensor([0, 4, 2, -100, 1, 1])
weight = torch.rand(5)
for reduction in ("mean", "sum", "none"):
    def loss(x, t, w):
        made = F.cross_entropy(x.requires_grad_(), t, w, reduction=reduction)
        return (made, *torch.autograd.grad(made.sum(), x))
    compare(loss, scores, targets, weight)
    compare(loss, torch.randn(2, 5, 3, 4), torch.randint(5, (2, 3, 4)), weight)
""",
    "copies": """
x = torch.randn(5, 6, 7)
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
compare(lambda x: x[:, ::2].to(torch.float64), x)  # through the host
""",
}


@pytest.mark.parametrize("case", CASES)
def test_the_results_are_those_of_the_cpu(library: Path, case: str) -> None:
    begin = f"ROOT = {str(ROOT / 'drivers/opencl/src')!r}\n{LOADED}"
    program = f"{begin}\ntorch.manual_seed(0)\n{CASES[case]}\nprint('done')"
    said = output_of(program, str(library), BRINGUP_OPENCL_MEMORY="coarse")
    assert said.splitlines()[-1] == "done"
