"""The table: which operator has its kernel where, and what the kernel is called with."""

from __future__ import annotations

from bringup.devices import POINTWISE, Operator
from bringup_opencl._images import IMAGES
from bringup_opencl._rows import ANY, FLOATING, MOVED, NUMBERS, each, lanes, raw, reduction

__all__ = ["OPERATORS", "Operator"]

_INDEXED = {"T": "self", "I": "index"}
_TARGETS = {"T": "self", "I": "target"}
# What a kernel says of a call that it cannot compute.
_INDEX_FAULT = "fault('index: an element is outside dimension dim of self')"
_TARGET_FAULT = "fault('target: an element is no class of self, and not ignore_index')"


def _matrix(name: str, rank: int) -> str:
    batch = f"stride({name}, 0)" if rank == 3 else "0"
    return f"ptr({name}), {batch}, stride({name}, -2), stride({name}, -1)"


def _tiles(batches: str, only: str = "1") -> tuple[str, str, str]:
    """Return a block for each tile of the result; where not `only`, the operator falls back."""
    columns = f"((size(out, -1) + 63) // 64) * ({batches} > 0) * (size(out, -2) > 0)"
    return f"({columns} + 1) * ({only}) - 1", "(size(out, -2) + 63) // 64", batches


def _product(name: str, rank: int) -> Operator:
    operands = f"{_matrix('self', rank)}, {_matrix('mat2', rank)}, {_matrix('out', rank)}"
    args = f"{operands}, size(out, -2), size(out, -1), size(self, -1)"
    batches = "size(out, 0)" if rank == 3 else "1"
    return raw(
        name, "matmul.cl:product", args, _tiles(batches), block=(8, 8), strided="self mat2 out"
    )


def _added(name: str, first: str, second: str, rank: int) -> Operator:
    args = (
        f"ptr(self), numel(self), size(self, -1), {_matrix(first, rank)}, {_matrix(second, rank)}, "
        f"ptr(out), size(out, -2), size(out, -1), size({first}, -1), f32(beta), f32(alpha)"
    )
    batches = "size(out, 0)" if rank == 3 else "1"
    # What is added is one row or one element, or as large as the result.
    grid = _tiles(batches, "ndim(self) == 1 or (ndim(self) > 0 and numel(self) == numel(out))")
    return raw(name, "matmul.cl:added", args, grid, block=(8, 8), strided=f"{first} {second}")


def _row(name: str, entry: str, argument: str, more: str = "", only: str = "1") -> Operator:
    """Return what goes along `dim`; where not `only`, the operator falls back."""
    second = ", ptr(output)" if "backward" in entry else ""
    n = f"size({argument}, dim)"
    rows = f"(numel(out) // ({n} + ({n} == 0)))"
    args = f"ptr({argument}){second}, ptr(out), {n}, stride({argument}, dim), {rows}"
    shared = lanes(n, rows)
    blocks = f"({rows} * {shared} + 63) // 64"
    grid = f"({blocks} + 1) * ({only}) - 1"
    return raw(name, f"softmax.cl:{entry}", f"{args}, i32({shared}){more}", grid)


_LINES = "ptr(self), ptr(index), size(self, dim), stride(self, dim), size(index, dim)"


def _index() -> Operator:
    """Return `x[i, :, j]`: of each dimension of x its indices, all of one shape."""
    places = range(_INDEXED_DIMS)
    inner = range(_INDEX_DIMS)
    outer = range(_INDEXED_DIMS - 1 + _INDEX_DIMS)
    more = "-1"  # of the indices' dimensions, where there are too many
    for d in places:
        more = f"size(indices[{d}], {_INDEX_DIMS}, {more})"
    args = [
        "ptr(self)", *(f"size(self, {d}, 1)" for d in places),
        *(f"stride(self, {d}, 0)" for d in places), *(f"ptr(indices[{d}])" for d in places),
        *(f"stride(indices[{d}], {i}, 0)" for d in places for i in inner), "ptr(out)",
        *(f"size(out, {d}, 1)" for d in outer), *(f"stride(out, {d}, 0)" for d in outer),
        "i32(ndim(self)), i32(ndim(out)), numel(out)",
        "fault('indices: an element is outside its dimension of self')",
    ]  # fmt: skip
    taken = f"(ndim(self) <= {_INDEXED_DIMS} and {more} == -1)"
    return raw(
        "index.Tensor",
        "indexing.cl:index_elements",
        ", ".join(args),
        f"({each('numel(out)')} + 1) * {taken} - 1",
        strided="self indices out",
        dtypes={"T": "self", "I": "indices"},
        supports=MOVED,
    )


def _where_alike(blocks: str, more: str = "1") -> str:
    """Return the blocks where the tensor and its index are alike but along `dim`: no side of the
    index is longer, so that one shorter side shows in the number of elements.
    """
    same = "numel(self) * size(index, dim) == numel(index) * size(self, dim)"
    return f"({blocks} + 1) * ({same} and {more}) - 1"


def _lying(name: str, dims: int = 3) -> str:
    return ", ".join([f"ptr({name})", *(f"stride({name}, {d})" for d in range(dims))])


