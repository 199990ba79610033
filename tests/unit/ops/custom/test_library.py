"""`ops.Library`, `ops.impl`, `ops.register_fake`, and the names of dispatch keys."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.forked_python import output_of
from tests.unit.ops.conftest import Define
from tests.unit.ops.support import SCALE

from bringup import ops
from bringup.errors import SchemaError

_numbers = itertools.count()
has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key

KEYS = [
    ("CPU", "CPU"),
    ("NPU", "PrivateUse1"),
    ("CUDA", "CUDA"),
    ("PrivateUse1", "PrivateUse1"),
    ("Meta", "Meta"),
    ("Autograd", "Autograd"),
    ("AutogradCPU", "AutogradCPU"),
    ("AutogradNPU", "AutogradPrivateUse1"),
    ("AutogradCUDA", "AutogradCUDA"),
    ("AutogradPrivateUse1", "AutogradPrivateUse1"),
    ("CompositeImplicitAutograd", "CompositeImplicitAutograd"),
]


@pytest.fixture
def library() -> Iterator[ops.Library]:
    found = ops.Library(f"bringup_test_library_{next(_numbers)}", "DEF")
    yield found
    found._destroy()


def operator(library: ops.Library, name: str = "f") -> Any:
    return getattr(getattr(torch.ops, library.ns), name)


@pytest.mark.parametrize(("name", "key"), KEYS)
def test_a_key_is_known_by_the_name_that_people_use(
    library: ops.Library, name: str, key: str
) -> None:
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", lambda x: x.clone(), name)
    assert has_kernel(f"{library.ns}::f", key)


def test_an_unknown_key_is_refused_and_the_near_one_named(library: ops.Library) -> None:
    library.define("f(Tensor x) -> Tensor")
    text = "'AutogradNPUs' is no dispatch key; did you mean 'AutogradNPU'\\? Known are CPU, CUDA"
    with pytest.raises(ValueError, match=text):
        library.impl("f", lambda x: x, "AutogradNPUs")
    with pytest.raises(SchemaError, match="'gpu' is no device"):
        ops.impl(f"{library.ns}::f", "gpu", lambda x: x)


def test_define_makes_a_real_operator(library: ops.Library) -> None:
    library.define("f(Tensor x, int n=2) -> Tensor")
    assert isinstance(operator(library).default, torch._ops.OpOverload)
    assert str(operator(library).default._schema) == (
        f"{library.ns}::f(Tensor x, SymInt n=2) -> Tensor"
    )


def test_impl_takes_a_function(library: ops.Library) -> None:
    """test_library.py, impl direct."""
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", lambda x: x + 1, "CPU")
    assert operator(library)(torch.zeros(2)).tolist() == [1, 1]


def test_impl_is_a_decorator(library: ops.Library) -> None:
    """test_library.py, impl decorator."""
    library.define("f(Tensor x) -> Tensor")

    @library.impl("f", dispatch_key="CPU")
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 2

    assert operator(library)(torch.zeros(2)).tolist() == [2, 2]
    assert f(torch.zeros(1)).tolist() == [2]


def test_impl_before_define_is_refused(library: ops.Library) -> None:
    """test_library.py, impl before define raises RuntimeError."""
    with pytest.raises(RuntimeError, match="::g cannot have an implementation for CPU: there is"):
        library.impl("g", lambda x: x, "CPU")


def test_one_operator_has_kernels_for_two_keys(library: ops.Library) -> None:
    """test_library.py, two keys on one op."""
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", lambda x: x + 1, "CPU")
    library.impl("f", lambda x: torch.empty(7, device="meta"), "Meta")
    assert operator(library)(torch.zeros(2)).tolist() == [1, 1]
    assert operator(library)(torch.zeros(2, device="meta")).shape == (7,)


@pytest.mark.parametrize("key", ["CPU", "cpu", "default", ("cpu", "NPU")])
def test_impl_by_name_registers_for_any_operator(library: ops.Library, key: Any) -> None:
    """test_library.py, standalone impl."""
    torch.library.define(f"{library.ns}::other", "(Tensor x) -> Tensor", lib=library)

    @ops.impl(f"{library.ns}::other", key, lib=library)
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    assert operator(library, "other")(torch.ones(2)).tolist() == [3, 3]


def test_register_fake_by_name_serves_meta_tensors(library: ops.Library) -> None:
    """test_library.py, standalone register_fake."""
    library.define("f(Tensor x) -> Tensor")

    @ops.register_fake(f"{library.ns}::f")
    def fake(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(3)

    assert has_kernel(f"{library.ns}::f", "Meta")
    assert operator(library)(torch.zeros(2, device="meta")).shape == (3,)


def test_a_second_definition_is_refused(library: ops.Library) -> None:
    """A duplicate define must not replace silently."""
    library.define("f(Tensor x) -> Tensor")
    with pytest.raises(SchemaError, match=r"'f\(Tensor y\) -> Tensor' is defined already"):
        library.define("f(Tensor y) -> Tensor")


def test_a_text_that_is_no_schema_is_refused(library: ops.Library) -> None:
    with pytest.raises(SchemaError, match="is not a schema"):
        library.define("f(Tensor x) - Tensor")


def test_an_impl_library_defines_nothing(library: ops.Library) -> None:
    """An IMPL library may not define."""
    other = ops.Library(library.ns, "IMPL")
    with pytest.raises(SchemaError, match=r"kind 'IMPL' defines no operators.*'FRAGMENT'"):
        other.define("g(Tensor x) -> Tensor")


def test_an_unknown_kind_and_a_second_def_library_are_refused(library: ops.Library) -> None:
    with pytest.raises(SchemaError, match="expected 'DEF', 'FRAGMENT' or 'IMPL'"):
        ops.Library("bringup_test_kind", "EXTEND")
    with pytest.raises(SchemaError, match=r"'DEF' library .* already; open it with 'FRAGMENT'"):
        ops.Library(library.ns, "DEF")


def test_a_fragment_adds_to_a_namespace(library: ops.Library) -> None:
    """A library of kind FRAGMENT."""
    fragment = ops.Library(library.ns, "FRAGMENT")
    fragment.define("g(Tensor x) -> Tensor")
    fragment.impl("g", lambda x: x - 1, "CPU")
    assert operator(library, "g")(torch.ones(1)).tolist() == [0]


def test_registrations_end_with_the_library() -> None:
    namespace = f"bringup_test_library_{next(_numbers)}"
    library = ops.Library(namespace, "DEF")
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", lambda x: x, "CPU")
    del library
    gc.collect()
    assert not hasattr(getattr(torch.ops, namespace), "f")
    again = ops.Library(namespace, "DEF")
    again.define("f(Tensor x, Tensor y) -> Tensor")
    again.impl("f", lambda x, y: x + y, "CPU")
    assert operator(again)(torch.ones(1), torch.ones(1)).tolist() == [2]
    again._destroy()


def test_backward_through_an_operator_without_gradient_raises_naming_it(
    library: ops.Library,
) -> None:
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", lambda x: x * 2, "CPU")
    y = operator(library)(torch.ones(2, requires_grad=True))
    assert y.requires_grad
    with pytest.raises(RuntimeError, match=f"{library.ns}::f has no backward"):
        y.sum().backward()


def test_a_composite_implementation_differentiates_by_its_parts(library: ops.Library) -> None:
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", lambda x: x * x)
    x = torch.full((2,), 3.0, requires_grad=True)
    operator(library)(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [6, 6]


def test_an_autograd_kernel_of_the_library_takes_the_place_of_the_raising_one(
    library: ops.Library, recwarn: pytest.WarningsRecorder
) -> None:
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", lambda x: x * 2, "CPU")

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            with torch._C._AutoDispatchBelowAutograd():
                return operator(library)(x)  # type: ignore[no-any-return]

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            return grads[0] * 20

    library.impl("f", Double.apply, "Autograd")
    x = torch.ones(1, requires_grad=True)
    operator(library)(x).backward()
    assert x.grad is not None
    assert x.grad.item() == 20
    assert not [w for w in recwarn if "Overriding" in str(w.message)]


def test_register_autograd_by_name_gives_a_library_operator_a_gradient(
    library: ops.Library,
) -> None:
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", lambda x: x * 2, "CPU")
    ops.register_autograd(f"{library.ns}::f", lambda ctx, grad: grad * 2)
    x = torch.ones(1, requires_grad=True)
    operator(library)(x).backward()
    assert x.grad is not None
    assert x.grad.item() == 2


def test_a_written_argument_of_a_library_operator_gets_a_new_version(library: ops.Library) -> None:
    """`Tensor!` as people write it."""
    library.define("f(Tensor! x) -> ()")
    library.impl("f", lambda x: x.numpy().fill(1), "CPU")
    x = torch.zeros(2)
    before = x._version
    operator(library)(x)
    assert (x._version, x.tolist()) == (before + 1, [1, 1])


def test_a_registration_for_an_unknown_operator_is_refused() -> None:
    with pytest.raises(SchemaError, match="there is no operator bringup_test_none::f; define"):
        ops.register_fake("bringup_test_none::f", lambda x: x)
    with pytest.raises(SchemaError, match="'nothing' is not an operator name"):
        ops.register_autograd("nothing", lambda ctx, grad: grad)


NPU_NAMES = """
import torch
from bringup import devices, ops
library = ops.Library("before", "DEF")
library.define("early(Tensor x) -> Tensor")
library.define("late(Tensor x) -> Tensor")
library.impl("early", lambda x: x + 1, "NPU")
@ops.custom_op("before::custom", device_types="npu")
def custom(x: torch.Tensor) -> torch.Tensor:
    return x + 2
