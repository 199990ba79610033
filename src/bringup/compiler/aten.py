"""The ATen dialect: what PyTorch's operators are, by its own schemas and fake tensors."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily

from bringup import ir
from bringup.compiler import sampling
from bringup.compiler.fake_results import FakeInference, call, expression, filled, look, outputs_of
from bringup.compiler.schema import in_schema_order, overload_of, resolve
from bringup.compiler.sizes import ARITHMETIC, SIZE_OPERATORS, Sizes
from bringup.errors import PassError

__all__ = ["AtenDialect", "operator_of", "ordinary_torch"]

_ADDRESSING = ("aten::as_strided", "aten::_reinterpret_tensor", "aten::stride", "aten::sym_stride")
_OPERANDS = (ir.Parameter("a", "int"), ir.Parameter("b", "int"))
_ROUND_ONCE = re.compile(
    "abs|add|clone|div|full|full_like|mul|neg|ones_like|reciprocal|rsub|sqrt|sub|zeros_like"
)
# A maximum of 0 and -0, say, has the sign of either, by the place of the element.
_CHOOSE = re.compile(
    "clamp|clamp_max|clamp_min|eq|fmax|fmin|ge|gt|isfinite|isinf|isnan|le|lt|masked_fill|maximum"
    "|minimum|ne|relu|round|where"
)
_FIXED_STRIDES = (torch.Tag.needs_exact_strides, torch.Tag.needs_fixed_stride_order)


class AtenDialect(ir.AtenOperators, ir.VerifiableDialect, own=("mode_for",)):
    """The dialect over `torch.ops`: any registered operator, `aten::` or not.

    Args:
        fake_mode: under which shapes are inferred; taken from the first fake tensor met when None.
    """

    name = "aten"
    size_operators = SIZE_OPERATORS
    copy_operator = "aten::clone"

    def __init__(self, fake_mode: Any = None) -> None:
        self._fake_mode = fake_mode
        self._inference: FakeInference | None = None
        self._sizes = Sizes()

    def detached(self) -> AtenDialect:
        """See `ir.Dialect`: one that shares nothing with any graph."""
        return AtenDialect()

    def bind(
        self, op_type: str, arguments: Sequence[object], keywords: Mapping[str, object]
    ) -> tuple[ir.Operator, tuple[object, ...]]:
        """See `ir.Dialect.bind`. The overload is chosen as torch chooses it for a call; operators
        of ONNX are taken as they come, for patterns that match nothing here.
        """
        if op_type.startswith("onnx::"):
            return ir.Operator(op_type), (*arguments, dict(keywords))
        if op_type in ARITHMETIC:
            return ir.Operator(op_type, _OPERANDS), tuple(arguments)
        overload = resolve(op_type, arguments, keywords)
        return operator_of(overload), in_schema_order(overload, arguments, keywords)

    def infer(self, node: ir.Node, instead_of: ir.Value | None = None) -> tuple[object, ...]:
        """See `ir.Dialect.infer`. Adds no guard to the shape environment."""
        if self._inference is None:
            mode = self.mode_for([value.meta for value in node.inputs])
            self._inference = FakeInference(mode, self._sizes)
        return self._inference.outputs(node, instead_of)

    def meta_of(self, desc: ir.TensorDesc) -> object:
        """See `ir.Dialect.meta_of`. Symbolic sizes are refused: capture or export such a model."""
        if not desc.shape.is_static:
            raise PassError(f"a declared shape must be made of numbers, got {desc.shape}")
        dims, dtype = desc.shape.dims, _dtype_named(desc.dtype)
        with self.mode_for(()):
            if desc.strides:
                return torch.empty_strided(dims, desc.strides, dtype=dtype, device=desc.device)
            return torch.empty(dims, dtype=dtype, device=desc.device)

    def describe(self, meta: object) -> ir.TensorDesc | None:
        """See `ir.Dialect.describe`."""
        if not isinstance(meta, torch.Tensor):
            return None
        strided = meta.layout == torch.strided
        return ir.TensorDesc(
            ir.Shape([self._sizes.dim_of(size) for size in meta.shape]),
            str(meta.dtype).removeprefix("torch."),
            tuple([self._sizes.dim_of(stride) for stride in meta.stride()]) if strided else (),
            str(meta.device),
        )

    def as_size(self, meta: object) -> ir.Dim | None:
        """See `ir.Dialect`."""
        is_number = isinstance(meta, torch.SymInt) or type(meta) is int
        return self._sizes.dim_of(meta) if is_number else None

    def size_named(self, text: str) -> ir.Dim:
        """See `ir.Dialect`."""
        return self._sizes.named(text)

    def difference(self, old: object, new: object) -> str | None:
        """See `ir.Dialect.difference`: kind, shape, dtype and device must agree."""
        former, current = look(old), look(new)
        if former is not None and current is not None and former[:3] == current[:3]:
            return None
        before, after = self.describe(old), self.describe(new)
        if before is None or after is None:
            same = before is after and self.same(old, new)
            return None if same else f"expected {before or old}, got {after or new}"
        if not before.shape.same_as(after.shape):
            return f"expected shape {before.shape}, got {after.shape}"
        for what in ("dtype", "device"):
            wanted, got = getattr(before, what), getattr(after, what)
            if wanted != got:
                return f"expected {what} {wanted}, got {got}"
        return None

    def same_layout(self, old: object, new: object) -> bool:
        """See `ir.Dialect.same_layout`: strides, where memory begins, and what is not resolved."""
        if _memory_traits(old) != _memory_traits(new):
            return False
        former, current = look(old), look(new)
        if former is not None and current is not None and former.strides == current.strides:
            return True
        before, after = self.describe(old), self.describe(new)
        if before is None or after is None or len(before.strides) != len(after.strides):
            return before is None or after is None
        return all(map(ir.same_size, before.strides, after.strides))

    def reads_strides(self, node: ir.Node) -> bool:
        """See `ir.Dialect`: operators that address memory, and those tagged that they need it."""
        if not node.operator.parameters or node.op_type in ARITHMETIC:
            return False
        if node.op_type.startswith(_ADDRESSING):
            return True
        return any(tag in _FIXED_STRIDES for tag in overload_of(node.op_type).tags)

    def laid_out_as(self, value: ir.Value, meta: object, before: ir.Node) -> ir.Value | None:
        """See `ir.Dialect`. None for a layout with gaps or overlaps."""
        order = _dense_order(meta)
        if order is None:
            return None
        op = value.node.graph.inserting_before(before).op
        turned = op("aten::permute", value, order) if order != sorted(order) else value
        made = op("aten::clone", turned, memory_format=torch.contiguous_format)
        if order != sorted(order):
            made = op("aten::permute", made, [order.index(dim) for dim in range(len(order))])
        assert isinstance(made, ir.TensorHolder)
        for key in ("stack_trace", "nn_module_stack"):
            if key in value.node.meta:
                made.value.node.meta[key] = value.node.meta[key]
        return made.value

    def evaluate(self, node: ir.Node, constants: Mapping[ir.Value, object]) -> tuple[object, ...]:
        """See `ir.Dialect.evaluate`."""
        arguments = [filled(argument, constants) for argument in node.arguments]
        if node.op_type in ARITHMETIC:
            return (ARITHMETIC[node.op_type](*arguments),)
        with torch.no_grad():
            return outputs_of(call(overload_of(node.op_type), arguments))

    def sample(self, meta: object, seed: int, draw: int) -> object:
        """See `ir.Dialect.sample`."""
        if isinstance(meta, ir.SymbolicDim):
            return meta.evaluate(lambda name: sampling.size_of(name, draw))
        return sampling.sample(meta, seed, draw)

    def distance(self, expected: object, got: object) -> tuple[float, float]:
        """See `ir.Dialect.distance`."""
        return sampling.distance(expected, got)

    def vary(
        self,
        meta: object,
        dtype: str | None = None,
        resized: Callable[[int], int] | None = None,
    ) -> object:
        """See `ir.Dialect.vary`."""
        with self.mode_for([meta]):
            return sampling.vary(meta, dtype, resized)

    def signed_distance(self, expected: object, got: object) -> tuple[float, float]:
        """See `ir.Dialect.signed_distance` of `expected` and `got`."""
        apart, allowed = sampling.distance(expected, got)
        if apart <= allowed and sampling.zeros_differ(expected, got):
            apart = math.inf
        return apart, allowed

    def strictness(self, node: ir.Node) -> int:
        """See `ir.Dialect.strictness`: what torch's tags say."""
        if node.op_type in ARITHMETIC:
            return 3
        overload = overload_of(node.op_type)
        name = overload._schema.name.removeprefix("aten::")
        if node.operator.aliases or _ROUND_ONCE.fullmatch(name):
            return 3
        return 2 if _CHOOSE.fullmatch(name) else int(torch.Tag.pointwise in overload.tags)

    def constant(self, payload: ir.ConstantData) -> object:
        """See `ir.Dialect.constant`: a tensor on the host."""
        return self.constant_of(payload)

    def constant_meta(self, payload: object) -> object:
        """See `ir.Dialect.constant_meta`."""
        if not isinstance(payload, torch.Tensor):
            raise TypeError(f"a constant must be a torch.Tensor, got {type(payload).__name__}")
        return self.mode_for(()).from_tensor(payload, static_shapes=True)

    def constant_of(self, data: ir.ConstantData) -> object:
        """See `ir.Dialect.constant_of`: a tensor on cpu."""
        dtype = _dtype_named(data.dtype)
        with ordinary_torch():
            made = torch.empty(data.shape, dtype=dtype)
            needed, given = made.numel() * made.element_size(), len(bytes(data.data))
            if needed != given:
                raise PassError(
                    f"a constant of {data.dtype}{list(data.shape)} has {needed} bytes, got {given}"
                )
            if given:
                flat = torch.frombuffer(bytearray(data.data), dtype=dtype)
                made.copy_(flat.reshape(data.shape))
            return made

    def constant_data(self, payload: object) -> ir.ConstantData | None:
        """See `ir.Dialect.constant_data`. Unknown for fake and for quantised or sparse tensors."""
        if not isinstance(payload, torch.Tensor) or isinstance(payload, FakeTensor):
            return None
        if payload.layout != torch.strided or payload.is_quantized or payload.is_meta:
            return None
        with ordinary_torch(), torch.no_grad():
            flat = payload.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
            data = memoryview(flat.view(torch.uint8).numpy())
        dtype = str(payload.dtype).removeprefix("torch.")
        return ir.ConstantData(dtype, tuple(int(size) for size in payload.shape), data)

    def supports(self, node: ir.Node) -> tuple[bool, str]:
        """See `ir.Dialect.supports`: is there a kernel for the device of the inputs?"""
        if node.op_type in ARITHMETIC:
            return True, ""
        overload = overload_of(node.op_type)
        names = {"cpu": "CPU", "cuda": "CUDA", "meta": "Meta"}
        for value in node.inputs:
            if isinstance(value.meta, torch.Tensor):
                name = names.get(value.meta.device.type, "PrivateUse1")
                key = torch._C._parse_dispatch_key(name)
                if not overload.has_kernel_for_dispatch_key(key) and not overload._can_decompose():
                    return False, f"{node.op_type} has no kernel for {value.meta.device.type}"
        return True, ""

    def same(self, left: object, right: object) -> bool:
        """See `ir.Dialect.same`. Types must agree too: `2` and `2.0` give different dtypes."""
        one, other = (
            self._sizes.dim_of(item) if isinstance(item, torch.SymInt) else item
            for item in (left, right)
        )
        if isinstance(one, ir.SymbolicDim) or isinstance(other, ir.SymbolicDim):
            return ir.same_size(one, other)
        return super().same(left, right)

    def mode_for(self, metas: Any) -> Any:
        """Return the mode of the first fake tensor met, here or among `metas`, or a new one."""
        if self._fake_mode is None:
            found = next((meta.fake_mode for meta in metas if isinstance(meta, FakeTensor)), None)
            self._fake_mode = found or FakeTensorMode(allow_non_fake_inputs=True)
        return self._fake_mode


