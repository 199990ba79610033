"""torch_npu's attention on the kernels of `csrc/attention`: `.out` forms, and what calls them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bringup import ops
from bringup.errors import ContractError
from bringup.kernels._sources import kernel_source
from bringup.kernels.npu._schemas import (
    FLASH,
    FLASH_GRAD,
    INCRE,
    INFER,
    INFER_V2,
    LATENT,
    PAGED,
    PAGED_ARGUMENTS,
    PAGED_ON_DEVICE,
    PAGED_ON_HOST,
    Signature,
)

# Every name that a kernel asks for.
_SIGNATURES = (INFER, INFER_V2, INCRE, FLASH, FLASH_GRAD, PAGED_ON_DEVICE, PAGED_ON_HOST, LATENT)
_ROLES = sorted({role for each in _SIGNATURES for role in each.roles})
# The kernels' own figures (csrc/attention/engine.h), which a test holds equal.
_PANEL, _ROWS, _KEYS, _ITEMS, _SLOTS, _ELEMENTS = 16, 24, 128, 8, 64, 1 << 24

Arguments = dict[str, Any]
Results = Callable[[Arguments], list[Tensor]]


class _OutOverload(torch._ops.OpOverload):  # type: ignore[misc]
    """An `.out` overload that takes its results as `out=`, too: as one tensor or several."""

    @classmethod
    def of(cls, packet: Any, results: list[str]) -> _OutOverload:
        """That of a packet, which has this one from then on."""
        overload = object.__new__(cls)
        overload.__dict__.update(packet.out.__dict__, result_names=results)
        packet.out = overload
        return overload

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if "out" in kwargs:
            out = kwargs.pop("out")
            given = [out] if isinstance(out, Tensor) else list(out)
            if len(given) != len(self.result_names):
                raise TypeError(
                    f"{self}: out has {len(given)} tensors, expected {', '.join(self.result_names)}"
                )
            kwargs.update(zip(self.result_names, given, strict=True))
        return super().__call__(*args, **kwargs)


class NpuOperator:
    """An operator that is called as torch_npu's: it allocates its results, `.out` is given them.

    Attributes:
        out, out_overload: what runs the kernel, into results that are there: by their names in the
            schema, or all of them as `out`.
        default: the overload that allocates.

    Args:
        signature: its name, arguments and results.
        results: makes the results of a call, not yet written, from its arguments by name.
        elements: how many elements the workspace has, from the arguments by name.
        tags: of the overload that allocates.

    Examples:
        >>> from bringup.kernels import npu
        >>> operator: npu.NpuOperator = npu.npu_fused_infer_attention_score
        >>> query, key = torch.ones(2, 1, 64), torch.ones(2, 16, 64)
        >>> result, _ = operator.infer_output(query, key, key, num_heads=4, input_layout="BSH")
        >>> result.shape
        torch.Size([2, 1, 64])
    """

    def __init__(
        self,
        signature: Signature,
        results: Results,
        elements: Results | Any,
        tags: Sequence[torch.Tag] = (),
    ) -> None:
        self.signature, self._results, self._elements = signature, results, elements
        namespace, _, bare = signature.name.partition("::")
        self._library = ops.Library(namespace)
        self._define_functions(bare, tags)
        self.kernel = _define_kernel(signature)
        packet = getattr(getattr(torch.ops, namespace), bare)
        self.default = packet.default
        self.out = self.out_overload = _OutOverload.of(packet, list(signature.results))
        schema = self.default._schema
        self._names = [argument.name for argument in schema.arguments]
        self._defaults = {a.name: a.default_value for a in schema.arguments}
        self.__name__, self.__doc__ = bare, f"{schema}\n\nSee `bringup.kernels.npu`."

    def _define_functions(self, bare: str, tags: Sequence[torch.Tag]) -> None:
        one = len(self.signature.results) == 1
        returns = (
            "Tensor" if one else "(" + ", ".join("Tensor" for _ in self.signature.results) + ")"
        )
        self._library.define(f"{bare}({self.signature.arguments}) -> {returns}", tags=tags)
        self._library.impl(bare, self._allocating, "CompositeExplicitAutograd")
        workspace = f"_{bare}_get_max_workspace"
        self._library.define(f"{workspace}({self.signature.arguments}) -> Tensor")
        self._library.impl(workspace, self.max_workspace, "CompositeImplicitAutograd")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.default(*args, **kwargs)

    def bound(self, args: Sequence[Any], kwargs: Arguments) -> Arguments:
        """Return every argument by its name, defaults too.

        `args` are those of a call by position, `kwargs` those by name.
        """
        return {**self._defaults, **dict(zip(self._names, args, strict=False)), **kwargs}

    def results(self, args: Sequence[Any], kwargs: Arguments) -> dict[str, Tensor]:
        """Return unwritten tensors for the results of a call, by name; dropout's seed is drawn.

        `args` are its arguments by position, `kwargs` those by name.
        """
        found = self._results(self.bound(args, kwargs))
        return dict(zip(self.signature.results, found, strict=True))

    def infer_output(self, *args: Any, **kwargs: Any) -> Any:
        """Return what `results` gives, in order; `out` and `workspace` count for nothing."""
        found = tuple(self.results(args, kwargs).values())
        return found if len(found) > 1 else found[0]

    def max_workspace(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return a workspace for a call with these tensors and any lengths, uint8."""
        given = self.bound(args, kwargs)
        query = given[self.signature.roles["QUERY"]]
        size = 8 if query.dtype is torch.float64 else 4
        return query.new_empty(self._elements(given) * size, dtype=torch.uint8)

    def _allocating(self, *args: Any, **kwargs: Any) -> Any:
        results = self.results(args, kwargs)
        with torch._C._AutoDispatchBelowAutograd():
            self.out_overload(*args, **kwargs, **results)
        return tuple(results.values()) if len(results) > 1 else next(iter(results.values()))