devices.load_driver("sim", name="mychip")
library.impl("late", lambda x: x + 3, "NPU")
x = torch.zeros(1).to("mychip")
found = [torch.ops.before.early(x), custom(x), torch.ops.before.late(x)]
custom.register_kernel("mychip", lambda x: x + 4)
print([y.item() for y in (*found, custom(x))])
"""


def test_npu_names_mean_privateuse1_before_and_after_a_driver_of_any_name() -> None:
    assert output_of(NPU_NAMES) == "[1.0, 2.0, 3.0, 4.0]"


def test_rules_may_be_registered_for_a_kernel_operator(define: Define) -> None:
    scale = define(
        "scale(Tensor x, float factor) -> Tensor",
        source=SCALE,
        outputs=ops.empty_like("x"),
        dtypes={"T": "x"},
    )
    ops.register_vmap(scale, "pointwise")
    ops.register_autocast(scale.qualified_name, "cpu", torch.bfloat16)
    x = torch.randn(3, 2)
    assert torch.equal(torch.vmap(lambda x: scale(x, 2.0))(x), x * 2)
    with torch.autocast("cpu"):
        assert scale(x, 2.0).dtype == torch.bfloat16
        assert scale.overload(x, 2.0).dtype == torch.bfloat16


def test_rules_end_with_the_kernel_operator() -> None:
    def define_again() -> ops.KernelOperator:
        return ops.kernel_op(
            "bringup_test_rules_end::f(Tensor x, float factor) -> Tensor",
            source=SCALE,
            outputs=ops.empty_like("x"),
            dtypes={"T": "x"},
        )

    first = define_again()
    ops.register_autocast(first, "cpu", torch.bfloat16)
    first.undefine()
    second = define_again()
    with torch.autocast("cpu"):
        assert second(torch.ones(2), 2.0).dtype == torch.float32
    ops.register_autocast(second, "cpu", torch.bfloat16)
    with torch.autocast("cpu"):
        assert second(torch.ones(2), 2.0).dtype == torch.bfloat16
    second.undefine()


def test_an_object_that_is_no_operator_is_refused() -> None:
    with pytest.raises(SchemaError, match="is no operator; expected 'namespace::name' or a call"):
        ops.register_vmap(3, "loop")
