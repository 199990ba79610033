"""`register_attention`: an operator becomes an `attn_implementation` of transformers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import torch

Layout = Literal["bhld", "blhd"]

# Other words for transformers' own.
_ALIASES = {
    "q": "query", "k": "key", "v": "value", "mask": "attention_mask", "attn_mask": "attention_mask",
    "scale": "scaling", "dropout_p": "dropout", "causal": "is_causal",
}  # fmt: skip
# Options of a call that change the result, so that an operator has to know them.
_MEANINGFUL = ("position_bias", "softcap", "s_aux", "output_attentions", "cache")
_NO_NAMES: Mapping[str, str] = MappingProxyType({})


def register_attention(
    name: str,
    op: Callable[..., torch.Tensor],
    *,
    names: Mapping[str, str] = _NO_NAMES,
    returns: Layout = "bhld",
    mask: Literal["additive", "bool"] = "additive",
) -> str:
    """Register an operator with transformers' attention interface; returns `name`.

    What `op` declares is what it gets, by name: `query`, `key` and `value` ([batch, heads, length,
    depth]), `scaling`, `attention_mask` ([batch, 1, queries, keys]), `is_causal`, `dropout`,
    `sliding_window`, `softcap`, `module`, `num_key_value_groups` (or `enable_gqa`; without them
    heads are repeated), and keywords of the model's call; also `q`, `k`, `v`, `scale`, `mask`,
    `attn_mask`, `dropout_p` and `causal`. With `is_causal` no mask is built for plain causal
    attention; without `attention_mask` a model that needs one is refused.

    Args:
        name: what `attn_implementation=` or `set_attn_implementation` is given.
        op: an operator or a Python function.
        names: for parameters of other names, transformers' name: `{"lengths": "seq_lengths"}`.
        returns: the layout of its result, "bhld" or "blhd".
        mask: "additive": 0 and the lowest number of the dtype; "bool": True where a key takes part.

    Raises:
        ImportError: transformers is not installed.
        TypeError: the parameters of `op` cannot be found out, or it declares no query, key, value.
        ValueError: `returns` or `mask` is none of the two. At a call: the model asks for what `op`
            does not declare, or lacks what it needs, or a result has another shape than the layout
            says.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    for option, value, allowed in (
        ("returns", returns, ("bhld", "blhd")),
        ("mask", mask, ("additive", "bool")),
    ):
        if value not in allowed:
            raise ValueError(
                f"register_attention({name!r}): {option}={value!r}; expected one of {allowed}"
            )
    adapter = _Adapter(name, op, _parameters(name, op, names), returns, mask)
    AttentionInterface.register(name, adapter.attend)
    AttentionMaskInterface.register(name, adapter.make_mask)
    return name


@dataclass(frozen=True)
class _AttentionParameter:
    """A parameter of the operator: what transformers calls it, and whether it must be given."""

    name: str
    word: str
    required: bool


