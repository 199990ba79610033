"""Where each argument of a backward operator comes from in its forward operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from bringup._language._core import SourceKind
from bringup.errors import SchemaError
from bringup.ops.contract.outputs import BoundOutput
from bringup.ops.schema.operator_facts import find_overload
from bringup.ops.schema.schema import Schema, type_of

__all__ = ["ArgumentSource", "BackwardPlan", "SourceKind", "formula_of", "keep_inputs", "match"]


class ArgumentSource(NamedTuple):
    """Where one argument of the backward operator comes from."""

    kind: SourceKind  # what it is
    # Of a result (GRAD), an output or an input. Results are the written arguments, then the fresh
    # outputs.
    number: int = -1
    optional: bool = False  # of a GRAD: an undefined gradient is None, not zeros


@dataclass(frozen=True)
class BackwardPlan:
    """Sources by backward argument, receiving inputs by return, differentiable fresh outputs."""

    name: str
    overload: str
    sources: list[ArgumentSource]
    receivers: list[int]
    differentiable: list[bool]


def match(
    forward: Schema,
    outputs: Sequence[BoundOutput],
    operator: str,
    save: Sequence[str],
    gradients: Sequence[str] | None,
    non_differentiable: Sequence[str] = (),
) -> BackwardPlan:
    """Match `operator` to `forward`. Raises `SchemaError` naming both where they do not fit."""
    matcher = _Matcher(forward, outputs, operator, tuple(save), tuple(non_differentiable))
    matcher.require_tensors()
    backward = matcher.find_backward()
    return BackwardPlan(
        backward.name,
        backward.overload_name,
        matcher.sources(backward),
        matcher.receivers(backward, gradients),
        matcher.differentiable,
    )


def formula_of(
    forward: Schema, plan: BackwardPlan
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the plan as `backward` and `setup_context` in Python, for calls that have tangents."""
    tensors = (SourceKind.INPUT, SourceKind.OUTPUT)

    def setup_context(ctx: Any, inputs: Sequence[Any], *rest: Any) -> None:
        keep_inputs(ctx, inputs, *rest)
        ctx.set_materialize_grads(False)
        outputs = _items(rest[-1]) if forward.fresh_outputs else ()
        results = [*(ctx.inputs[i] for i in forward.written), *outputs]
        ctx.results = [(r.shape, r.dtype, r.device) for r in results]
        chosen = [
            ctx.inputs[index] if kind is SourceKind.INPUT else outputs[index]
            for kind, index, _ in plan.sources
            if kind in tensors
        ]
        ctx.sizes = [len(value) if isinstance(value, (list, tuple)) else -1 for value in chosen]
        ctx.save_for_backward(*(item for value in chosen for item in _items(value)))
        ctx.mark_non_differentiable(
            *(o for o, kept in zip(outputs, plan.differentiable, strict=True) if not kept)
        )

    def backward(ctx: Any, *grads: Any) -> Any:
        saved = iter(ctx.saved_tensors)
        sizes = iter(ctx.sizes)
        needed = [any(_items(ctx.needs_input_grad[i])) for i in plan.receivers]
        given: list[Any] = []
        for kind, index, optional in plan.sources:
            if kind in tensors:
                size = next(sizes)
                given.append(next(saved) if size < 0 else [next(saved) for _ in range(size)])
            elif kind is SourceKind.GRAD:
                given.append(_gradient(ctx, grads, len(forward.written), index, optional))
            else:
                given.append(needed if kind is SourceKind.MASK else ctx.inputs[index])
        operator = _overload(forward.qualified_name, plan)
        positional = sum(not a.kwarg_only for a in operator._schema.arguments)
        names = [a.name for a in operator._schema.arguments[positional:]]
        keywords = dict(zip(names, given[positional:], strict=True))
        result = operator(*given[:positional], **keywords)
        results = result if isinstance(result, tuple) else (result,)
        gradients: list[Any] = [None] * len(forward.arguments)
        for index, wanted, gradient in zip(plan.receivers, needed, results, strict=True):
            gradients[index] = gradient if wanted else None
        return tuple(gradients)

    return backward, setup_context


def keep_inputs(ctx: Any, inputs: Sequence[Any], *rest: Any) -> None:
    """Keep `ctx.inputs` for a jvp: the setup_context of an operator without a backward."""
    ctx.inputs = (*inputs, *(rest[0].values() if len(rest) > 1 else ()))


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _gradient(ctx: Any, grads: Sequence[Any], written: int, number: int, optional: bool) -> Any:
    """Return the gradient of a result: the `written` arguments come first, then outputs."""
    gradient = ctx.written_gradients[number] if number < written else grads[number - written]
    if gradient is None and not optional:
        shape, dtype, device = ctx.results[number]
        return torch.zeros(shape, dtype=dtype, device=device)
    return gradient


def _overload(forward: str, plan: BackwardPlan) -> Any:
    namespace, _, bare = plan.name.partition("::")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), bare), plan.overload or "default")
    except AttributeError as error:
        raise RuntimeError(
            f"{forward}: its backward operator {plan.name} is not defined any more"
        ) from error


