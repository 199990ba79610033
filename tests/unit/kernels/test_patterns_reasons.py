"""Every pass of the library says why it left a graph alone, in words that `explain` prints."""

import re

import pytest
import torch
from tests.unit.passes.support import empty_registry
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from bringup import compiler, passes
from bringup.cli.explain.run import Explanation
from bringup.cli.explain.show import show_explanation
from bringup.kernels.patterns import LIBRARY, register_patterns

__all__ = ["empty_registry"]

X = torch.randn(1, 2, 8, 8)


def explained(function, *examples, dynamic=False):
    """What the library did to a function, by class name."""
    register_patterns()
    mode = "symbolic" if dynamic else "fake"
    module = make_fx(function, tracing_mode=mode)(*examples)
    report = compiler.apply_passes(module)
    torch.testing.assert_close(module(*examples), function(*examples))
    return {name.removeprefix("Library"): report[name] for name in report.matches}


def attention(q, k, v, mask=None):
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def causal(x):
    mask = torch.full((x.shape[2], x.shape[2]), -torch.inf).triu(1)[None, None]
    return attention(x, x, x, mask)


def shown(result):
    (text,) = result.near_misses or [result.message]
    return str(text)


@pytest.mark.parametrize("item", LIBRARY, ids=lambda item: item.__name__)
def test_pass_that_finds_nothing_says_why_and_explain_prints_it(item, capsys):
    from rich.console import Console

    result = explained(torch.neg, X)[item.__name__]
    assert (result.matches, result.edits) == (0, 0)
    report = passes.PassReport(result.graph, [result])
    show_explanation(Console(width=400), Explanation("model", [report]), every=True)
    printed = capsys.readouterr().out.splitlines()
    lines = [line for line in printed if line.startswith("  Library")]
    assert lines
    reason = re.compile(
        "the graph has no (aten|bringup)::|every tensor depends on an input|no operator is called"
    )
    assert all(map(reason.search, lines)), lines


@pytest.mark.parametrize(
    ("name", "function", "words"),
    [
        (
            "DropCopies",
            lambda x: x.view(128) + 1,
            r"it makes float32\[128\].* of float32\[1, 2, 8, 8\]",
        ),
        ("DropCopies", lambda x: x.clone() + 1, "it copies an input of the graph"),
        ("DropCopies", lambda x: (x + 1).clone(), "a result of the graph shares its memory"),
        ("FoldFactories", lambda x: (x, torch.zeros(3)), "a result of the graph shares its memory"),
        ("FoldFactories", lambda x: x + torch.rand(8) * 0, "aten::rand is random or has effects"),
        (
            "FoldFactories",
            lambda x: x + torch.zeros(2049, 2048).sum(),
            "has more than 4194304 elem",
        ),
        ("GroupedHeads", lambda x: attention(x, x, x), "the key heads are not repeated"),
        (
            "GroupedHeads",
            lambda x: (
                attention(*3 * [x[:, :, None].expand(1, 2, 3, 8, 8).reshape(1, 6, 8, 8)])
                + attention(*3 * [x[:, None].expand(1, 3, 2, 8, 8).reshape(1, 6, 8, 8)])
            ),
            "what is repeated of the key is not its heads",
        ),
        ("CausalMask", lambda x: attention(x, x, x), "the attention has no mask"),
        ("CausalMask", lambda x: attention(x, x, x, x), "the mask depends on an input"),
        (
            "CausalMask",
            lambda x: attention(x, x, x, torch.zeros(1, 2, 8, 8)),
            "the mask is not the causal one",
        ),
        ("MergeProjections", lambda x: x[0, 0] @ x[0, 1], "the weight is no constant"),
        (
            "MergeProjections",
            lambda x: x[0, 0] @ torch.ones(8, 8),
            "no other aten::mm reads its in",
        ),
        (
            "MergeProjections",
            lambda x: torch.addmm(torch.ones(8), x[0, 0], torch.ones(8, 8), beta=2),
            "the bias or the product is scaled",
        ),
        (
            "MergeProjections",
            lambda x: torch.addmm(torch.ones(8, 8), x[0, 0], torch.ones(8, 8)),
            "the bias is not one number per column",
        ),
        (
            "MergeProjections",
            lambda x: torch.addmm(x[0, 0, 0], x[0, 0], torch.ones(8, 8)),
            "the bias is no constant",
        ),
        ("PackLinear", lambda x: x[0, 0] @ x[0, 1], "the weight is no constant"),
        (
            "PackLinear",
            lambda x: torch.addmm(torch.ones(8), x[0, 0], torch.ones(8, 8), beta=2),
            "the bias or the product is scaled",
        ),
        (
            "PackLinear",
            lambda x: torch.addmm(torch.ones(1), x[0, 0], torch.ones(8, 8)),
            "the bias is broadcast",
        ),
        (
            "PackLinear",
            lambda x: (x[0, 0].half() @ torch.ones(8, 8).half()).float(),
            "float16 is not float32 or float64",
        ),
    ],
)
def test_near_miss_says_what_is_in_the_way(name, function, words):
    result = explained(function, X)[name]
    assert result.refused >= 1
    assert re.search(words, shown(result)), shown(result)


@pytest.mark.parametrize("name", ["FoldFactories", "CausalMask"])
def test_masks_of_sizes_that_only_the_run_tells_stay_in_the_graph(name):
    """The one thing that static sizes have: numbers to compute and to compare before the run."""
    assert explained(causal, X)[name].matches == 1
    passes.clear_registered_passes()
    result = explained(causal, X, dynamic=True)[name]
    assert result.matches == 0
    assert "sizes known only at run time" in shown(result)


def test_gelu_of_a_number_that_only_the_run_tells_stays_written_out():
    """A float that a dynamic graph is given: nobody knows yet whether it is the formula's."""

    def gelu(x, root):
        return 0.5 * x * (1 + torch.erf(x / root))

    result = explained(gelu, X, torch.tensor(2.0).sqrt())["ErfGelu"]
    assert (result.matches, result.refused) == (0, 1)
    assert "root is a number known only at run time" in str(result.near_misses[0])


def test_heads_repeated_a_number_of_times_that_only_the_run_tells_stay_so():
    def grouped(x, y):
        heads = x[:, :, None].expand(1, 2, y.shape[0], 8, 8).reshape(1, 2 * y.shape[0], 8, 8)
        return attention(heads, heads, heads)

    result = explained(grouped, X, torch.randn(3), dynamic=True)["GroupedHeads"]
    assert (result.matches, result.refused) == (0, 1)
    assert "the key heads are repeated by a size known only at run time" in shown(result)