def _threads_of(name: str) -> str:
    """Return the threads for the rows of a tensor's heads: attention.cl's SOME to a thread."""
    return f"size({name}, 0) * size({name}, 1) * ((size({name}, 2) + 3) // 4)"


def _attention(backward: bool) -> Operator:
    """Return flash attention, or its gradients; where it cannot be, the operator falls back."""
    tensors, results = ["query", "key", "value"], ["out0", "out1"]
    threads = [_threads_of("query")]
    if backward:
        tensors = ["grad_out", *tensors, "out", "logsumexp"]
        results = ["out0", "out1", "out2"]
        threads.append(_threads_of("key"))
    mask = [f"stride(attn_mask, {d}, 0) * (size(attn_mask, {d}, 1) > 1)" for d in range(-4, 0)]
    args = [
        *map(_lying, (*tensors, *results)), *threads, "ptr(attn_mask)", *mask,
        "i32(has(attn_mask))", "size(query, 1)", "size(key, 1)", "size(query, 2)", "size(key, 2)",
        "i32(size(query, 3))", "i32(size(value, 3))", "f32(scale)", "i32(has(scale))",
        "i32(is_causal)", "f32(dropout_p)", "fault('dropout_p: this attention has no dropout')",
    ]  # fmt: skip
    dense = [f"stride({name}, 3) == 1" for name in tensors if name != "logsumexp"]
    sizes = ["size(query, 3) <= 256", "size(value, 3) <= 256"]
    every = " and ".join([*dense, *sizes])
    blocks = f"({' + '.join(threads)} + {_THREADS - 1}) // {_THREADS}"
    return raw(
        f"_scaled_dot_product_flash_attention_for_cpu{'_backward' if backward else ''}",
        f"attention.cl:attention{'_backward' if backward else ''}", ", ".join(args),
        f"({blocks} + 1) * ({every}) - 1", block=_THREADS,
        strided=" ".join([*tensors, "attn_mask", *results]),
    )  # fmt: skip


_THREADS = 16  # of attention in a block
_INDEXED_DIMS, _INDEX_DIMS = 5, 4  # of index_elements in indexing.cl
_PIECES = 30  # tensors that cat.cl takes: a call has at most 64 plain values
_NORMED = "(numel(input) // (numel(out1) + (numel(out1) == 0)))"  # elements of a row
_NORM_SIZE = "(numel(input) // (numel(mean) + (numel(mean) == 0)))"
_NORM_LANES = lanes(_NORM_SIZE, "numel(mean)")
_RMS_ROWS = "numel(rstd) + (numel(rstd) == 0)"

