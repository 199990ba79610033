"""`CapturedGraph.run`: inputs are copied in, the graph replays, results are copied out, as one unit
that is safe from any thread. What it takes and gives is declared, or is that of the one module
call of the captured block; otherwise it refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils import _pytree

from bringup._native import torch_library
from bringup.errors import CaptureError, ContractError
from bringup.graphs._copies import ResultNest, has_memory, storage_address
from bringup.graphs._equality import value_text
from bringup.graphs._inputs import Inputs, inputs_of, is_foreign
from bringup.graphs._scope import ModuleCall, OutermostCalls

_HOW = (
    "Declare them: `with graphs.capture(g, inputs=(x,)): g.outputs = model(x)`, then `y = g.run(x)`"
)


def _without_memory(call: ModuleCall) -> str | None:
    """Return why the call's tensors cannot be copied in or out, if they cannot."""
    for tensor in _pytree.tree_leaves((call.args, call.kwargs, call.result)):
        if isinstance(tensor, torch.Tensor) and not has_memory(tensor):
            return (
                f"{type(call.module).__name__} took or gave a tensor that has no memory of its own"
                " (sparse, or under vmap)"
            )
    return None


class RunUnit:
    """What run takes and gives for one capture, and the locks of its runs. `inputs`: as declared,
    or None to take those of the block's only module call.
    """

    def __init__(self, inputs: Inputs | None) -> None:
        self._inputs = inputs
        self._outputs: ResultNest | None = None
        self._declared_outputs = False
        self._obstacle = "the capture is not over"
        self._run_locks: Any | None = None  # until outputs are known
        self.values_read = 0  # by captured calls, of inputs on the host

    def declare_outputs(self, outputs: Any, native: Any | None) -> None:
        """Declare what run gives: a nest of the capture's tensors, whose `native` graph may be
        there. Raises `CaptureError` for what cannot be copied, or is not of the graph.
        """
        nest = ResultNest(outputs)
        if nest.obstacle is not None:
            raise CaptureError(f"outputs: run cannot copy {nest.obstacle}. Give its tensors")
        if not nest.tensors:
            raise CaptureError("outputs: there is no tensor in it")
        if native is not None:  # else at the end of the capture
            _check_known(nest, native, self._inputs)
            nest.settle()
            if self._inputs is not None:
                self._obstacle = ""
        self._outputs, self._declared_outputs = nest, True
        self._run_locks = _run_locks_of(self._inputs, nest)

    def settle(self, native: Any, calls: OutermostCalls) -> None:
        """Check at the end of the capture what was declared, and infer the rest. Raises
        `CaptureError`.
        """
        if self._outputs is not None:
            _check_known(self._outputs, native, self._inputs)
        if self._inputs is not None:
            self._inputs.check_known(native, self._outputs.tensors if self._outputs else ())
        self._obstacle = ""
        call = calls.only()
        try:
            self._infer(call)
        except Exception as error:  # of the user's classes: a field, a pytree node, a signature
            self._obstacle = f"looking at the captured call raised {type(error).__name__}: {error}"
        if self._inputs is not None:
            self._inputs.settle(native)
            native.set_run_inputs([one for one in self._inputs.tensors.values() if has_memory(one)])
        if self._outputs is not None and self._outputs.obstacle is None:
            self._outputs.settle()
        self._run_locks = _run_locks_of(self._inputs, self._outputs)

    def _infer(self, call: ModuleCall | str) -> None:
        if not isinstance(call, str):
            call = _without_memory(call) or call
        if isinstance(call, str):
            if not self._declared_outputs or self._inputs is None:
                self._obstacle = call
        elif not self._declared_outputs:
            self._outputs = ResultNest(call.result)
            if self._outputs.obstacle is not None:
                self._obstacle = f"the result of the captured call has {self._outputs.obstacle}"
            elif not self._outputs.tensors:
                self._obstacle = "the captured call gave no tensor"
        if self._inputs is None and not isinstance(call, str):
            self._inputs = inputs_of(call)

    def watch_inputs(self, watch: Any) -> None:
        """Refuse replays when an input has other memory: the graph may read it by a view."""
        tensors = {} if self._inputs is None else self._inputs.tensors
        for name, tensor in tensors.items():
            if storage_address(tensor) != 0:
                watch.add_slot(tensors, name, f"the input '{name}' ({value_text(tensor)})")

    def described(self, written: Callable[[Any], Any]) -> tuple[dict[str, Any], Any]:
        """Return for a file what run takes and gives; `written` writes values. Raises
        `CaptureError` for what it cannot write.
        """
        inputs, outputs = self.inputs, self.outputs
        try:
            values = written(dict(inputs.values))
            row = {**asdict(inputs.form), "values": values, "kept": inputs.kept}
            return row, written(outputs.filled(outputs.tensors))
        except TypeError as error:
            raise CaptureError(
                f"save: what run takes or gives has {error}, which a file cannot hold. {_HOW}"
            ) from None

    @classmethod
    def of_file(cls, inputs: Inputs, outputs: Any, native: Any) -> RunUnit:
        """Return what `described` was asked of, for its graph in this process."""
        unit = cls(inputs)
        unit._outputs, unit._obstacle = ResultNest(outputs), ""
        unit._outputs.settle()
        native.set_run_inputs([one for one in inputs.tensors.values() if has_memory(one)])
        unit._run_locks = _run_locks_of(inputs, unit._outputs)
        return unit

    @property
    def inputs(self) -> Inputs:
        """Raise CaptureError when they are not known."""
        if self._inputs is None:
            self._refuse()
        assert self._inputs is not None
        return self._inputs

    @property
    def outputs(self) -> ResultNest:
        """Raise CaptureError when they are not known."""
        if self._outputs is None or self._obstacle:
            self._refuse()
        assert self._outputs is not None
        return self._outputs

    def note_read(self, tensors: Sequence[torch.Tensor]) -> None:
        """Note of which inputs captured calls took the values: tensors with their memory."""
        inputs = () if self._inputs is None else self._inputs.tensors.values()
        places = {storage_address(one) for one in inputs if has_memory(one)}
        self.values_read = sum(storage_address(one) in places for one in tensors)

    def run(
        self,
        native: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        update: Callable[[], object] | None,
    ) -> Any:
        """Return one call: see `CapturedGraph.run`."""
        if self.values_read:
            raise CaptureError(
                "CapturedGraph.run: a captured call took the values of an input that is a tensor of"
                " the host, and a replay would not take those of another one: update() them by"
                " their slot, and capture with `inputs` that do not have it"
            )
        outputs = self.outputs
        targets, sources = self.inputs.match(args, kwargs)
        if forward_ad._current_level >= 0:
            _refuse_tangents(sources)
        if torch_library("a captured graph").graphs.is_recording():
            return outputs.filled(_captured_run(native, targets, sources, outputs.tensors, update))
        copies = native.run(self._run_locks, targets, sources, outputs.tensors, update)
        return outputs.filled(copies)

    def _refuse(self) -> None:
        raise CaptureError(
            "CapturedGraph.run cannot tell this graph's inputs and results:"
            f" {self._obstacle or 'they were not declared'}. {_HOW}"
        )


