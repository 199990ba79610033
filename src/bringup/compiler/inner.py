"""What runs a rewritten ATen graph: its operators one by one, or code that Inductor generates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch._functorch.aot_autograd import make_boxed_func
from torch._guards import detect_fake_mode
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.proxy_tensor import make_fx

__all__ = ["INNER_COMPILERS", "BoxedFunction"]

BoxedFunction = Callable[[list[Any]], Any]
"""Takes its arguments as one list, which it may empty."""


def _eager(aten: Any, inputs: Sequence[Any]) -> Any:
    # a lazily compiled module would go through Module.__call__ at every call
    _LazyGraphModule.force_recompile(aten)
    return make_boxed_func(aten.forward)


def _inductor(aten: Any, inputs: Sequence[Any]) -> Any:
    """Passes see ATen as AOT autograd writes it; Inductor needs its decompositions: trace again."""
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table

    mode = detect_fake_mode(inputs)
    with patch.object(mode, "allow_non_fake_inputs", True), mode, torch.no_grad():
        decomposed = make_fx(aten, decomposition_table=select_decomp_table())(*inputs)
        return compile_fx_inner(decomposed, inputs)


INNER_COMPILERS: dict[str, Callable[[Any, Sequence[Any]], Any]] = {
    "eager": _eager,
    "inductor": _inductor,
}