def _define_kernel(signature: Signature) -> ops.KernelOperator:
    """Return the operator that runs the kernel: `name.out`, or `name` where it is only that."""
    schema = f"{signature.name}({signature.arguments}) -> ()"
    if signature.results:
        marks = "abcdef"[: len(signature.results)]
        written = ", ".join(
            f"Tensor({mark}!) {name}" for mark, name in zip(marks, signature.results, strict=True)
        )
        star = "" if "*," in signature.arguments else "*, "
        types = ", ".join(f"Tensor({mark}!)" for mark in marks)
        schema = (
            f"{signature.name}.out({signature.arguments}, {star}Tensor(z!)? workspace=None, "
            f"{written}) -> {types if len(marks) == 1 else f'({types})'}"
        )
    arguments = torch._C.parse_schema(schema).arguments
    names = [argument.name for argument in arguments]
    roles = {**signature.roles, "WORKSPACE": "workspace"}
    allowed = {*roles.values(), *signature.ignored}
    unsupported = [
        argument.name
        for argument in arguments
        if str(argument.type).startswith("Optional") and argument.name not in allowed
    ]
    macros: dict[str, Any] = {
        f"ARG_{role}": names.index(roles[role]) if role in roles else -1
        for role in [*_ROLES, "WORKSPACE"]
    }
    for macro, listed in ("NONE_ARGUMENTS", unsupported), ("ZERO_ARGUMENTS", signature.zero):
        macros[macro] = " ".join(f"X({names.index(name)}, {name})" for name in listed)
    query, key, value = (signature.roles[role] for role in ("QUERY", "KEY", "VALUE"))
    dtypes, floats = (
        {"SCALAR": query},
        (torch.float32, torch.float64, torch.bfloat16, torch.float16),
    )
    checks = [ops.dtype(query, *floats)]
    if "SCALES" in roles or "KEY_SCALE" in roles:
        dtypes["KEY_SCALAR"] = key
        checks += [ops.dtype(key, *floats, torch.int8), ops.same_dtype(key, value)]
    else:
        checks.append(ops.same_dtype(*dict.fromkeys((query, key, value))))
    return ops.kernel_op(
        schema,
        source=kernel_source(signature.source),
        dtypes=dtypes,
        macros={name: text for name, text in macros.items() if text != ""},
        layout="strided",
        checks=checks,
    )