def _captured_run(
    native: Any,
    targets: Sequence[torch.Tensor],
    sources: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    update: Callable[[], object] | None,
) -> list[torch.Tensor]:
    """Let a capture record copies, a replay and copies."""
    if update is not None:
        raise CaptureError(
            "CapturedGraph.run(slots=...) in a capture: a replay would not write them again. Call"
            " update() before the capture, and between replays"
        )
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)
    native.replay()
    return [result.clone() for result in results]


def _run_locks_of(inputs: Inputs | None, outputs: ResultNest | None) -> Any:
    tensors = [
        *(() if inputs is None else inputs.tensors.values()),
        *(() if outputs is None else outputs.tensors),
    ]
    known = [tensor for tensor in tensors if has_memory(tensor)]
    return torch_library("a captured graph").graphs.RunLocks(known)


def _refuse_tangents(tensors: Sequence[torch.Tensor]) -> None:
    for tensor in tensors:
        if forward_ad.unpack_dual(tensor).tangent is not None:
            raise ContractError(
                f"CapturedGraph.run: an input ({value_text(tensor)}) has a tangent (forward-mode"
                " automatic differentiation), and a captured graph gives results without one"
            )


def _check_known(nest: ResultNest, native: Any, inputs: Inputs | None) -> None:
    given = [] if inputs is None else list(inputs.tensors.values())
    for tensor in nest.tensors:
        if is_foreign(tensor, native, given):  # an input may be passed through
            raise CaptureError(
                f"outputs: {value_text(tensor)} is no tensor that the graph reads or writes. Give"
                " the tensors that the captured block made"
            )
