"""One inference graph: weights frozen, rewritten, compiled, captured; again when weights change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bringup import settings
from bringup.compiler.buckets import padded_calls
from bringup.compiler.dynamo import root_named
from bringup.compiler.freeze import (
    Built,
    Weight,
    constants_of,
    drop_unused_constants,
    freeze_weights,
    written_inputs,
)
from bringup.compiler.graph_modules import copied
from bringup.compiler.in_place_inputs import unwrap_writes, write_inputs_in_place
from bringup.compiler.inner_compiler import BoxedFunction, computes
from bringup.compiler.native_program import run_eagerly
from bringup.compiler.options import CompileOptions
from bringup.compiler.padding_proof import LengthInput, NotPaddedError, length_input
from bringup.compiler.served_models import FrozenModels
from bringup.errors import CaptureError

_LOG = settings.logger("compiler")
_MOST_CHANGES = 2
"""How often the new content of one weight is folded, where freezing was not asked for."""

Rewrite = Callable[[Any, frozenset[str]], BoxedFunction | None]
"""Runs the passes over a graph in place, given the names of its constants; returns what runs it, or
None for its operators one by one.
"""


class InferenceGraph:
    """An ATen graph without gradients; `weights` are inputs, `rewrite` runs the passes."""

    def __init__(
        self,
        aten: Any,
        inputs: Sequence[Any],
        weights: Sequence[Weight],
        options: CompileOptions,
        name: str,
        rewrite: Rewrite,
    ) -> None:
        self._original = copied(aten)
        self._inputs = inputs
        self._static = frozenset(weight.index for weight in weights)
        self._options = options
        self._name = name
        self._rewrite = rewrite
        self._written = written_inputs()

    def compile(self, to_freeze: Sequence[Weight]) -> BoxedFunction:
        """Return what runs it. Weights that it writes are not frozen, whatever `to_freeze` says."""
        frozen = [weight for weight in to_freeze if weight.index not in self._written]
        if not frozen:
            return self.build(()).run
        options = self._options
        models = FrozenModels(
            self._name,
            frozen,
            self._build_narrowed,
            self.build if options.refolds else None,
            None if options.freeze else _MOST_CHANGES,
        )
        if options.weight_dtype == "float32":  # else the first call's results say what may be less
            models.add(self.build(frozen), _roots_of(frozen))

        def run_frozen(arguments: list[Any]) -> Any:
            return models.run(arguments)

        run_frozen._boxed_call = True  # type: ignore[attr-defined]
        return run_frozen

    def _build_narrowed(self, to_freeze: Sequence[Weight], arguments: list[Any]) -> Built:
        """Pack weights in fewer bits where the results of this call allow it."""
        if self._options.weight_dtype == "float32":
            return self.build(to_freeze)
        return self.build(to_freeze, self._layers_to_narrow(to_freeze, arguments))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _layers_to_narrow(
        self, to_freeze: Sequence[Weight], arguments: Sequence[Any]
    ) -> Sequence[int]:
        from bringup.compiler.weight_gate import choose_layers

        graph, _ = self._rewritten(to_freeze)
        result = choose_layers(graph, arguments, self._options.weight_dtype)
        if result.count:
            _LOG.warning("%s: %s", self._name, result.text(self._options.weight_dtype))
        return result.layers

    def _rewritten(self, to_freeze: Sequence[Weight]) -> tuple[Any, BoxedFunction | None]:
        """Return the graph with constant weights after the passes, and the runner they choose."""
        graph = copied(self._original)
        return graph, self._rewrite(graph, freeze_weights(graph, to_freeze))

    def build(self, to_freeze: Sequence[Weight], narrow_layers: Sequence[int] = ()) -> Built:
        """Return the graph with these weights folded in, packed in float32 unless named."""
        graph, run = self._rewritten(to_freeze)
        if run is None:
            if narrow_layers:
                from bringup.compiler.weight_gate import narrow

                narrow(graph, narrow_layers, self._options.weight_dtype)
            drop_unused_constants(graph)
            # a captured graph has copies of inputs that have no fixed place
            writable = self._static if self._options.captures else range(len(self._inputs))
            if count := write_inputs_in_place(graph, writable):
                _LOG.info("%s writes %d of its inputs where they lie", self._name, count)
            unwrap_writes(graph)
            run = run_eagerly(graph, self._inputs)
        if self._options.captures and computes(graph):
            run = self._captured(graph, run)
        return Built(run, to_freeze, constants_of(graph))

    def _captured(self, graph: Any, run: BoxedFunction) -> BoxedFunction:
        from bringup.compiler.captured_calls import captured, require_capturable
        from bringup.compiler.update_plan import updates_of

        options = self._options
        try:
            require_capturable(graph, self._name, self._static)
        except CaptureError as reason:
            if options.capture:
                raise
            _LOG.warning("%s runs as it is: %s", self._name, reason)
            return run
        length = self._length_input() if options.ladder else None
        if length is not None and len(options.ladder) > options.most_captures:
            _LOG.warning(
                "%s: %d buckets, but option 'max_captures' keeps %d captures: calls of many lengths"
                " will capture again and again",
                *(self._name, len(options.ladder), options.most_captures),
            )
        replayed = captured(
            run,
            self._name,
            self._static,
            options.most_captures,
            is_required=bool(options.capture),
            static_outputs=options.static_outputs,
            shared_memory=options.shared_memory,
            updates=updates_of(graph, options.split_at) if options.inner == "eager" else None,
            split_at=options.split_at,
            tells_unmet=True,
        )
        if length is None:
            return replayed
        return padded_calls(replayed, run, length, options.ladder, self._name)

    def _length_input(self) -> LengthInput | None:
        """Return the length to pad to buckets; None if it must not be, with the reason logged."""
        try:
            found = length_input(self._original)
            if written := self._static.intersection(found.padded):
                raise NotPaddedError(f"weights {sorted(written)} have the length")
        except NotPaddedError as reason:
            _LOG.warning("%s is not padded to buckets: %s", self._name, reason)
            return None
        return found


def _roots_of(weights: Sequence[Weight]) -> tuple[Any, ...] | None:
    """Return the outermost modules with weights while Dynamo compiles; None without weights."""
    names = {weight.root: None for weight in weights}
    return None if None in names else tuple(root_named(str(name)) for name in names)