@dataclass(frozen=True)
class _Adapter:
    name: str
    op: Callable[..., torch.Tensor]
    parameters: tuple[_AttentionParameter, ...]
    returns: Layout
    mask: Literal["additive", "bool"]

    @property
    def _where(self) -> str:
        return f'attn_implementation "{self.name}"'

    def takes(self, word: str) -> bool:
        return any(parameter.word == word for parameter in self.parameters)

    def make_mask(self, **options: Any) -> torch.Tensor | None:
        """Return what transformers asks for a mask, from its own description of the pattern."""
        takes_mask, takes_causal = self.takes("attention_mask"), self.takes("is_causal")
        if not takes_mask and not takes_causal:
            if options.get("attention_mask") is not None:
                raise ValueError(self._no_mask())
            return None
        from transformers.masking_utils import sdpa_mask

        if not takes_causal:
            options["allow_is_causal_skip"] = False
        made: torch.Tensor | None = sdpa_mask(**options)
        if made is None or self.mask == "bool":
            return made
        dtype = options.get("dtype", torch.float32)
        zero = torch.zeros((), dtype=dtype, device=made.device)
        return torch.where(made, zero, float(torch.finfo(dtype).min))

    def attend(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        is_causal: bool | None = None,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        """transformers' signature. Returns [batch, length, heads, depth], and no weights."""
        if is_causal is None:
            is_causal = getattr(module, "is_causal", False)
        causal = bool(is_causal) and attention_mask is None and query.shape[2] > 1
        groups = query.shape[1] // key.shape[1]
        given = {
            **options, "module": module, "attention_mask": attention_mask,
            "scaling": query.shape[-1] ** -0.5 if scaling is None else scaling, "dropout": dropout,
            "is_causal": causal, "num_key_value_groups": groups, "enable_gqa": groups > 1,
        }  # fmt: skip
        self._refuse(given)
        if causal and key.shape[2] > query.shape[2]:
            # A static cache at its first step: the keys behind the queries hold nothing yet.
            key, value = (x[:, :, : query.shape[2]] for x in (key, value))
        if groups > 1 and not (self.takes("num_key_value_groups") or self.takes("enable_gqa")):
            key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
        given.update(query=query, key=key, value=value)
        result = self.op(**self._arguments(given))
        shapes = {
            "bhld": (*query.shape[:3], value.shape[3]),
            "blhd": (query.shape[0], query.shape[2], query.shape[1], value.shape[3]),
        }
        if tuple(result.shape) != shapes[self.returns]:  # heads taken for positions, else
            raise ValueError(
                f"{self._where} returned {list(result.shape)}, expected "
                f"{list(shapes[self.returns])}; the layouts are "
                f"{', '.join(f'returns={name!r}: {list(shape)}' for name, shape in shapes.items())}"
            )
        return (result.transpose(1, 2).contiguous() if self.returns == "bhld" else result), None

    def _arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        arguments = {}
        for parameter in self.parameters:
            if parameter.word in given:
                arguments[parameter.name] = given[parameter.word]
            elif parameter.required:
                raise ValueError(
                    f"{self._where} needs {parameter.word}: call the model with "
                    f"{parameter.word}=..."
                )
        return arguments

    def _refuse(self, given: Mapping[str, Any]) -> None:
        """Raise for what the operator would have to know and does not."""
        if given["attention_mask"] is not None and not self.takes("attention_mask"):
            raise ValueError(self._no_mask())
        if given["is_causal"] and not self.takes("is_causal"):
            raise ValueError(
                f"{self._where} is not for causal attention: its operator takes neither is_causal "
                "nor attention_mask"
            )
        if given["dropout"] and not self.takes("dropout"):
            raise ValueError(
                f"{self._where} has no dropout, got {given['dropout']}: call model.eval()"
            )
        meaningful = list(_MEANINGFUL)
        if given["attention_mask"] is None:
            meaningful.append("sliding_window")  # a mask holds the window
        for word in meaningful:
            value = given.get(word)  # a tensor compares element by element
            if value is not None and value is not False and not self.takes(word):
                raise ValueError(f"{self._where} does not support {word}, got {_text(value)}")

    def _no_mask(self) -> str:
        lengths = [p.word for p in self.parameters if p.required and p.word not in _TENSORS]
        instead = f"call the model with {lengths[0]}=... and " if lengths else ""
        return f"{self._where} takes no mask: {instead}leave attention_mask out"


_TENSORS = ("query", "key", "value")


def _text(value: Any) -> str:
    return f"a tensor {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def _parameters(
    name: str, op: Callable[..., torch.Tensor], names: Mapping[str, str]
) -> tuple[_AttentionParameter, ...]:
    declared = _declared(name, op)
    unknown = set(names) - {parameter for parameter, _ in declared}
    if unknown:
        raise TypeError(
            f"register_attention({name!r}): names= has {sorted(unknown)}, which the operator does "
            f"not declare; it has {[parameter for parameter, _ in declared]}"
        )
    found = tuple(
        _AttentionParameter(
            parameter, names.get(parameter, _ALIASES.get(parameter, parameter)), required
        )
        for parameter, required in declared
    )
    missing = [word for word in _TENSORS if word not in {p.word for p in found}]
    if missing:
        raise TypeError(
            f"register_attention({name!r}): the operator declares no {', '.join(missing)}; it has "
            f"{[p.name for p in found]}, and names= says which is which"
        )
    return found


def _declared(name: str, op: Callable[..., torch.Tensor]) -> list[tuple[str, bool]]:
    """Return the parameters with whether they must be given, of an operator or of a function."""
    for overload in (op, getattr(op, "overload", None), getattr(op, "default", None)):
        schema = getattr(overload, "_schema", None)
        if schema is not None:
            return [(a.name, not a.has_default_value()) for a in schema.arguments]
    try:
        signature = inspect.signature(op)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"register_attention({name!r}): what {op!r} takes cannot be found out ({error}); give "
            "an operator, or a function that calls it"
        ) from error
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(
                f"register_attention({name!r}): the parameter {parameter} of {op!r} has no name of "
                "its own; declare what the function takes"
            )
    return [(p.name, p.default is p.empty) for p in signature.parameters.values()]
