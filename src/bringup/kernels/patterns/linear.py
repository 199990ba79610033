"""Linear layers with frozen weights: those over one input become one, and weights are packed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from bringup import ir, kernels, passes
from bringup.kernels.patterns._support import described, is_frozen, refuse_writers, require

_INPUTS = {"aten::addmm": "mat1", "aten::mm": "self"}


class MergeProjections(passes.FusionBasePass):
    """Products (`mm`, `addmm`) of one input with frozen weights -> one product and a split.

    Does nothing where weights are not constants: joining them at every call costs more than it
    saves.
    """

    def run(self, graph: ir.Graph, context: passes.PassContext) -> None:
        """Merge every group of at least two."""
        refuse_writers(graph)
        groups: dict[object, list[ir.Node]] = defaultdict(list)
        layers = [(node, x) for op_type, x in _INPUTS.items() for node in graph.find(op_type)]
        require(bool(layers), f"the graph has no {' or '.join(_INPUTS)}")
        for node, x in layers:
            try:
                _require_frozen(node)
            except passes.PassSkipException as reason:
                context.refuse(node.name, str(reason))
                continue
            groups[node.op_type, _source(node.argument(x))].append(node)
        for group in groups.values():
            first = group[0]
            if len(group) > 1:
                _merge(graph, first.op_type, group, context)
            else:
                context.refuse(first.name, f"no other {first.op_type} reads its input")


def _require_frozen(node: ir.Node) -> None:
    require(is_frozen(node.argument("mat2")), "the weight is no constant")
    if node.op_type == "aten::mm":
        return
    _require_plain(node)
    require(is_frozen(node.argument("self")), "the bias is no constant")


def _require_plain(node: ir.Node) -> None:
    """That an addmm is a linear layer."""
    bias = node.argument("self")
    is_plain = node.argument("beta") == 1 and node.argument("alpha") == 1
    require(is_plain, "the bias or the product is scaled")
    desc = bias.desc if isinstance(bias, ir.Value) else None
    require(desc is not None and desc.shape.rank == 1, "the bias is not one number per column")


def _source(value: object) -> object:
    """Return what a matrix looks at: several views of one tensor in one shape are one input."""
    assert isinstance(value, ir.Value)
    node = value.node
    if node.op_type in ("aten::view", "aten::_unsafe_view") and value.desc is not None:
        return node.argument("self"), value.desc.shape
    return value


def _merge(
    graph: ir.Graph, op_type: str, group: list[ir.Node], context: passes.PassContext
) -> None:
    first = group[0]
    op = graph.inserting_before(first).op
    weight = op("aten::cat", [node.argument("mat2") for node in group], 1)
    if op_type == "aten::addmm":
        bias = op("aten::cat", [node.argument("self") for node in group])
        merged = op(op_type, bias, first.argument("mat1"), weight)
    else:
        merged = op(op_type, first.argument("self"), weight)
    widths = [node.output.desc.shape[1] for node in group if node.output.desc is not None]
    parts = op("aten::split_with_sizes", merged, widths, 1, outputs=len(widths))
    assert isinstance(parts, tuple)
    passes.report_fuse(group, [parts[0].value.node], context)
    for node, part in zip(group, parts, strict=True):
        graph.replace_all_uses(node.output, part)
    graph.erase_dead(*group)


class PackLinear(passes.FusionBasePass):
    """A product (`mm`, `addmm`) with a frozen weight, and the activation behind it ->
    `bringup::packed_linear` over the weight laid out in panels, or `bringup::mkl_linear`.

    Layers that share a weight share its panels. Other readers read the weight as it was.

    What weights become is said by the option `weights`: "float32" (as they are), "bfloat16", "int8"
    (only the weight is rounded) or "w8a8" (`packed_linear_w8a8`); for single products by
    `weight_dtypes`, which maps the names of their nodes to the same words.

    Where MKL or torch's own product was measured to be faster (`_linear_choice`), it is used, over
    the weight as that is fastest. The option `autotune` set to False packs without measuring;
    `narrow_later` counts panels as the bfloat16 that they may become; without `stays_in_process`
    nothing is packed that could not be moved.
    """

    def run(self, graph: ir.Graph, context: passes.PassContext) -> None:
        """Try every product in order: what is packed for the first is there for the others."""
        products = [node for node in graph.nodes if node.op_type in _INPUTS]
        require(bool(products), f"the graph has no {' or '.join(_INPUTS)}")
        kernels.load()
        packing = _Packing(graph, context)
        for node in products:
            try:
                packing.pack(node)
            except passes.PassSkipException as reason:
                context.refuse(node.name, str(reason))


_ACTIVATIONS = {
    ("aten::relu", None): "relu",
    ("aten::silu", None): "silu",
    ("aten::gelu", "none"): "gelu",
    ("aten::gelu", "tanh"): "gelu_tanh",
}
_PLAIN = "bringup::packed_linear"
_MKL = "bringup::mkl_linear"
_OPERATORS = {
    "": _PLAIN,  # of the weight's dtype
    "bfloat16": _PLAIN,
    "int8": "bringup::packed_linear_int8",
    "w8a8": "bringup::packed_linear_w8a8",
}
_VIEWS = ("aten::view", "aten::_unsafe_view")
_Op = Callable[..., object]


class _Epilogue(NamedTuple):
    """The activation that reads a product, and what it is called."""

    node: ir.Node
    name: str


class _Packing:
    """Panels of one graph, and the products that read them."""

    def __init__(self, graph: ir.Graph, context: passes.PassContext) -> None:
        self._graph = graph
        self._context = context
        self._aliases = ir.AliasAnalysis(graph)
        self._packed: dict[object, tuple[object, ...]] = {}
        options = context.options
        self._best: dict[tuple[int | None, int, int, str], str] = {}
        self._measures = bool(options.get("autotune", True))
        self._may_be_narrow = bool(options.get("narrow_later", False))
        self._may_be_mkl = bool(options.get("stays_in_process", False))
        self._default_form = _checked_form(options.get("weights") or "")
        given = options.get("weight_dtypes") or {}
        assert isinstance(given, Mapping), "a mapping of node names"
        self._forms = {str(name): _checked_form(form) for name, form in given.items()}

    def pack(self, node: ir.Node) -> None:
        """Put the packed product in the place of one product and of the activation behind it."""
        x, weight = node.argument(_INPUTS[node.op_type]), node.argument("mat2")
        bias = node.argument("self") if node.op_type == "aten::addmm" else None
        assert isinstance(weight, ir.Value), "the schema says so"
        if bias is not None:
            _require_plain(node)
        require(is_frozen(weight), "the weight is no constant")
        writer = self._aliases.writer_of(weight)
        require(writer is None, f"the weight is written by {writer.name if writer else ''!r}")
        known = described([x, weight, *([bias] if bias is not None else [])])
        depth, width = known[1].shape
        is_known = known[1].shape.is_static and ir.same_size(known[0].shape[1], depth)
        require(is_known, f"the weight is {known[1].shape}")
        if bias is not None:
            require(ir.same_size(known[2].shape[0], width), "the bias is broadcast")

        form = self._form_of(node, known[1].dtype)
        layout = self._best_layout(node, weight, known[0]) if form == "" and self._measures else ""
        if layout == "columns":
            self._keep_product(node, weight)
            return
        epilogue = _epilogue_of(node.output)
        tail = (bias, epilogue.name if epilogue is not None else "none")
        op = self._graph.inserting_before(node).op
        if layout == "mkl":
            packed = self._mkl_product(op, x, weight, known[0].shape[0], *tail)
        else:
            packed = self._panel_product(op, x, weight, form, *tail)
        assert isinstance(packed, ir.TensorHolder)
        replaced = [node] if epilogue is None else [node, epilogue.node]
        passes.report_fuse(replaced, [packed.value.node], self._context)
        self._graph.replace_all_uses(node.output, packed)
        if epilogue is not None:
            source = epilogue.node.argument("self")
            self._graph.replace_all_uses(epilogue.node.output, source)
        self._graph.erase_dead(*replaced)

    def _mkl_product(
        self, op: _Op, x: object, weight: ir.Value, rows: object, bias: object, activation: str
    ) -> object:
        def make() -> tuple[object, ...]:
            return (op("bringup::pack_weight_mkl", op("aten::t", weight), rows),)

        assert weight.desc is not None, "it was described"
        packed = self._made(("mkl", rows), weight, make)
        return op(_MKL, x, *packed, bias, int(weight.desc.shape[1]), activation)

    def _panel_product(
        self, op: _Op, x: object, weight: ir.Value, form: str, bias: object, activation: str
    ) -> object:
        from bringup.kernels._linear import PANEL  # needs torch, which listing passes does not

        def make() -> tuple[object, ...]:
            rows = op("aten::t", weight)
            if _OPERATORS[form] == _PLAIN:
                import torch  # which listing passes does without

                dtype = torch.bfloat16 if form == "bfloat16" else None
                return (op("bringup::pack_weight", rows, dtype),)
            made = op("bringup::pack_weight_int8", rows)
            assert isinstance(made, tuple)
            return made

        assert weight.desc is not None, "it was described"
        padding = -int(weight.desc.shape[1]) % PANEL
        panels = self._made(form, weight, make)
        return op(_OPERATORS[form], x, *panels, bias, padding, activation)

    def _best_layout(self, node: ir.Node, weight: ir.Value, x: ir.TensorDesc) -> str:
        """Return `_linear_choice.best_layout`; `PassSkipException` where the weight lies so."""
        from bringup.kernels import _linear_choice as choice  # needs torch

        desc = weight.desc
        assert desc is not None, "it was described"
        if desc.device != "cpu":
            return choice.PANELS
        rows = x.shape[0] if isinstance(x.shape[0], int) else None
        depth, width = (int(size) for size in desc.shape)
        asked = rows, depth, width, desc.dtype
        if asked not in self._best:
            self._best[asked] = choice.best_layout(
                *asked, may_be_narrow=self._may_be_narrow, may_be_mkl=self._may_be_mkl
            )
        best = self._best[asked]
        if best in (choice.PANELS, choice.MKL):
            return best
        lies_in_rows = ir.same_size(desc.strides[-1], 1)
        require(best == choice.COLUMNS and not lies_in_rows, f"{node.op_type} was measured faster")
        return best

    def _keep_product(self, node: ir.Node, weight: ir.Value) -> None:
        """torch's own product over columns that lie next to each other."""
        op = self._graph.inserting_before(node).op
        (columns,) = self._made("columns", weight, lambda: (op("aten::contiguous", weight),))
        bias = () if node.op_type == "aten::mm" else (node.argument("self"),)
        product = op(node.op_type, *bias, node.argument(_INPUTS[node.op_type]), columns)
        assert isinstance(product, ir.TensorHolder)
        passes.report_fuse([node], [product.value.node], self._context)
        self._graph.replace_all_uses(node.output, product)
        self._graph.erase_dead(node)

    def _form_of(self, node: ir.Node, dtype: str) -> str:
        """Return what the weight of a product becomes: a key of `_OPERATORS`."""
        form = self._forms.get(node.name, self._default_form)
        require(
            form in ("", "float32") or dtype == "float32",
            f"a {dtype} weight does not become {form}",
        )
        return "" if form == "float32" else form

    def _made(
        self, layout: object, weight: ir.Value, make: Callable[[], tuple[object, ...]]
    ) -> tuple[object, ...]:
        """Return a weight in a layout: made before its first product, read by all."""
        key = layout, _matrix_of(weight)
        if key not in self._packed:
            self._packed[key] = make()
        return self._packed[key]


def _checked_form(form: object) -> str:
    """Return what an option says that weights become. Raises `PassError` for what they cannot."""
    known = ("float32", "bfloat16", "int8", "w8a8")
    if form != "" and form not in known:
        raise passes.PassError(f"weights cannot become {form!r}: expected one of {list(known)}")
    return str(form)


def _matrix_of(weight: ir.Value) -> object:
    """Return the identity of a matrix: views that transpose one value are equal."""
    if weight.node.op_type == "aten::t":
        return "transposed", weight.node.argument("self")
    return weight


def _epilogue_of(product: ir.Value) -> _Epilogue | None:
    """Return the activation that alone reads a product, or its only view."""
    users = product.users
    if len(users) == 1 and users[0].op_type in _VIEWS:
        users = users[0].output.users
    if len(users) != 1:
        return None
    node = users[0]
    approximate = node.argument("approximate") if node.op_type == "aten::gelu" else None
    name = _ACTIVATIONS.get((node.op_type, approximate))  # type: ignore[arg-type]
    return None if name is None else _Epilogue(node, name)
