"""Attention written out in products, with repeated key heads, or with a causal mask as data. The
passes walk the graph: views, copies and expansions stand between, in many orders.
"""

from __future__ import annotations

from dataclasses import dataclass

from bringup import ir, passes
from bringup.kernels.patterns._support import (
    KNOWN_AT_RUN_TIME,
    NodePass,
    depends_on_sizes_alone,
    described,
    descriptions,
    is_frozen,
    is_scalar,
    last_dimension,
    require,
    rows_are_dense,
    single_user,
    without_shape_changes,
)

_FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
_VIEWS = ("aten::view", "aten::_unsafe_view", "aten::reshape")


@dataclass(frozen=True)
class _Found:
    """softmax(q k^T * scale + mask) v, and the [B, H, S, D] value that it computes."""

    q: ir.Value
    k: ir.Value
    v: ir.Value
    mask: ir.Value | None
    scale: object  # a number, or a tensor of one
    result: ir.Node


class Attention(NodePass):
    """bmm, scale, mask, softmax, bmm -> the fused attention of cpu."""

    op_types = ("aten::_softmax",)

    def rewrite(self, node: ir.Node) -> None:
        """Put the operator where the result of the attention is."""
        found = _around(node)
        op = self.graph.inserting_before(found.result).op
        q: object = found.q
        scale = found.scale
        if isinstance(scale, ir.Value):  # known to the run alone
            q, scale = op("aten::mul.Tensor", found.q, scale), 1.0
        fused = op(_FLASH, q, found.k, found.v, attn_mask=found.mask, scale=scale)
        assert isinstance(fused, tuple)
        passes.report_fuse([node, found.result], [fused[0].value.node], self.context)
        self.graph.replace_all_uses(found.result.output, fused[0])
        self.graph.erase_dead(found.result)


def _around(softmax: ir.Node) -> _Found:
    """Return the attention around a softmax; `PassSkipException` that says why there is none."""
    desc = softmax.output.desc
    if desc is None or desc.shape.rank != 4 or not last_dimension(softmax.argument("dim"), desc):
        raise passes.PassSkipException("the softmax is not over the last of four dimensions")
    scores, mask = _without_mask(softmax.inputs[0])
    scores, scale = _without_scale(scores)
    product, mixing = _product(scores), _next_product(softmax.output)
    if product is None or mixing is None:
        raise passes.PassSkipException("there is no product of matrices before and behind it")
    q, k_turned = (without_shape_changes(value, 4) for value in product.inputs)
    v = without_shape_changes(mixing.inputs[1], 4)
    k = _untransposed(k_turned)
    result = single_user(mixing.output)
    if q is None or k is None or v is None or result is None:
        raise passes.PassSkipException(
            "query, key, value or result are no views of four dimensions"
        )
    known = described((q, k, v, result.output, *([] if mask is None else [mask])))
    require(known[0].device == "cpu", f"the tensors are on {known[0].device}")
    _require_shapes(known[:4])
    require(result.op_type in _VIEWS, f"the result is read by {result.op_type}, not by a view")
    require(
        _heads_stay_apart(product, mixing, known, desc), "the products are not one for every head"
    )
    require(all(map(rows_are_dense, known[:3])), "query, key or value have gaps in memory, or none")
    if mask is not None:
        _require_mask(known[4].shape, desc.shape)
    return _Found(q, k, v, mask, scale, result)


