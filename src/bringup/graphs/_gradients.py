"""What a capture takes as given of gradients: `.grad` of every parameter that it can reach, which
the graph brings to where it reads it and leaves as the captured code does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import set_checkpoint_early_stop

from bringup._native import torch_library
from bringup.errors import CaptureError
from bringup.graphs._patched_function import attribute_replaced


@dataclass(frozen=True)
class _Leaf:
    """A parameter, or another tensor that autograd gives a gradient to."""

    tensor: torch.Tensor
    name: str
    before: torch.Tensor | None  # its gradient when it was first seen


class GivenGradients:
    """The gradients of one capture, from its beginning to its end."""

    def __init__(self) -> None:
        self._leaves: dict[int, _Leaf] = {}
        self._backwards: list[tuple[range, set[int]]] = []  # nodes, and what got a gradient
        self._stepped: set[int] = set()

    def see(self, name: str, tensor: torch.Tensor) -> None:
        """Remember at its first time the gradient of a tensor in reach of the captured code."""
        kind = type(tensor)
        if id(tensor) in self._leaves or not issubclass(kind, torch.Tensor):
            return
        with torch._C.DisableTorchFunctionSubclass():
            is_parameter = issubclass(kind, torch.nn.Parameter)
            if tensor.is_leaf and (is_parameter or tensor.requires_grad):
                what = f"{'parameter' if is_parameter else 'tensor'} '{name}'"
                self._leaves[id(tensor)] = _Leaf(tensor, what, tensor.grad)

    def see_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Watch what an optimizer steps in the capture."""
        for number, group in enumerate(optimizer.param_groups):
            of_group = f"of group {number} of {type(optimizer).__name__}"
            names = group.get("param_names", range(len(group["params"])))
            for name, parameter in zip(names, group["params"], strict=True):
                self.see(f"{name} {of_group}", parameter)
                self._stepped.add(id(parameter))

    @contextmanager
    def backwards_seen(self, node_count: Callable[[], int | None]) -> Iterator[None]:
        """See what backwards in the block give gradients to; `node_count`: of the capture."""

        def seen(original: Callable[..., Any]) -> Callable[..., Any]:
            def run(roots: Sequence[Any], *args: Any, **options: Any) -> Any:
                begin = node_count()
                if begin is None or not options.get("accumulate_grad"):
                    return original(roots, *args, **options)
                leaves = [one for one in args[3] if isinstance(one, torch.Tensor)]
                for leaf in leaves or (leaves := leaves_behind(roots)):
                    self.see(f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}", leaf)
                try:
                    return original(roots, *args, **options)
                finally:
                    nodes = range(begin, node_count() or begin)
                    self._backwards.append((nodes, {id(leaf) for leaf in leaves}))

            return run

        with attribute_replaced(torch.autograd, "_engine_run_backward", seen):
            yield

    def hand_to(self, native: Any, watch: Any) -> None:
        """Tell the graph, after the capture, what it has to find and to leave."""
        touched = self._stepped.union(*(of for _, of in self._backwards))
        kinds = torch_library("a captured graph").graphs.Former
        befores = [one.before for one in self._leaves.values() if one.before is not None]
        uses = iter(native.uses(befores))
        for key, leaf in self._leaves.items():
            before, after = leaf.before, leaf.tensor.grad
            first, writes = (None, False) if before is None else next(uses)
            if before is None:
                concerned = after is not None or key in touched
                former = kinds.IS_NONE if concerned else kinds.IGNORES
            elif first is not None or writes:
                added = any(first in nodes and key in of for nodes, of in self._backwards)
                former = kinds.ADDS_TO if added else kinds.NEEDS
                watch.name_tensor(before, f"gradient of {leaf.name}")
            else:
                former = kinds.IGNORES if after is before else kinds.DROPS
            flag = bool(self._backwards) and (key in touched or watch.reads(leaf.tensor))
            if flag or former is not kinds.IGNORES:
                native.add_gradient(leaf.tensor, leaf.name, before, after, former, writes, flag)

    def put_back(self) -> None:
        """Restore the gradients after a capture that failed."""
        for leaf in self._leaves.values():
            if leaf.tensor.grad is not leaf.before:
                leaf.tensor.grad = leaf.before


def leaves_behind(roots: Iterable[Any], since: int = 0) -> list[torch.Tensor]:
    """Return the tensors that a backward from these would give gradients to. Raises `CaptureError`
    where a node is older than number `since`: the code uses a tensor that has a history.
    """
    found: dict[int, torch.Tensor] = {}
    seen: set[Any] = set()
    waiting: list[Any] = []
    for root in roots:
        node = root.grad_fn if isinstance(root, torch.Tensor) else root.node
        if node is not None:
            waiting.append(node)
        elif isinstance(root, torch.Tensor):
            found[id(root)] = root
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found[id(leaf)] = leaf
        elif node._sequence_nr() < since:
            raise CaptureError(
                f"make_graphed_callables: the run uses a tensor that {node.name()} gave before, and"
                " its gradient would go there: give the tensor as an argument, or detach() it"
            )
        waiting.extend(next_node for next_node, _ in node.next_functions if next_node is not None)
    return list(found.values())


_early_stop = threading.Lock()
_without_early_stop = ExitStack()
_captures_without = 0


@contextmanager
def no_early_stop() -> Iterator[None]:
    """Let checkpoints recompute all, a setting of the process, while any capture is under way."""
    global _captures_without
    with _early_stop:
        if _captures_without == 0:
            _without_early_stop.enter_context(set_checkpoint_early_stop(False))
        _captures_without += 1
    try:
        yield
    finally:
        with _early_stop:
            _captures_without -= 1
            if _captures_without == 0:
                _without_early_stop.close()