class _Matcher:
    """One attempt; every refusal goes through `error`."""

    def __init__(
        self,
        forward: Schema,
        outputs: Sequence[BoundOutput],
        operator: str,
        save: tuple[str, ...],
        non_differentiable: tuple[str, ...],
    ) -> None:
        self._forward = forward
        self._operator = operator
        self._save = save
        self._output_names = forward.return_names if outputs else ()
        for name in non_differentiable:
            if name not in filter(None, self._output_names):
                raise self.error(f"non_differentiable= names {name!r}, which is no named output")
        self.differentiable = [
            output.differentiable and name not in non_differentiable
            for output, name in zip(outputs, self._output_names, strict=True)
        ]
        written = len(forward.written)
        self._grads = [*range(written)]
        self._grads += [written + i for i, kept in enumerate(self.differentiable) if kept]

    def error(self, reason: str) -> SchemaError:
        return SchemaError(
            f"{self._operator} cannot be the backward of {self._forward.qualified_name}: {reason}"
        )

    def require_tensors(self) -> None:
        """Refuse a gradient for a list that the operator makes or writes."""
        if "Tensor[]" in self._forward.return_types:
            raise self.error("the operator returns a list of tensors, which has no gradient here")
        for index in self._forward.written:
            argument = self._forward.arguments[index]
            if argument.type != "Tensor" or argument.optional:
                raise self.error(
                    f"the operator writes its argument '{argument.name}', which is a list or may "
                    "be None"
                )

    def find_backward(self) -> Any:
        try:
            return find_overload(self._operator)._schema
        except SchemaError as error:
            raise self.error(str(error)) from error

    def sources(self, backward: Any) -> list[ArgumentSource]:
        arguments = list(backward.arguments)
        count = len(self._grads)
        kinds = [str(a.type) for a in arguments[:count]]
        if len(kinds) < count or not set(kinds) <= {"Tensor", "Optional[Tensor]"}:
            raise self.error(
                f"its first {count} arguments must be the gradients of the results, of type Tensor "
                "(zeros where there is none) or Tensor? (None)"
            )
        sources = [
            ArgumentSource(SourceKind.GRAD, index, kind != "Tensor")
            for index, kind in zip(self._grads, kinds, strict=True)
        ]
        sources += [self._source(argument) for argument in arguments[count:]]
        used = {a.name for a in arguments[count:]}
        unused = [name for name in self._save if name not in used]
        if unused:
            raise self.error(f"save= names '{unused[0]}', which it does not take")
        return sources

    def _source(self, argument: Any) -> ArgumentSource:
        name = argument.name
        if name in self._forward.index:
            return self._input(argument, self._forward.index[name])
        if name and name in self._output_names:
            if name not in self._save:
                raise self.error(f"it reads the output '{name}', which is not in save=")
            return ArgumentSource(SourceKind.OUTPUT, self._output_names.index(name))
        if name == "output_mask" and _schema_type(argument) == "bool[]":
            return ArgumentSource(SourceKind.MASK)
        known = [*self._forward.index, *filter(None, self._output_names)]
        raise self.error(
            f"its argument '{name}' is no argument or named return of the forward operator "
            f"({', '.join(known)}), nor bool[] output_mask"
        )

    def _input(self, argument: Any, index: int) -> ArgumentSource:
        declared = self._forward.arguments[index]
        expected = _type_text(declared.type, declared.optional)
        allowed = {expected, _type_text(declared.type, True)}
        if _schema_type(argument) not in allowed:
            raise self.error(
                f"its argument '{argument.name}' is {_schema_type(argument)}, the forward "
                f"operator's is {expected}"
            )
        if not declared.type.startswith("Tensor"):
            return ArgumentSource(SourceKind.CONSTANT, index)
        if argument.name not in self._save:
            raise self.error(f"it reads the tensor '{argument.name}', which is not in save=")
        return ArgumentSource(SourceKind.INPUT, index)

    def receivers(self, backward: Any, gradients: Sequence[str] | None) -> list[int]:
        arguments = self._forward.arguments
        if gradients is None:
            names = [a.name for a in arguments if a.type in {"Tensor", "Tensor[]"}]
        else:
            names = list(gradients)
        for name in names:
            index = self._forward.index.get(name)
            if index is None or arguments[index].type not in {"Tensor", "Tensor[]"}:
                raise self.error(
                    f"gradients= names '{name}', which is no Tensor or Tensor[] argument of the "
                    "forward operator"
                )
        returned = [str(r.type) for r in backward.returns]
        if not set(returned) <= {"Tensor", "Optional[Tensor]", "List[Tensor]"}:
            raise self.error("it must return tensors, one gradient each")
        if len(names) != len(returned):
            raise self.error(
                f"it returns {len(returned)} gradients for the {len(names)} arguments "
                f"{', '.join(names)}; "
                "name those that get one with gradients="
            )
        receivers = [self._forward.index[name] for name in names]
        for name, index, got in zip(names, receivers, returned, strict=True):
            is_list = arguments[index].type == "Tensor[]"
            if got not in ({"List[Tensor]"} if is_list else {"Tensor", "Optional[Tensor]"}):
                raise self.error(
                    f"it must return tensors, one gradient each, and for '{name}' a "
                    f"{arguments[index].type}; got {got}"
                )
        return receivers


def _type_text(type_text: str, optional: bool) -> str:
    return f"{type_text}?" if optional else type_text


def _schema_type(argument: Any) -> str:
    return _type_text(*type_of(argument))
