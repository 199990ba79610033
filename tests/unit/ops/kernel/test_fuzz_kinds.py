"""The fast call is the operator of torch.ops for every kind of operator: lists, optional arguments,
defaults and keywords, several outputs, written arguments, counted sizes; on cpu and npu, under
modes and nested transforms. `test_fuzz.py` goes deeper into one binary operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.ops.contract.test_outputs import POSITIVE
from tests.unit.ops.kernel.test_backward_operator import SUM, SUM_BACKWARD
from tests.unit.ops.kernel.test_fuzz import CONTEXTS, LAYOUTS
from tests.unit.ops.support import ADD, ADD_INPLACE, MUL, MUL_BACKWARD, each, kernel
from torch.utils._pytree import tree_leaves

from bringup import ops
from bringup.errors import BringupError

Call = Callable[..., Any]


@dataclass(frozen=True)
class Kind:
    """One kind of operator.

    Attributes:
        define: makes it in a namespace.
        tensors: how many tensors a call takes.
        calls: ways of calling it with them, each `(operator, tensors) -> result`.
        writes: whether the tensors are its result.
        dtypes: of its tensors.
    """

    define: Callable[[str], ops.KernelOperator]
    tensors: int
    calls: Sequence[Callable[[Call, Sequence[torch.Tensor]], Any]]
    writes: bool = False
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.float64, torch.int32)


def _list(namespace: str) -> ops.KernelOperator:
    backward = ops.kernel_op(
        f"{namespace}::total_backward(Tensor grad, Tensor scale, Tensor[] xs)"
        " -> (Tensor, Tensor[])",
        source=SUM_BACKWARD,
        outputs=(ops.empty_like("scale"), ops.empty_like("xs")),
        checks=ops.same_shape("grad", "xs"),
        dtypes={"T": "grad"},
        kind="device",
    )
    total = ops.kernel_op(
        f"{namespace}::total(Tensor scale, Tensor[] xs) -> Tensor",
        source=SUM,
        outputs=ops.empty("*scale.shape"),
        checks=[ops.same_dtype("scale", "xs"), ops.same_shape("scale", "xs")],
        dtypes={"T": "scale"},
        kind="device",
    )
    total.register_backward(backward.qualified_name, save=("scale", "xs"))
    return total


def _optional(namespace: str) -> ops.KernelOperator:
    return ops.kernel_op(
        f"{namespace}::affine(Tensor x, Tensor? y=None, int n=1, *, float factor=2.0, bool b=False,"
        " str s='a', int[] sizes=[1, 2]) -> Tensor",
        source=each(
            "DATA(7)[i] = DATA(0)[i] * T(DOUBLE(3)) + (args[1] ? DATA(1)[i] : T(INT(2)))"
            " + T(INT(4)) + T(static_cast<const int64_t*>(LIST(6)->data)[0]);"
        ),
        outputs=ops.empty_like("x"),
        checks=[ops.same_shape("x", "y"), ops.same_dtype("x", "y")],
        dtypes={"T": "x"},
        kind="device",
    )


def _several(namespace: str) -> ops.KernelOperator:
    backward = ops.kernel_op(
        f"{namespace}::both_backward(Tensor? grad_p, Tensor x, Tensor y) -> (Tensor, Tensor)",
        source=kernel(
            "for (int64_t i = 0; i < count(TENSOR(1)); ++i) {"
            "  const T grad = args[0] ? DATA(0)[i] : T(0);"
            "  DATA(3)[i] = grad * DATA(2)[i]; DATA(4)[i] = grad * DATA(1)[i];"
            "}"
        ),
        outputs=(ops.empty_like("x"), ops.empty_like("y")),
        checks=ops.same_shape("x", "y"),
        dtypes={"T": "x"},
        kind="device",
    )
    both = ops.kernel_op(
        f"{namespace}::both(Tensor x, Tensor y) -> (Tensor product, Tensor sum, Tensor where)",
        source=each(
            "DATA(2)[i] = DATA(0)[i] * DATA(1)[i]; DATA(3)[i] = DATA(0)[i] + DATA(1)[i];"
            "static_cast<int64_t*>(TENSOR(4)->data)[i] = i;"
        ),
        outputs=(
            ops.empty_like("x", dtype=ops.promote("x", "y")),
            ops.empty_like("x"),
            ops.empty_like("x", dtype=torch.int64),
        ),
        checks=[ops.same_shape("x", "y"), ops.same_dtype("x", "y")],
        dtypes={"T": "x"},
        kind="device",
    )
    both.register_backward(backward.qualified_name, save=("x", "y"), non_differentiable=("sum",))
    return both


def _inplace(namespace: str) -> ops.KernelOperator:
    return ops.kernel_op(
        f"{namespace}::add_(Tensor(a!) x, Tensor y) -> Tensor(a!)",
        source=ADD_INPLACE,
        checks=[ops.same_shape("x", "y"), ops.same_dtype("x", "y")],
        dtypes={"T": "x"},
        kind="device",
    )


def _out(namespace: str) -> ops.KernelOperator:
    backward = ops.kernel_op(
        f"{namespace}::into_backward(Tensor grad, Tensor x, Tensor y) -> (Tensor, Tensor)",
        source=MUL_BACKWARD,
        outputs=[ops.empty_like("x")] * 2,
        checks=ops.same_shape("grad", "x", "y"),
        dtypes={"T": "x"},
        kind="device",
    )
    into = ops.kernel_op(
        f"{namespace}::into(Tensor x, Tensor y, *, Tensor(a!) out) -> Tensor(a!)",
        source=MUL,
        checks=[ops.same_shape("x", "y", "out"), ops.same_dtype("x", "y", "out")],
        dtypes={"T": "x"},
        kind="device",
    )
    into.register_backward(backward.qualified_name, save=("x", "y"), gradients=("x", "y"))
    return into


def _counted(namespace: str) -> ops.KernelOperator:
    return ops.kernel_op(
        f"{namespace}::positive(Tensor x) -> (Tensor, Tensor)",
        source=POSITIVE,
        outputs=(
            ops.empty(ops.at_most("x.numel()")),
            ops.empty(ops.at_most("x.numel()"), dtype=torch.int64),
        ),
        dtypes={"T": "x"},
        kind="device",
    )


def _strided(namespace: str) -> ops.KernelOperator:
    return ops.kernel_op(
        f"{namespace}::strides(Tensor x, Tensor y) -> Tensor",
        source=ADD,
        outputs=ops.empty_like("x", memory_format=torch.preserve_format),
        checks=[ops.same_shape("x", "y"), ops.kernel_checks(), ops.same_dtype("x", "y")],
        dtypes={"T": "x"},
        strided=("x",),
        kind="device",
        release_gil=True,
    )


def _constants(namespace: str) -> ops.KernelOperator:
    return ops.kernel_op(
        f"{namespace}::constants(Tensor x, Scalar a=2, Tensor?[]? t=None, *, Device? d=None,"
        " Layout l=strided, MemoryFormat? m=None, complex c=2.0) -> Tensor",
        source=each(
            "T sum = DATA(0)[i] * T(bringup::number(args[1]).real) + T(INT(4)) + T(bringup::number("
            "args[6]).imaginary);"
            "if (args[3]) sum = sum + T(static_cast<const DLDevice*>(args[3])->device_id);"
            "if (args[5]) sum = sum + T(INT(5));"
            "const auto items = bringup::list<DLTensor>(args[2]);"
            "for (int64_t k = 0; k < items.size(); ++k)"
            "  if (items.has(k)) sum = sum + static_cast<T*>(items[k].data)[i];"
            "DATA(7)[i] = sum;"
        ),
        outputs=ops.empty_like("x", dtype=ops.promote("x")),
        checks=[ops.same_shape("x", "t"), ops.same_dtype("x", "t")],
        dtypes={"T": "x"},
        kind="device",
    )


def _numbers(namespace: str) -> ops.KernelOperator:
    return ops.kernel_op(
        f"{namespace}::numbers(Tensor x) -> (int, Tensor, float, bool)",
        source=kernel(
            "const int64_t size = count(TENSOR(0));"
            "static_cast<int64_t*>(TENSOR(1)->data)[0] = size;"
            "for (int64_t i = 0; i < size; ++i) DATA(2)[i] = DATA(0)[i] + DATA(0)[i];"
            "static_cast<double*>(TENSOR(3)->data)[0] = size > 0 ? double(DATA(0)[0]) : 0.5;"
            "static_cast<bool*>(TENSOR(4)->data)[0] = size > 2;"
        ),
        outputs=ops.empty_like("x"),
        dtypes={"T": "x"},
        kind="device",
    )


def _drawn(namespace: str) -> ops.KernelOperator:
    return ops.kernel_op(
        f"{namespace}::drawn(Tensor x, *, Generator? g=None) -> Tensor",
        source=each(
            "DATA(2)[i] = DATA(0)[i] + T((static_cast<const int64_t*>(LIST(1)->data)[0] +"
            " static_cast<const int64_t*>(LIST(1)->data)[1]) % 64);"
        ),
        outputs=ops.empty_like("x"),
        dtypes={"T": "x"},
        kind="device",
    )


def _seeded(device: torch.device) -> torch.Generator:
    return torch.Generator("cpu" if device.type == "meta" else device).manual_seed(3)


def _draw_default(call: Call, tensors: Sequence[torch.Tensor]) -> Any:
    torch.manual_seed(5)
    return call(tensors[0])


OTHER_DTYPES = (torch.float32, torch.complex64, torch.uint16)
KINDS = {
    "constants": Kind(
        _constants,
        2,
        [
            lambda f, t: f(t[0]),
            lambda f, t: f(t[0], 3, [t[1], None], l=torch.sparse_coo),
            lambda f, t: f(t[0], 1.0, (None, t[1], t[0]), m=torch.channels_last),
            lambda f, t: f(x=t[0], a=True, t=[None], d=torch.device("cpu:0")),
            lambda f, t: f(t[0], 2j, d=torch.device("cuda:3"), c=1 + 4j),
            lambda f, t: f(t[0], "wrong"),
            lambda f, t: f(t[0], 1, t[1]),
            lambda f, t: f(t[0], 1, [3], d="cpu"),
            lambda f, t: f(t[0], d="cpu", c=4),
        ],
        dtypes=OTHER_DTYPES,
    ),
    "numbers": Kind(_numbers, 1, [lambda f, t: f(t[0]), lambda f, t: f(x=t[0])]),
    "drawn": Kind(
        _drawn,
        1,
        [
            lambda f, t: f(t[0], g=_seeded(t[0].device)),
            _draw_default,
            lambda f, t: f(t[0], g=torch.Generator()),
            lambda f, t: f(t[0], g=7),
        ],
        dtypes=(torch.float32, torch.uint16),
    ),
    "list": Kind(_list, 3, [lambda f, t: f(t[0], [*t[1:]]), lambda f, t: f(t[0], xs=(t[1], t[2]))]),
    "optional": Kind(
        _optional,
        2,
        [
            lambda f, t: f(t[0]),
            lambda f, t: f(t[0], t[1], 3, factor=1, b=True),
            lambda f, t: f(y=t[1], x=t[0], sizes=[4]),
            lambda f, t: f(t[0], None, factor=0.5, s="é"),
            lambda f, t: f(t[0], n="wrong"),
            lambda f, t: f(t[0], t[1], 1, 2.0),
            lambda f, t: f(t[0], unknown=1),
        ],
    ),
    "several": Kind(_several, 2, [lambda f, t: f(*t)]),
    "in place": Kind(_inplace, 2, [lambda f, t: f(*t), lambda f, t: f(t[0], t[0])], writes=True),
    "out": Kind(
        _out,
        3,
        [
            lambda f, t: f(t[0], t[1], out=t[2]),
            lambda f, t: f(t[0], t[1], out=t[0]),
            lambda f, t: f(t[0], t[1], out=t[1][:1]),
            lambda f, t: f(t[0][1:], t[1][1:], out=t[0][:-1]),
        ],
        writes=True,
    ),
    "counted": Kind(_counted, 1, [lambda f, t: f(t[0]), lambda f, t: f(x=t[0])]),
    "strided": Kind(_strided, 2, [lambda f, t: f(*t)]),
}


def _sum(result: Any) -> torch.Tensor:
    floats = [leaf for leaf in tree_leaves(result) if _is_float(leaf)]
    return sum((leaf.sum() for leaf in floats), start=torch.zeros(()))


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _grad(call: Call) -> Call:
    return torch.func.grad(lambda *tensors: _sum(call(*tensors)))


def _over_the_last(call: Call, tensors: Sequence[torch.Tensor]) -> Any:
    return torch.vmap(call, in_dims=(*[None] * (len(tensors) - 1), 0))(*tensors)


TRANSFORMS: dict[str, Callable[[Call], Call]] = {
    "plain": lambda call: call,
    "vmap": torch.vmap,
    "vmap of the last": lambda call: lambda *t: _over_the_last(call, t),
    "grad": _grad,
    "grad of grad": lambda call: _grad(_grad(call)),
    "vmap of grad": lambda call: torch.vmap(_grad(call)),
    "grad of vmap": lambda call: _grad(torch.vmap(call)),
    "vmap of vmap": lambda call: torch.vmap(torch.vmap(call)),
    "jacrev": lambda call: torch.func.jacrev(lambda *t: _sum(call(*t))),
    "jvp": lambda call: lambda *t: torch.func.jvp(call, t, t),
    "jvp of grad": lambda call: lambda *t: torch.func.jvp(_grad(call), t, t),
}  # fmt: skip


@pytest.fixture(scope="module")
def operators(simulator: object) -> dict[str, ops.KernelOperator]:
    return {
        name: kind.define(f"bringup_fuzz_{number}")
        for number, (name, kind) in enumerate(KINDS.items())
    }


def _outcome(
    call: Call, kind: Kind, way: int, transform: str, make: Callable[[], list[torch.Tensor]]
) -> Any:
    """All that a user sees of a call: results, what was written, versions, gradients, errors."""

    def run(*given: torch.Tensor) -> Any:
        result = kind.calls[way](call, given)
        return given if kind.writes else result

    try:
        tensors = make()
        result = TRANSFORMS[transform](run)(*tensors)
        seen = [_facts(leaf) for leaf in tree_leaves(result)]
        versions = [t._version for t in tensors if not t.is_inference()]
        return seen, versions, _gradients(result, tensors)
    except Exception as error:
        text = str(error) if isinstance(error, (BringupError, NotImplementedError)) else ""
        return type(error).__name__, text


def _gradients(result: Any, tensors: list[torch.Tensor]) -> Any:
    loss = _sum(
        [leaf for leaf in tree_leaves(result) if _is_float(leaf) and leaf.device.type != "meta"]
    )
    leaves = [t for t in tensors if t.requires_grad and t.is_leaf]
    if not loss.requires_grad or not leaves:
        return None
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [None if g is None else _facts(g) for g in gradients]


def _facts(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    facts = (value.shape, value.stride(), value.dtype, value.device, value.requires_grad)
    return facts if value.is_meta else (*facts, value.detach().cpu().tolist())


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_the_fast_call_gives_what_torch_ops_gives_for_every_kind_of_operator(
    operators: dict[str, ops.KernelOperator], data: st.DataObject
) -> None:
    """DESIGN rule 6."""
    name = data.draw(st.sampled_from(sorted(KINDS)))
    kind = KINDS[name]
    way = data.draw(st.integers(0, len(kind.calls) - 1))
    context = data.draw(st.sampled_from(sorted(CONTEXTS)))
    transform = data.draw(st.sampled_from(sorted(TRANSFORMS)))
    device = data.draw(st.sampled_from(["cpu", "cpu", "npu"]))
    dtype = data.draw(st.sampled_from(kind.dtypes))
    shape = data.draw(st.sampled_from([(3, 4), (3, 4), (0, 4), (1, 1)]))
    layouts = [data.draw(st.sampled_from(sorted(LAYOUTS))) for _ in range(kind.tensors)]
    different = data.draw(st.sampled_from([False, False, False, True]))
    sizes = [(2, 2) if different and n == 1 else shape for n in range(kind.tensors)]

    def make() -> list[torch.Tensor]:
        plain = [(torch.arange(s[0] * s[1]).view(s) - 2).to(dtype).to(device) for s in sizes]
        return [LAYOUTS[layout](tensor) for layout, tensor in zip(layouts, plain, strict=True)]

    outcomes = []
    for call in (operators[name], operators[name].overload):
        with CONTEXTS[context]():
            outcomes.append(_outcome(call, kind, way, transform, make))
    assert outcomes[0] == outcomes[1]
