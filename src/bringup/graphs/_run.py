"""`CapturedGraph.run`: inputs are copied in, the graph replays, results are copied out, as one unit
that is safe from any thread.

What run takes and gives is declared, or it is what the one module call of the captured block took
and gave. Where neither holds, run says so: it never guesses.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree

from bringup.errors import CaptureError, ContractError
from bringup.graphs._copies import ResultNest, copied, fill, shares_memory

__all__ = ["Inputs", "ModuleCall", "OutermostCalls", "RunUnit", "declared_inputs"]

_HOW = (
    "Declare them: `with graphs.capture(g, inputs=(x,)): g.outputs = model(x)`, then `y = g.run(x)`"
)
_DISTURBED = (
    "another thread called replay() while CapturedGraph.run was under way, and may have written the"
    " inputs: use run in every thread"
)


@dataclass(frozen=True)
class ModuleCall:
    """The call of a module that no other module contained, seen in a capture."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    before: int
    after: int


class OutermostCalls:
    """Watches for module calls in a capture that no other module contains.

    Args:
        seen: how many operators the recorder has seen until now.
    """

    def __init__(self, seen: Callable[[], int]) -> None:
        self._seen = seen
        self._before = 0
        self._count = 0
        self._call: ModuleCall | None = None

    def begin(self) -> None:
        """One begins."""
        self._count += 1
        self._call = None  # of several none is kept: its results would keep their memory
        self._before = self._seen()

    def end(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """It is over."""
        if self._count == 1:
            self._call = ModuleCall(module, args, kwargs, result, self._before, self._seen())

    def only(self) -> ModuleCall | str:
        """The call, when it was all that the block did, or why there is no such call."""
        call = self._call
        if self._count == 0:
            return "no module was called in the captured block"
        if self._count > 1 or call is None:
            return f"the captured block called {self._count} modules one after the other"
        name = type(call.module).__name__
        if call.before > 0 or call.after < self._seen():
            return f"the captured block ran operators outside the call of {name}"
        if call.module._forward_hooks or call.module._forward_pre_hooks:
            return f"{name} has forward hooks, which may change what it takes and gives"
        return call


class Inputs:
    """What run takes: the values of the captured call by name, tensors among them.

    Args:
        bind: turns the arguments of run into values by name; TypeError when they do not fit.
        values: those of the capture.
        fixed: storages (addresses) that run does not write: weights.
    """

    def __init__(
        self,
        bind: Callable[[tuple[Any, ...], dict[str, Any]], Mapping[str, Any]],
        values: Mapping[str, Any],
        fixed: frozenset[int] = frozenset(),
    ) -> None:
        self._bind = bind
        self._captured = _leaves(values)
        self.tensors = {
            name: leaf for name, leaf in self._captured.items() if isinstance(leaf, torch.Tensor)
        }
        self._kept: dict[str, str] = {}  # inputs that must be the captured tensor, and why
        for name, tensor in self.tensors.items():
            if isinstance(tensor, torch.nn.Parameter) or _address(tensor) in fixed:
                self._kept[name] = "is a weight"
            elif any(shares_memory(tensor, t) for n, t in self.tensors.items() if n != name):
                self._kept[name] = "shares memory with another input"

    def settle(self, native: Any) -> None:
        """After the capture: which tensors the graph itself made or writes."""
        for name, tensor in self.tensors.items():
            if native.owns(tensor):
                self._kept[name] = "was made inside the capture"
            elif native.writes(tensor):
                self._kept[name] = "is written by the graph"

    def match(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
        """(name, captured tensor, given one) of every tensor that has to be copied."""
        given = _leaves(self._bind(args, kwargs))
        for name in given:
            if name not in self._captured:
                raise TypeError(
                    f"CapturedGraph.run: the captured call was not given '{name}'. {self._form()}"
                )
        pairs = []
        for name, expected in self._captured.items():
            if name in given:
                if self._differs(name, expected, given[name]):
                    pairs.append((name, expected, given[name]))
            elif name in self.tensors:
                raise TypeError(f"CapturedGraph.run: input '{name}' is missing. {self._form()}")
        return pairs

    def _form(self) -> str:
        return f"It takes {', '.join(self._captured) or 'nothing'}, as when it was captured"

    def _differs(self, name: str, expected: Any, value: Any) -> bool:
        """Whether `value` is another tensor than the captured one and may be."""
        if name not in self.tensors:
            if expected is value or (type(expected) is type(value) and _equal(expected, value)):
                return False
            raise ContractError(
                f"CapturedGraph.run: '{name}' was {_words(expected)} when the graph was captured,"
                f" got {_words(value)}: a captured graph keeps it. Capture another graph for it"
            )
        if not isinstance(value, torch.Tensor):
            raise ContractError(
                f"CapturedGraph.run: input '{name}' takes {_words(expected)}, got {_words(value)}"
            )
        if _same_view(expected, value):
            return False
        _check_tensor(name, expected, value)
        if name in self._kept:
            raise ContractError(
                f"CapturedGraph.run: input '{name}' {self._kept[name]}: run can take the captured"
                " tensor only, not another one. Change its content in place"
            )
        return True


def _check_tensor(name: str, expected: torch.Tensor, value: torch.Tensor) -> None:
    for what, wanted, got in (
        ("shape", list(expected.shape), list(value.shape)),
        ("dtype", expected.dtype, value.dtype),
        ("device", expected.device, value.device),
        ("layout", expected.layout, value.layout),
    ):
        if wanted != got:
            raise ContractError(
                f"CapturedGraph.run: input '{name}' has {what} {got}, and the captured one"
                f" {wanted}. Convert it, or capture another graph for it"
            )
    if value.requires_grad and torch.is_grad_enabled():
        raise ContractError(
            f"CapturedGraph.run: input '{name}' requires a gradient, and a captured graph gives"
            " results without one: call run under torch.no_grad(), or detach the input"
        )


def declared_inputs(inputs: Any) -> Inputs:
    """Inputs as `capture(inputs=...)` declares them: one tensor, a sequence (run takes them by
    position) or a mapping (by keyword); nests of tensors are allowed in both.

    Raises:
        TypeError: `inputs` is something else, or holds something that is no tensor.
    """
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if isinstance(inputs, Mapping):
        names, by_keyword = [str(name) for name in inputs], True
        values = dict(zip(names, inputs.values(), strict=True))
    elif isinstance(inputs, Sequence) and not isinstance(inputs, (str, bytes)):
        names, by_keyword = [f"inputs[{i}]" for i in range(len(inputs))], False
        values = dict(zip(names, inputs, strict=True))
    else:
        raise TypeError(
            f"capture(inputs=...) takes a tensor, a sequence or a mapping, got {_words(inputs)}"
        )

    def bind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
        if by_keyword and not args:
            return kwargs
        if not by_keyword and not kwargs and len(args) == len(names):
            return dict(zip(names, args, strict=True))
        form = ", ".join(f"{name}=" for name in names) if by_keyword else f"{len(names)} inputs"
        raise TypeError(
            f"CapturedGraph.run: takes {form}, as declared, got {len(args)} by position"
            f" and {list(kwargs)} by keyword"
        )

    for name, leaf in _leaves(values).items():
        if not isinstance(leaf, torch.Tensor) or not _has_memory(leaf):
            raise TypeError(f"capture(inputs=...): {name} is no strided tensor, got {_words(leaf)}")
    return Inputs(bind, values)


def _inputs_of(call: ModuleCall) -> Inputs:
    signature = _signature(call.module.forward)

    def bind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
        try:
            return signature.bind_partial(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(
                f"CapturedGraph.run: {error}; run takes what {type(call.module).__name__} was"
                " called with"
            ) from None

    weights = [*call.module.parameters(), *call.module.buffers()]
    return Inputs(bind, bind(call.args, call.kwargs), frozenset(map(_address, weights)))


def _signature(forward: Any) -> inspect.Signature:
    if not isinstance(forward, torch.ScriptMethod):
        return inspect.signature(forward)
    names = [argument.name for argument in forward.schema.arguments[1:]]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(name, kind) for name in names])


def _without_memory(call: ModuleCall) -> str | None:
    """Why the call's tensors cannot be copied in or out, if they cannot."""
    for tensor in _pytree.tree_leaves((call.args, call.kwargs, call.result)):
        if isinstance(tensor, torch.Tensor) and not _has_memory(tensor):
            return (
                f"{type(call.module).__name__} took or gave a tensor that has no memory of its own"
                " (sparse, or under vmap)"
            )
    return None


class RunUnit:
    """What run takes and gives for one capture, and whose turn it is.

    Args:
        inputs: as declared, or None to take those of the block's only module call.
    """

    def __init__(self, inputs: Inputs | None) -> None:
        self._inputs = inputs
        self._outputs: ResultNest | None = None
        self._declared_outputs = False
        self._obstacle = "the capture is not over"
        self._turn = threading.Lock()
        self._owner: int | None = None

    def declare_outputs(self, outputs: Any, native: Any | None) -> None:
        """What run gives: a nest of tensors of the capture. `native`: the graph, once it is there.

        Raises:
            CaptureError: it cannot be copied, or holds a tensor that has nothing to do with the
                graph.
        """
        nest = ResultNest(outputs)
        if nest.obstacle is not None:
            raise CaptureError(f"outputs: run cannot copy {nest.obstacle}. Give its tensors")
        if not nest.tensors():
            raise CaptureError("outputs: there is no tensor in it")
        if native is not None:  # inside the block every tensor was made there or predates it
            _check_known(nest, native)
            if self._inputs is not None:
                self._obstacle = ""
        self._outputs, self._declared_outputs = nest, True

    def settle(self, native: Any, calls: OutermostCalls) -> None:
        """At the end of the capture: infers what was not declared."""
        self._obstacle = ""
        call = calls.only()
        if not isinstance(call, str):
            call = _without_memory(call) or call
        if isinstance(call, str):
            if not self._declared_outputs or self._inputs is None:
                self._obstacle = call
        elif not self._declared_outputs:
            self._outputs = ResultNest(call.result)
            if self._outputs.obstacle is not None:
                self._obstacle = f"the result of the captured call has {self._outputs.obstacle}"
            elif not self._outputs.tensors():
                self._obstacle = "the captured call gave no tensor"
        if self._inputs is None and not isinstance(call, str):
            self._inputs = _inputs_of(call)
        if self._inputs is not None:
            self._inputs.settle(native)

    @property
    def inputs(self) -> Inputs:
        """Raises CaptureError when they are not known."""
        if self._inputs is None:
            self._refuse()
        assert self._inputs is not None
        return self._inputs

    @property
    def outputs(self) -> ResultNest:
        """Raises CaptureError when they are not known."""
        if self._outputs is None or self._obstacle:
            self._refuse()
        assert self._outputs is not None
        return self._outputs

    def run(
        self,
        native: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        update: Callable[[], object] | None,
    ) -> Any:
        """One call: see `CapturedGraph.run`."""
        inputs, outputs = self.inputs, self.outputs
        pairs = inputs.match(args, kwargs)
        with self._my_turn():
            native.begin_run()
            try:
                if update is not None:
                    update()
                _copy_in(pairs, inputs)
                native.replay_in_run()
                results = outputs.copied()
            except BaseException:
                native.end_run()
                raise
            if native.end_run():
                raise CaptureError(_DISTURBED)
        return results

    @contextmanager
    def _my_turn(self) -> Iterator[None]:
        me = threading.get_ident()
        if self._owner == me:
            raise CaptureError(
                "CapturedGraph.run: the graph is in the middle of a run, and cannot"
                " run inside of it"
            )
        with self._turn:
            self._owner = me
            try:
                yield
            finally:
                self._owner = None

    def _refuse(self) -> None:
        raise CaptureError(
            "CapturedGraph.run cannot tell this graph's inputs and results:"
            f" {self._obstacle or 'they were not declared'}. {_HOW}"
        )


def _copy_in(pairs: list[tuple[str, torch.Tensor, torch.Tensor]], inputs: Inputs) -> None:
    # A given tensor may be (part of) a captured one that is written before it is read.
    captured = inputs.tensors.values()
    staged = [
        (name, target, copied(given) if any(shares_memory(given, t) for t in captured) else given)
        for name, target, given in pairs
    ]
    for name, target, given in staged:
        try:
            fill(target, given)
        except ValueError as error:
            raise ContractError(
                f"CapturedGraph.run: the captured input '{name}' cannot be written: {error}."
                " Capture with a contiguous one"
            ) from None


def _check_known(nest: ResultNest, native: Any) -> None:
    for tensor in nest.tensors():
        if tensor.numel() > 0 and not native.knows(tensor):
            raise CaptureError(
                f"outputs: {_words(tensor)} is no tensor that the graph reads or writes. Give the"
                " tensors that the captured block made"
            )


def _leaves(values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        _add_leaves(found, name, value)
    return found


def _add_leaves(found: dict[str, Any], name: str, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        found[name] = value
        return
    paths, _ = _pytree.tree_flatten_with_path(value)
    for path, leaf in paths:
        found[name + _pytree.keystr(path)] = leaf


def _equal(left: Any, right: Any) -> bool:
    plain = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout)
    return isinstance(left, plain) and bool(left == right)


def _same_view(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left is right:
        return True
    return (
        left.device == right.device
        and left.layout == right.layout == torch.strided
        and shares_memory(left, right)
        and left.dtype == right.dtype
        and left.shape == right.shape
        and left.stride() == right.stride()
        and left.storage_offset() == right.storage_offset()
        and left.is_conj() == right.is_conj()
        and left.is_neg() == right.is_neg()
    )


def _has_memory(tensor: torch.Tensor) -> bool:
    try:
        tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return False  # sparse, fake, a functorch wrapper
    return bool(tensor.layout == torch.strided)


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr()) if _has_memory(tensor) else 0


def _words(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}"
    return f"{value!r} ({type(value).__name__})"