# --- results ------------------------------------------------------------------------------------


def _head_sizes(given: Arguments, heads: int, key_heads: int) -> tuple[int, int]:
    """Return the elements of a head of query and of value; the kernel refuses misfits."""
    query, value, layout = given["query"], given["value"], given["input_layout"]
    paged = given.get("block_table") is not None
    joined = value.dim() == 3 if paged else layout == "BSH"
    depth = query.shape[-1] // max(1, heads) if layout == "BSH" else query.shape[-1]
    return depth, value.shape[-1] // max(1, key_heads) if joined else value.shape[-1]


def _attention_result(given: Arguments, heads: int, key_heads: int) -> Tensor:
    query = given["query"]
    _, width = _head_sizes(given, heads, key_heads)
    last = heads * width if given["input_layout"] == "BSH" else width
    return query.new_empty((*query.shape[:-1], last))


def _statistic(given: Arguments, heads: int, copies: int) -> Tensor:
    """float32, a row of `copies` for each row of each head."""
    query, layout = given["query"], given["input_layout"]
    rows = query.shape[2] if layout == "BNSD" and query.dim() == 4 else query.shape[1]
    sizes = (
        (query.shape[0], heads, copies)
        if layout == "TND"
        else (query.shape[0], heads, rows, copies)
    )
    return query.new_empty(sizes, dtype=torch.float32)


def _infer(heads: str, flag: str) -> Results:
    def results(given: Arguments) -> list[Tensor]:
        count = given[heads]
        key_heads = given["num_key_value_heads"] or count
        log_sum = (
            _statistic(given, count, 1)
            if given[flag]
            else given["query"].new_empty(1, dtype=torch.float32)
        )
        return [_attention_result(given, count, key_heads), log_sum]

    return results


def _incre(given: Arguments) -> list[Tensor]:
    count = given["num_heads"]
    return [_attention_result(given, count, given["num_key_value_heads"] or count)]