@cache
def operator_of(overload: Any) -> ir.Operator:
    """Return the facts of an operator overload, from its schema and tags."""
    schema = overload._schema
    mutates: set[int] = set()
    aliases: set[int] = set()
    for index, argument in enumerate(schema.arguments):
        if argument.alias_info is not None:
            (mutates if argument.alias_info.is_write else aliases).add(index)
    returns = schema.returns
    name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    names = [argument.name for argument in schema.arguments]
    commutes = name in ir.COMMUTATIVE_ATEN
    is_list = len(returns) == 1 and isinstance(returns[0].type, torch.ListType)
    return ir.Operator(
        type=name,
        parameters=tuple(
            ir.Parameter(item.name, str(item.type), item.kwarg_only) for item in schema.arguments
        ),
        output_count=None if is_list else len(returns),
        mutates=frozenset(mutates),
        aliases=frozenset(aliases),
        random=torch.Tag.nondeterministic_seeded in overload.tags,
        kept=not returns and not mutates,
        commutes=commutes,
        commutes_if_one=names.index("alpha") if commutes and "alpha" in names else None,
    )


def _memory_traits(meta: object) -> tuple[object, ...] | None:
    """Return the storage offset, and whether a conjugate or negative is still to be taken."""
    if not isinstance(meta, torch.Tensor) or meta.layout != torch.strided:
        return None
    return expression(meta.storage_offset()), meta.is_conj(), meta.is_neg()


def _dtype_named(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise PassError(f"there is no dtype {name!r}")
    return dtype


@contextlib.contextmanager
def ordinary_torch() -> Iterator[None]:
    """Run torch operators for real in this block, inside of a compile as outside of it."""
    with unset_fake_temporarily(), torch._C._DisablePythonDispatcher():
        yield


def _dense_order(meta: object) -> list[int] | None:
    """Return the dimensions from outermost, by hints, or None for gaps, overlaps, data's sizes."""
    if not isinstance(meta, torch.Tensor) or meta.layout is not torch.strided:
        return None
    sizes, strides = ([_hint(item) for item in items] for items in (meta.shape, meta.stride()))
    if None in sizes or None in strides:
        return None
    order = sorted(range(len(sizes)), key=lambda dim: (-strides[dim], sizes[dim] == 1))
    expected = 1
    for dim in reversed(order):
        if sizes[dim] != 1 and strides[dim] != expected:
            return None
        expected *= sizes[dim]
    return order


def _hint(size: Any) -> Any:
    return size.node.hint if isinstance(size, torch.SymInt) else size