def _without_mask(scores: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    node = scores.node
    if node.op_type != "aten::add.Tensor" or node.argument("alpha") != 1:
        return scores, None
    left, right = node.argument("self"), node.argument("other")
    if not (isinstance(left, ir.Value) and isinstance(right, ir.Value)):
        return scores, None
    if _product(_without_scale(right)[0]) is not None:
        left, right = right, left
    return left, right


def _without_scale(scores: ir.Value) -> tuple[ir.Value, object]:
    """Return what is scaled and the factor: a number, or a tensor of one known at run time."""
    node = scores.node
    if node.op_type not in ("aten::mul.Tensor", "aten::div.Tensor"):
        return scores, 1.0
    inner, factor = node.argument("self"), node.argument("other")
    if not isinstance(inner, ir.Value):
        return scores, 1.0
    if isinstance(factor, (int, float)) and factor != 0:
        return inner, float(factor) if node.op_type == "aten::mul.Tensor" else 1 / factor
    if is_scalar(factor) and node.op_type == "aten::mul.Tensor":
        return inner, factor
    return scores, 1.0


def _product(scores: ir.Value) -> ir.Node | None:
    flat = without_shape_changes(scores, 3)
    return flat.node if flat is not None and flat.node.op_type == "aten::bmm" else None


def _next_product(weights: ir.Value) -> ir.Node | None:
    """Return the product that mixes values, if it alone reads the weights."""
    value = weights
    while (user := single_user(value)) is not None:
        if user.op_type == "aten::bmm":
            return user if user.inputs[0] is value else None
        if len(user.outputs) != 1 or without_shape_changes(user.output, 3) is None:
            flat = user.output.desc if len(user.outputs) == 1 else None
            if flat is None or user.op_type not in ("aten::clone", "aten::expand"):
                return None
        value = user.output
    return None


def _untransposed(turned: ir.Value | None) -> ir.Value | None:
    if turned is None or turned.node.op_type != "aten::transpose.int":
        return None
    node = turned.node
    dims = {node.argument("dim0"), node.argument("dim1")}
    source = node.argument("self")
    if not isinstance(source, ir.Value) or dims not in ({2, 3}, {-1, -2}, {2, -1}, {3, -2}):
        return None
    return without_shape_changes(source, 4)


def _require_shapes(known: list[ir.TensorDesc]) -> None:
    q, k, v, result = (desc.shape for desc in known)
    require(result.same_as(q), f"the result is {result}, the query {q}")
    require(k.same_as(v), f"the key is {k}, the value {v}")
    outer = all(ir.same_size(q[index], k[index]) for index in (0, 1, 3))
    require(outer, f"the query is {q}, the key {k}")


def _heads_stay_apart(
    product: ir.Node, mixing: ir.Node, known: list[ir.TensorDesc], scores: ir.TensorDesc
) -> bool:
    """Return whether the products are over [B * H, ...], which a view may cut otherwise."""
    q, k, v, result = (desc.shape.dims[2:] for desc in known[:4])
    expected: dict[ir.Value, tuple[ir.Dim, ...]] = {
        product.inputs[0]: q,
        product.inputs[1]: k[::-1],
        product.output: scores.shape.dims[2:],
        mixing.inputs[0]: scores.shape.dims[2:],
        mixing.inputs[1]: v,
        mixing.output: result,
    }
    return all(
        (desc := value.desc) is not None and ir.Shape(desc.shape.dims[1:]).same_as(ir.Shape(sizes))
        for value, sizes in expected.items()
    )


def _require_mask(mask: ir.Shape, scores: ir.Shape) -> None:
    reason = f"a mask of {mask} is not one for scores of {scores}"
    require(mask.rank == 4, reason)
    for index, (size, whole) in enumerate(zip(mask, scores, strict=True)):
        fits = ir.same_size(size, whole) or (index < 2 and ir.same_size(size, 1))
        require(fits, reason)


class GroupedHeads(NodePass):
    """Fused attention reads key and value heads that were repeated for it as they were before."""

    op_types = (_FLASH,)

    def rewrite(self, node: ir.Node) -> None:
        """Rewrite where key and value are repeated the same number of times."""
        key, value = (_unrepeated(node.argument(name), name) for name in ("key", "value"))
        known = descriptions((key, value))
        same = known[0].shape.same_as(known[1].shape)
        require(same, f"the heads before are {known[0].shape} of keys, {known[1].shape} of values")
        require(all(map(rows_are_dense, known)), "the heads have gaps in memory, or none")
        repeated = [item.node for item in node.inputs[1:3]]
        passes.report_fuse(repeated, [node], self.context)
        self.graph.set_argument(node, "key", key)
        self.graph.set_argument(node, "value", value)
        self.graph.erase_dead(*repeated)


def _unrepeated(heads: object, name: str) -> ir.Value:
    """[B, K, S, D] for the [B, K * n, S, D] made of it by expanding a dimension behind K."""
    assert isinstance(heads, ir.Value), "the schema says so"
    value = heads
    while value.node.op_type in (*_VIEWS, "aten::clone"):
        source = value.node.argument("self")
        assert isinstance(source, ir.Value), "the schema says so"
        value = source
    is_expanded = value.node.op_type == "aten::expand"
    inserted = value.node.argument("self") if is_expanded else None
    is_inserted = isinstance(inserted, ir.Value) and inserted.node.op_type == "aten::unsqueeze"
    require(is_inserted, f"the {name} heads are not repeated")
    assert isinstance(inserted, ir.Value), "it is unsqueezed"
    source, dim = inserted.node.argument("self"), inserted.node.argument("dim")
    whole, wide, narrow = (desc.shape.dims for desc in descriptions((heads, value, source)))
    heads_repeat = len(whole) == 4 and len(narrow) == 4 and dim in (2, -3)
    require(heads_repeat, f"what is repeated of the {name} is not its heads")
    repeats = wide[2]
    require(
        isinstance(repeats, int), f"the {name} heads are repeated by a size {KNOWN_AT_RUN_TIME}"
    )
    wanted = ((*narrow[:2], repeats, *narrow[2:]), (narrow[0], narrow[1] * repeats, *narrow[2:]))
    fits = all(
        ir.Shape(got).same_as(ir.Shape(want))
        for got, want in zip((wide, whole), wanted, strict=True)
    )
    require(fits, f"{ir.Shape(whole)} is not {ir.Shape(narrow)} with repeated heads")
    assert isinstance(source, ir.Value), "it has a description"
    return source


class CausalMask(NodePass):
    """Fused attention with a constant mask that is the causal one -> the causal attention.

    Masks are constants where sizes are static and nothing else enters them (see `FoldFactories`).
    Where sizes differ from call to call there are no numbers to compare, and the mask stays data.
    """

    op_types = (_FLASH,)

    def run(self, graph: ir.Graph, context: passes.PassContext) -> None:
        """Compare every constant mask once."""
        self._answers: dict[object, bool] = {}
        super().run(graph, context)

    def rewrite(self, node: ir.Node) -> None:
        """Drop the mask and say that the attention is causal."""
        mask = node.argument("attn_mask")
        require(isinstance(mask, ir.Value), "the attention has no mask")
        assert isinstance(mask, ir.Value), "it has one"
        if not is_frozen(mask):
            alone = depends_on_sizes_alone(mask)
            why = f"is made of sizes {KNOWN_AT_RUN_TIME}" if alone else "depends on an input"
            raise passes.PassSkipException(f"the mask {why}, so it is no constant")
        if mask not in self._answers:
            self._answers[mask] = _is_causal(mask.node.payload)
        require(self._answers[mask], "the mask is not the causal one")
        passes.report_fuse([node], [node], self.context)
        self.graph.set_argument(node, "attn_mask", None)
        self.graph.set_argument(node, "is_causal", True)
        self.graph.erase_dead(mask.node)


def _is_causal(mask: object) -> bool:
    """Match zeros up to the diagonal, minus infinity (or the least number) behind it; square."""
    import torch  # `bringup passes list` does without

    if not isinstance(mask, torch.Tensor) or mask.dim() != 4 or mask.shape[2] != mask.shape[3]:
        return False
    behind = torch.ones(mask.shape[2:], dtype=torch.bool, device=mask.device).triu(1)
    least = torch.finfo(mask.dtype).min
    return bool(((mask <= least) == behind).all()) and bool(
        (mask.masked_fill(behind, 0) == 0).all()
    )