def _key_heads(given: Arguments) -> int:
    """This operator's keys say themselves how many heads they have."""
    query, key, layout = given["query"], given["key"], given["input_layout"]
    if layout == "BSH":
        return int(key.shape[-1] // max(1, query.shape[-1] // max(1, given["head_num"])))
    return int(key.shape[{"BSND": 2}.get(layout, 1)])


def _flash(given: Arguments) -> list[Tensor]:
    heads, query = given["head_num"], given["query"]
    result = _attention_result(given, heads, _key_heads(given))
    statistics = [_statistic(given, heads, 8) for _ in range(2)]
    numbers = [query.new_empty(1, dtype=torch.int64) for _ in range(2)]
    if given["keep_prob"] != 1:
        numbers[0].random_(1, None)  # the seed, which the kernel reads; 0 is none
    return [result, *statistics, query.new_empty(0, dtype=torch.float32), *numbers]


def _flash_grad(given: Arguments) -> list[Tensor]:
    inputs = (given["query"], given["key"], given["value"])
    return [*(x.new_empty(x.shape) for x in inputs), *(inputs[0].new_empty(0) for _ in range(2))]


def _latent(given: Arguments) -> list[Tensor]:
    query = given["q_nope"]
    return [query.new_empty((*query.shape[:-1], given["ctkv"].shape[-1]))]


# --- workspace ----------------------------------------------------------------------------------


def _padded(size: int) -> int:
    return -(-size // _PANEL) * _PANEL


def _forward_elements(items: int, rows: int, keys: int, depth: int, width: int) -> int:
    """At least what the forward works in, whatever the lengths. `items`: sequences by key heads."""
    keys, columns = _padded(keys), _padded(width)
    size = keys * (depth + columns) + _ROWS * (_padded(depth) + _KEYS + 2 * columns)
    parts = max(1, min(-(-_ITEMS // max(1, items)), rows // _KEYS))
    return _most_elements(items * parts, size)


def _most_elements(items: int, size: int) -> int:
    """Of the workspaces that so many items get, where each has `size` elements or fewer."""
    return max(1, min(min(items, _SLOTS) * size, max(_ITEMS * size, _ELEMENTS)))


def _sizes(given: Arguments, heads: int, key_heads: int) -> tuple[int, ...]:
    """Return the most sequences that count, rows of heads that share keys, the most keys of one."""
    query, key, layout = given["query"], given["key"], given["input_layout"]
    ragged = layout == "TND"
    batch = _SLOTS if ragged else query.shape[0]  # other lengths may be more
    rows = query.shape[0] if ragged else query.shape[2 if layout == "BNSD" else 1]
    table = given.get("block_table")
    if table is not None:
        page = key.shape[1] if key.dim() == 3 else key.shape[2]
        keys = table.shape[-1] * page
    else:
        keys = key.shape[0] if ragged else key.shape[2 if layout == "BNSD" else 1]
    return batch, rows * heads // max(1, key_heads), keys


def _infer_elements(signature: Signature) -> Callable[[Arguments], int]:
    def elements(given: Arguments) -> int:
        heads = given[signature.roles["HEADS"]]
        key_heads = given["num_key_value_heads"] or heads
        depth, width = _head_sizes(given, heads, key_heads)
        rope = given.get("query_rope")
        if rope is not None:
            depth += rope.shape[-1] // heads if given["input_layout"] == "BSH" else rope.shape[-1]
        batch, rows, keys = _sizes(given, heads, key_heads)
        return _forward_elements(batch * key_heads, rows, keys, depth, width)

    return elements


def _flash_elements(given: Arguments) -> int:
    heads, key_heads = given["head_num"], _key_heads(given)
    batch, rows, keys = _sizes(given, heads, key_heads)
    return _forward_elements(batch * key_heads, rows, keys, *_head_sizes(given, heads, key_heads))


def _flash_grad_elements(given: Arguments) -> int:
    heads, key_heads = given["head_num"], _key_heads(given)
    batch, _, keys = _sizes(given, heads, key_heads)
    depth, width = map(_padded, _head_sizes(given, heads, key_heads))
    size = _padded(max(1, keys)) * (depth + width + 1) + 2 * depth + width
    return _most_elements(batch * key_heads, size)


def _latent_elements(given: Arguments) -> int:
    query, cache, table = given["q_nope"], given["ctkv"], given["block_tables"]
    key_heads, width = given["kv_headnum"], cache.shape[-1]
    depth = query.shape[-1] + given["q_rope"].shape[-1]
    keys = table.shape[-1] * cache.shape[1]
    rows = query.shape[1] // max(1, key_heads)
    return _forward_elements(query.shape[0] * key_heads, rows, keys, depth, width)


# --- the operators ------------------------------------------------------------------------------


def _flash_backward(ctx: Any, grad: Tensor, *others: Tensor) -> tuple[Any, ...]:
    query, key, value, mask, result, most, total, seed = ctx.saved_tensors
    grads = torch.ops.npu.npu_fusion_attention_grad_v3(
        query,
        key,
        value,
        grad,
        atten_mask=mask,
        softmax_max=most,
        softmax_sum=total,
        attention_in=result,
        seed=seed,
        **ctx.arguments,
    )
    return (*grads[:3], *(None for _ in range(ctx.count - 3)))


_KEPT = (
    "head_num", "input_layout", "keep_prob", "pre_tockens", "next_tockens", "inner_precise",
    "actual_seq_qlen", "actual_seq_kvlen", "sparse_mode",
)  # fmt: skip


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    given = _flash_operator.bound(inputs, {})
    tensors = (given[name] for name in ("query", "key", "value", "atten_mask"))
    ctx.save_for_backward(*tensors, *output[:3], output[4])
    ctx.arguments = {name: given[name] for name in _KEPT} | {"scale_value": given["scale"]}
    ctx.count = len(inputs)
    ctx.mark_non_differentiable(*output[1:])


_flash_operator = NpuOperator(FLASH, _flash, _flash_elements, [torch.Tag.nondeterministic_seeded])

FUSED: dict[str, NpuOperator] = {
    INFER.name: NpuOperator(INFER, _infer("num_heads", "softmax_lse_flag"), _infer_elements(INFER)),
    INFER_V2.name: NpuOperator(
        INFER_V2, _infer("num_query_heads", "return_softmax_lse"), _infer_elements(INFER_V2)
    ),
    INCRE.name: NpuOperator(INCRE, _incre, _infer_elements(INCRE)),
    FLASH.name: _flash_operator,
    FLASH_GRAD.name: NpuOperator(FLASH_GRAD, _flash_grad, _flash_grad_elements),
    LATENT.name: NpuOperator(LATENT, _latent, _latent_elements),
}
"""Every operator by its name with namespace."""

ops.register_autograd(FLASH.name, _flash_backward, setup_context=_keep)


class PagedAttention:
    """`npu::_npu_paged_attention`: writes attention over pages into its `out`. `context_lens` is a
    tensor of the host, whose values count when it is called, as torch_npu's; or one where the query
    is, which is read when the kernel runs.

    Attributes:
        default: the overload that programs call.
        on_device, on_host: those that run the kernel.
    """

    def __init__(self) -> None:
        namespace, _, bare = PAGED.partition("::")
        self._library = library = ops.Library(namespace)
        library.define(f"{bare}({PAGED_ARGUMENTS}) -> ()")
        library.define(f"{bare}_get_workspace({PAGED_ARGUMENTS}) -> Tensor")
        kernels = [_define_kernel(each) for each in (PAGED_ON_DEVICE, PAGED_ON_HOST)]
        packet = getattr(getattr(torch.ops, namespace), bare)
        self.kernels, self.default = kernels, packet.default
        self.on_device, self.on_host = packet.tensor, packet.lengths
        library.impl(bare, self._run, "CompositeExplicitAutograd")
        library.impl(f"{bare}_get_workspace", self.max_workspace, "CompositeExplicitAutograd")
        torch.library.register_fake(PAGED, self._check, lib=library)

    def form(self, args: Sequence[Any], lengths: Callable[[Tensor], list[int]]) -> Any:
        """Return the overload that runs a call with these arguments by position, and its arguments;
        `lengths` reads a tensor of the host.
        """
        query, given = args[0], args[7]
        if query.device == given.device or given.device.type != "cpu":
            return self.on_device, args
        if given.dim() != 1 or given.dtype not in (torch.int32, torch.int64):
            raise ContractError(
                f"{PAGED}: context_lens must be int32 or int64, with one length for each sequence,"
                f" got {given.dtype} {list(given.shape)}"
            )
        return self.on_host, (*args[:7], lengths(given), *args[8:])

    def _run(self, *args: Any, **kwargs: Any) -> None:
        overload, given = self.form(args, torch.Tensor.tolist)
        overload(*given, **kwargs)

    def _check(self, *args: Any, **kwargs: Any) -> None:
        """Check a call with tensors that have no values."""
        lengths = torch.empty_like(args[7], device=args[0].device)
        self.on_device(*args[:7], lengths, *args[8:], **kwargs)

    def max_workspace(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return a workspace for a call with these tensors and any lengths, uint8."""
        query, keys, values, key_heads, heads, _, table = args[:7]
        rows = heads // max(1, key_heads)
        elements = _forward_elements(
            query.shape[0] * key_heads,
            rows,
            table.shape[-1] * keys.shape[1],
            keys.shape[-1],
            values.shape[-1],
        )
        size = 8 if query.dtype is torch.float64 else 4
        return query.new_empty(elements * size, dtype=torch.uint8)


PAGED_ATTENTION = PagedAttention()
