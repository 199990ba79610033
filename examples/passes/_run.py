"""Runs the samples on the models they are made for: `python examples/passes/_run.py [sample ...]`.

The passes are found through BRINGUP_PASS_PATH, which is set to the sample's file where the
environment does not name one. Printed are operators before and after, matches, and the greatest
difference of the results, as a part of the largest one.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

FOLDER = Path(__file__).parent


class Branches(nn.Module):
    """Two linear branches that are joined before an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 4), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(torch.cat([self.left(x), self.right(x), x], -1)) * 2


class ChannelsLast(nn.Module):
    """Two convolutions of a model that keeps its data as [N, H, W, C]."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        x = self.second(torch.relu(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return torch.sigmoid(x)


class BiasBehind(nn.Module):
    """A linear layer whose bias is added by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.bias = nn.Linear(8, 4, bias=False), nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.bias + self.layer(x)


class IdentityLayer(nn.Module):
    """One layer with an identity as its weight, and one that is like it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.other = nn.Parameter(torch.eye(2)), nn.Parameter(2 * torch.eye(2))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight + x) * (x @ self.other + x)


class Zeros(nn.Module):
    """A network with additions of a zero number, of a zero tensor, and of something else."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.zero, self.other = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x) + 0.0
        return torch.relu(torch.tanh(x + self.zero) + 1e-9) + self.other


class CustomAdds(nn.Module):
    """Chains of a user's own addition."""

    def __init__(self) -> None:
        super().__init__()
        self.zero, self.bias = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        add = torch.ops.samples.add_custom
        x = torch.tanh(add(add(x, self.zero), self.bias))
        return add(add(x, self.zero).clone(), self.bias)


class Experts(nn.Module):
    """Experts over one input, and a tower of its own for each."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 6, bias=False) for _ in range(3))
        self.towers = nn.ModuleList(nn.Linear(6, 2, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = [torch.relu(expert(x)) for expert in self.experts]
        return torch.cat([tower(h) for tower, h in zip(self.towers, hidden, strict=True)], -1)


class Batches(nn.Module):
    """Batched products: one matrix for all items, a tiled one, and a single column."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.tiled = (
            nn.Parameter(torch.randn(8, 6)),
            nn.Parameter(torch.randn(1, 6, 5)),
        )

    def forward(self, x: Tensor) -> Tensor:
        items = x.shape[0]
        x = torch.bmm(x, self.shared.expand(items, -1, -1))
        x = torch.bmm(x, self.tiled.repeat(items, 1, 1))
        return torch.bmm(x, x[:, :1].transpose(1, 2))


@dataclass(frozen=True)
class Sample:
    """A model, its input, and whether the pass needs weights as constants."""

    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    freeze: bool = False


SAMPLES = {
    "relu_before_concat": Sample(Branches, (5, 8)),
    "conv_layout": Sample(ChannelsLast, (2, 9, 9, 3)),
    "matmul_add_capture": Sample(BiasBehind, (5, 8)),
    "matmul_add_config": Sample(IdentityLayer, (5, 2), freeze=True),
    "add_zero": Sample(Zeros, (5, 8), freeze=True),
    "custom_op": Sample(CustomAdds, (5, 8), freeze=True),
    "grouped_conv": Sample(lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), (2, 4, 7, 7)),
    "batch_matmul": Sample(Batches, (3, 4, 8)),
    "shared_matmul": Sample(Experts, (5, 8)),
}


def layers_in_a_branch() -> Any:
    """An ONNX model: a linear layer with a transposed weight, and one in a branch."""
    from onnx import parser

    return parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 17]>
        model (float[N, 4] x, bool deep, float[3, 4] w, float[3] b, float[3, 3] v)
            => (float[N, 3] y)
        {
            turned = Transpose<perm = [1, 0]>(w)
            product = MatMul(x, turned)
            hidden = Add(b, product)
            y = If(deep) <
                then_branch = again () => (float[N, 3] twice)
                    { inner = MatMul(hidden, v)  twice = Add(inner, b) },
                else_branch = once () => (float[N, 3] same) { same = Relu(hidden) }
            >
        }""")


ONNX_SAMPLES = {"onnx_gemm": layers_in_a_branch}


class Operators(TorchDispatchMode):
    """Counts the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Outcome:
    """What a sample did."""

    matches: dict[str, int]
    before: Counter[str]
    after: Counter[str]
    error: float


def run_onnx(name: str) -> Outcome:
    """Rewrite a sample's ONNX model with the passes of the pass path, and compare the results."""
    import numpy as np

    from bringup import compiler

    proto = ONNX_SAMPLES[name]()
    model = compiler.onnx.from_proto(proto)
    report = compiler.apply_passes(model, options={"verify": True})
    after = model.to_proto()
    errors = []
    for deep in (True, False):
        feeds = {"deep": np.array(deep)}
        pairs = zip(compiler.onnx.run(proto, feeds), compiler.onnx.run(after, feeds), strict=True)
        errors += [float(np.abs(one - other).max()) for one, other in pairs]
    counts = [count_onnx(item.graph) for item in (proto, after)]
    return Outcome(report.matches, *counts, max(errors))


def count_onnx(graph: Any) -> Counter[str]:
    """The operators of an ONNX graph and of those that its nodes call."""
    found = Counter(node.op_type for node in graph.node)
    for node in graph.node:
        for attribute in node.attribute:
            found += count_onnx(attribute.g)
    return found


@torch.no_grad()
def run(name: str) -> Outcome:
    """Compile a sample's model without and with the passes of the pass path, and compare."""
    from bringup import compiler

    if name in ONNX_SAMPLES:
        return run_onnx(name)
    torch.manual_seed(0)
    compiler.apply_passes(torch.fx.symbolic_trace(nn.Identity()))  # load the plugins
    sample = SAMPLES[name]
    model, x = sample.model().eval(), torch.randn(sample.shape)
    expected = model(x)
    counts = []
    for chosen in ([], None):
        torch._dynamo.reset()
        compiled = torch.compile(
            model, backend="bringup", options={"freeze": sample.freeze, "passes": chosen}
        )
        compiled(x)
        with Operators() as operators:
            result = compiled(x)
        counts.append(operators.seen)
    report = compiler.last_report()
    largest = max(1.0, expected.abs().max().item())  # a product in other tiles rounds otherwise
    return Outcome(report.matches, *counts, (result - expected).abs().max().item() / largest)


def main() -> None:
    """Run the samples named on the command line, or all of them."""
    for name in sys.argv[1:] or [*SAMPLES, *ONNX_SAMPLES]:
        os.environ.setdefault("BRINGUP_PASS_PATH", str(FOLDER))
        os.environ.setdefault("BRINGUP_PASS_LIBRARY", "0")  # the samples alone
        outcome = run(name)
        changes = {
            op: f"{outcome.before[op]} -> {outcome.after[op]}"
            for op in sorted(outcome.before | outcome.after)
            if outcome.before[op] != outcome.after[op]
        }
        matches = {key: count for key, count in outcome.matches.items() if count}
        print(f"{name}: {matches}, error {outcome.error:.1e}")
        for op, change in changes.items():
            print(f"    {op}: {change}")


if __name__ == "__main__":
    main()