OPERATORS: tuple[Operator, ...] = (
    *POINTWISE,
    *IMAGES,
    # What `copy_` between layouts and dtypes runs.
    Operator("aten::copy.out", ("floating", "integral", "bool"), "src"),
    Operator("aten::isneginf", ("floating",), "self == -inf"),
    Operator("aten::clamp_min", NUMBERS, "max(self, min)"),
    Operator("aten::clamp_max", NUMBERS, "min(self, max)"),
    Operator("aten::bitwise_and.Tensor", ("bool",), "self and other"),
    *(
        Operator(f"aten::random_.{form}", ("integral",), file="random.cl", entry=entry)
        for form, entry in (("default", "random_all"), ("to", "random_to"), ("from", "random_from"))
    ),
    reduction("sum.dim_IntList", "sum", NUMBERS),
    reduction("mean.dim", "mean", FLOATING),
    reduction("amax", "amax", NUMBERS),
    reduction("amin", "amin", NUMBERS),
    reduction("max", "amax", NUMBERS),
    reduction("min", "amin", NUMBERS),
    reduction("max.dim", "max_with_index", NUMBERS),
    reduction("min.dim", "min_with_index", NUMBERS),
    *(reduction(name, "all", ANY) for name in ("all", "all.dim", "all.dims")),
    *(reduction(name, "any", ANY) for name in ("any", "any.dim", "any.dims")),
    *(reduction(name, "prod", NUMBERS) for name in ("prod", "prod.dim_int")),
    reduction("argmax", "argmax", NUMBERS),
    reduction("argmin", "argmin", NUMBERS),
    reduction("linalg_vector_norm", "norm", FLOATING, "norm.cl"),
    _product("mm", 2),
    _product("bmm", 3),
    _added("addmm", "mat1", "mat2", 2),
    _added("baddbmm", "batch1", "batch2", 3),
    _row("_softmax", "softmax", "self", ", i32(0)"),
    # Attention's, which torch would make of five operators.
    _row("_safe_softmax", "softmax", "self", ", i32(1)", "1 - has(dtype)"),
    _row("_log_softmax", "log_softmax", "self"),
    _row("_softmax_backward_data", "softmax_backward", "grad_output"),
    _row("_log_softmax_backward_data", "log_softmax_backward", "grad_output"),
    raw(
        "native_layer_norm", "layer_norm.cl:layer_norm",
        "ptr(input), ptr(weight), ptr(bias), ptr(out0), ptr(out1), ptr(out2), "
        f"{_NORMED}, numel(out1), i32({lanes(_NORMED, 'numel(out1)')}), f32(eps)",
        f"(numel(out1) * {lanes(_NORMED, 'numel(out1)')} + 63) // 64 * (numel(input) > 0) - "
        "(numel(out1) > 0 and numel(input) == 0)",
    ),
    raw(
        "native_layer_norm_backward", "layer_norm.cl:layer_norm_backward",
        "ptr(grad_out), ptr(input), ptr(mean), ptr(rstd), ptr(weight), ptr(out0), ptr(out1), "
        f"ptr(out2), numel(mean), {_NORM_SIZE}, i32({_NORM_LANES})",
        f"((numel(mean) * {_NORM_LANES} + 63) // 64 + ({_NORM_SIZE} + 63) // 64 + 1) * "
        "(numel(input) > 0) - 1",
    ),
    raw(
        "_fused_rms_norm", "rms_norm.cl:rms_norm",
        "ptr(input), ptr(weight), ptr(out0), ptr(out1), "
        "numel(input) // (numel(out1) + (numel(out1) == 0)), f32(eps), i32(has(eps))",
        "numel(out1) * (numel(input) > 0) - (numel(out1) > 0 and numel(input) == 0)",
    ),
    raw(
        "_fused_rms_norm_backward", "rms_norm.cl:rms_norm_backward",
        "ptr(grad_out), ptr(input), ptr(rstd), ptr(weight), ptr(out0), ptr(out1), numel(rstd), "
        f"numel(input) // ({_RMS_ROWS})",
        f"(numel(rstd) + (numel(input) // ({_RMS_ROWS}) + 63) // 64 + 1) * (numel(input) > 0) - 1",
    ),
    raw(
        "index_select", "indexing.cl:index_select",
        "ptr(self), ptr(index), ptr(out), size(self, dim), stride(self, dim), size(out, dim), "
        f"stride(out, dim), numel(out), {_INDEX_FAULT}", each("numel(out)"), dtypes=_INDEXED,
        supports=MOVED,
    ),
    _index(),
    raw(
        "gather", "indexing.cl:gather",
        f"{_LINES}, stride(index, dim), ptr(out), numel(out), {_INDEX_FAULT}",
        _where_alike(each("numel(out)")), dtypes=_INDEXED, supports=MOVED,
    ),
    raw(
        "scatter_add", "indexing.cl:scatter_add",
        f"{_LINES}, stride(index, dim), ptr(src), ptr(out), numel(self), {_INDEX_FAULT}",
        # What is beside an index is not of its line: then the sizes differ, too.
        _where_alike(each("numel(self)"), "numel(index) == numel(src)"), dtypes=_INDEXED,
        supports=NUMBERS,
    ),
    raw(
        "cat", "cat.cl:cat",
        ", ".join(f"ptr(tensors[{i}]), numel(tensors[{i}])" for i in range(_PIECES))
        + ", ptr(out), size(out, dim), stride(out, dim), numel(out)",
        f"({each('numel(out)')} + 1) * (len(tensors) <= {_PIECES}) - 1", dtypes={"T": "tensors"},
        supports=ANY,
    ),
    *(
        raw(
            name, "fills.cl:triangle",
            f"ptr(self), ptr(out), diagonal, size(self, -2), size(self, -1), i32({lower}), "
            "numel(out)", each("numel(out)"), supports=ANY,
        )
        for name, lower in (("tril", 1), ("triu", 0))
    ),
    raw(
        "arange.start_out", "fills.cl:arange", "ptr(out), start, step, numel(out)",
        each("numel(out)"), dtypes={"T": "out"}, supports=("integral",),
    ),
    raw(
        "embedding_dense_backward", "indexing.cl:embedding_backward",
        "ptr(grad_output), ptr(indices), ptr(out), numel(indices), size(out, 1), padding_idx",
        "(size(out, 0) * (size(out, 1) > 0) + 1) * (scale_grad_by_freq == 0) - 1",
        dtypes={"T": "grad_output", "I": "indices"},
    ),
    *map(_attention, (False, True)),
    *(
        raw(
            f"{name}_forward", "nll_loss.cl:nll_loss",
            "ptr(self), ptr(target), ptr(weight), ptr(out0), ptr(out1), reduction, ignore_index, "
            f"{classes}, {inner}, numel(target), {_TARGET_FAULT}", "1", dtypes=_TARGETS,
        )
        for name, classes, inner in (
            ("nll_loss", "size(self, -1)", "1"),
            ("nll_loss2d", "size(self, 1)", "size(self, 2) * size(self, 3)"),
        )
    ),
    *(
        raw(
            f"{name}_backward", "nll_loss.cl:nll_loss_backward",
            "ptr(grad_output), ptr(target), ptr(weight), ptr(total_weight), ptr(out), reduction, "
            f"ignore_index, {classes}, {inner}, numel(out), {_TARGET_FAULT}", each("numel(out)"),
            dtypes=_TARGETS,
        )
        for name, classes, inner in (
            ("nll_loss", "size(self, -1)", "1"),
            ("nll_loss2d", "size(self, 1)", "size(self, 2) * size(self, 3)"),
        )
    ),
)  # fmt: skip
