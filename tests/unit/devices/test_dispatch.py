"""Which kernel runs. Oracles: torch's own dump, its answers key by key, and calls that are made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from bringup import devices
from bringup.devices import KernelKind, _dispatch
from bringup.errors import DeviceError

CPP = torch._C
EVERY_OPERATOR = """
import sys
import torch
from bringup import devices
from bringup.devices import KernelKind, _dispatch
if sys.argv[1] == "sim":
    devices.load_driver("sim")
kinds = {kind: 0 for kind in KernelKind}
PREFIXES = ("", "Autograd", "Autocast", "Sparse", "SparseCsr", "Quantized", "NestedTensor")
ASKED = {f"{prefix}PrivateUse1" for prefix in PREFIXES}
ASKED |= {"CPU", "AutogradCPU", "SparseCPU", "Meta", "Undefined", "BackendSelect", "Python"}
names = torch._C._dispatch_get_all_op_names()
for name in names:
    table = devices.dispatch_table(name)
    there = [entry for entry in table.entries if entry.kind is not KernelKind.MISSING]
    # Row by row, in torch's order, which is the reverse.
    dumped = torch._C._dispatch_dump_table(name).splitlines()
    assert [f"{e.key}: {e.text}" for e in reversed(there)] == dumped, name
    for entry in table.entries:
        kinds[entry.kind] += 1
        if entry.key not in ASKED:  # a million questions take a minute
            continue
        has = torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, entry.key)
        assert has is (entry.kind is not KernelKind.MISSING), (name, entry)
        own = torch._C._dispatch_has_kernel_for_dispatch_key(name, entry.key)
        if entry.kind is KernelKind.NATIVE:
            assert own, (name, entry)
        elif own:
            skipped = torch._C._dispatch_kernel_for_dispatch_key_is_fallthrough(name, entry.key)
            assert skipped is (entry.kind is KernelKind.FALLTHROUGH), (name, entry)
            ours = entry.kind in (KernelKind.HOST, KernelKind.REFUSAL)
            handed = entry.kind is KernelKind.COMPOSITE_EXPLICIT  # the fallback, to an out form
            handed = handed and entry.source.startswith("native/torch/devices/fallback.cpp")
            assert skipped or ours or handed, (name, entry)
print(len(names), kinds[KernelKind.NATIVE], kinds[KernelKind.HOST], kinds[KernelKind.REFUSAL])
"""


@pytest.mark.parametrize("driver", ["none", "sim"])
def test_the_table_of_every_operator_is_what_torch_says(
    driver: str, fresh_python: Callable[..., str]
) -> None:
    operators, native, host, refusals = map(int, fresh_python(EVERY_OPERATOR, driver).split())
    assert operators > 3000
    assert native > 8000
    assert (host > 2000, refusals > 1000) == (driver == "sim", driver == "sim")


def test_keys_are_in_the_order_in_which_torch_asks_them() -> None:
    left = CPP._dispatch_keyset_full()
    asked = []
    while (key := left.highestPriorityTypeId()) != CPP.DispatchKey.Undefined:
        asked.append(CPP._dispatch_key_name(key))
        left = left.remove(key)
    assert len(asked) > 20
    assert [key for key in _dispatch.runtime_keys() if key in asked] == asked
    assert _dispatch.runtime_keys()[-1] == "Undefined"


def test_a_chain_is_the_order_in_which_kernels_really_run() -> None:
    library = torch.library.Library("dispatch_chain", "DEF")
    library.define("f(Tensor x) -> Tensor")
    ran = []

    def kernel(key: str, below: Any = None) -> Any:
        def run(keys: Any, x: torch.Tensor) -> torch.Tensor:
            ran.append(key)
            if below is None:
                return x
            return torch.ops.dispatch_chain.f.default.redispatch(keys & below, x)

        return run

    after_autograd = CPP._dispatch_keyset_full_after(CPP.DispatchKey.AutogradOther)
    after_view = CPP._dispatch_keyset_full_after(CPP.DispatchKey.ADInplaceOrView)
    library.impl("f", kernel("CPU"), "CPU", with_keyset=True)
    library.impl("f", kernel("ADInplaceOrView", after_view), "ADInplaceOrView", with_keyset=True)
    library.impl("f", kernel("AutogradCPU", after_autograd), "AutogradCPU", with_keyset=True)
    x = torch.ones(2, requires_grad=True)
    for context in (torch.enable_grad, torch.inference_mode, torch.no_grad):
        ran.clear()
        with context():
            torch.ops.dispatch_chain.f(x)
            explained = devices.explain("dispatch_chain::f", x)
        assert [entry.key for entry in explained.chain] == ran
    with torch.inference_mode():
        fresh = torch.ones(2)
        ran.clear()
        torch.ops.dispatch_chain.f(fresh)
        explained = devices.explain(torch.ops.dispatch_chain.f, fresh)
    assert [entry.key for entry in explained.chain] == ran == ["CPU"]
    assert explained.chain[0].file == __file__
    assert str(explained).splitlines()[1] == "computed from the dispatch table:"


def test_a_tensor_has_its_own_keys_and_those_of_the_thread() -> None:
    x = torch.ones(2, device="npu")
    found = devices.explain(x)
    assert found.keys == tuple(reversed(str(CPP._dispatch_keys(x))[15:-1].split(", ")))
    assert found.effective == (
        "AutogradPrivateUse1",
        "ADInplaceOrView",
        "BackendSelect",
        "PrivateUse1",
    )
    with torch.autocast("npu", dtype=torch.bfloat16):
        assert devices.explain(x).effective[0] == "AutocastPrivateUse1"
    with torch.inference_mode():
        assert devices.explain(torch.ones(2)).effective == ("BackendSelect", "CPU")
    assert str(found).splitlines()[0].startswith("npu:0 ")
    assert "PrivateUse1" in str(found)


def kinds(explained: Any) -> list[tuple[str, KernelKind]]:
    return [(entry.key, entry.kind) for entry in explained.chain]


def test_a_number_where_the_schema_has_a_tensor_counts_as_torch_makes_it_one() -> None:
    x = torch.ones(2, device="npu")
    explained = devices.explain(torch.ops.aten.add, x, 2)
    assert explained.operator == "aten::add.Tensor"
    assert "CPU" in explained.keys
    assert kinds(explained) == [
        ("AutogradPrivateUse1", KernelKind.AUTOGRAD),
        ("PrivateUse1", KernelKind.HOST),
        ("CPU", KernelKind.NATIVE),
    ]


def test_a_factory_goes_by_the_device_that_it_is_asked_for() -> None:
    empty = torch.ops.aten.empty.memory_format
    assert kinds(devices.explain(empty, [2], device="npu"))[-1] == (
        "PrivateUse1",
        KernelKind.NATIVE,
    )
    assert kinds(devices.explain(empty, [2]))[-1] == ("CPU", KernelKind.NATIVE)
    sparse = devices.explain(empty, [2], device="npu", layout=torch.sparse_coo)
    assert kinds(sparse)[-1] == ("SparsePrivateUse1", KernelKind.NATIVE)
    rows = devices.explain(empty, [2, 2], device="cpu", layout=torch.sparse_csr)
    assert kinds(rows)[-1][0] == "SparseCsrCPU"


def test_a_generator_and_tensors_in_lists_have_keys() -> None:
    generator = torch.Generator("npu")
    explained = devices.explain("aten::randperm.generator", 4, generator=generator)
    assert "PrivateUse1" in explained.keys
    both = devices.explain("aten::cat", [torch.ones(2), torch.ones(2, device="npu")])
    assert {"CPU", "PrivateUse1"} <= set(both.keys)


def test_a_composite_ends_the_chain_where_autograd_sees_through_it() -> None:
    x = torch.ones(2, 2, device="npu")
    assert kinds(devices.explain("aten::linear", x, x)) == [
        ("AutogradPrivateUse1", KernelKind.COMPOSITE_IMPLICIT)
    ]
    with torch.autocast("npu", dtype=torch.bfloat16):
        assert kinds(devices.explain("aten::linear", x, x))[0][0] == "AutocastPrivateUse1"


def test_a_refusal_of_the_device_is_no_kernel() -> None:
    table = devices.dispatch_table("aten::relu")
    assert table["QuantizedPrivateUse1"].kind is KernelKind.REFUSAL
    assert table["SparsePrivateUse1"].kind is KernelKind.HOST
    structure = devices.dispatch_table("aten::_indices")
    assert structure["SparsePrivateUse1"].kind is KernelKind.NATIVE
    quantize = devices.dispatch_table("aten::quantize_per_tensor")
    assert quantize["PrivateUse1"].kind is KernelKind.REFUSAL


SAMPLED = [
    info
    for info in op_db
    if torch.float32 in info.dtypes and not info.variant_test_name and "jiterator" not in info.name
]


@pytest.mark.parametrize("info", SAMPLED[::12], ids=lambda info: info.name)
def test_what_is_called_a_host_fallback_is_counted_as_one(info: Any) -> None:
    """The calls that an operator of torch really makes, one by one."""
    from torch.utils._python_dispatch import TorchDispatchMode

    told, counted = [], []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            before = {row.operator: row.calls for row in devices.fallback_report().rows}
            explained = devices.explain(op, *args, **(kwargs or {}))
            out = op(*args, **(kwargs or {}))
            after = {row.operator: row.calls for row in devices.fallback_report().rows}
            if not explained.chain[-1].kind.value.startswith("composite"):
                told.append((op.name(), any(e.kind is KernelKind.HOST for e in explained.chain)))
                counted.append((op.name(), before != after))
            return out

    sample = next(iter(info.sample_inputs("cpu", torch.float32)))
    moved = sample.transform(lambda x: x.to("npu") if isinstance(x, torch.Tensor) else x)
    with Watch(), torch.inference_mode():
        info.op(moved.input, *moved.args, **moved.kwargs)
    assert told == counted


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("aten::ad.Tensor", r"no operator of this name.*did you mean 'aten::add\.Tensor'"),
        ("zzzz", r"no operator of this name is registered, expected e\.g\. 'aten::add\.Tensor'\. "),
        ("aten::add", r"has the overloads aten::add\.Scalar, .*: name one"),
        (torch.ops.aten.add, r"has the overloads .*aten::add\.Tensor"),
        (torch.add, r"expected a tensor, the name of an operator .*dispatch_trace"),
    ],
    ids=["near name", "no name", "overloads", "packet", "function"],
)
def test_what_is_no_one_operator_is_refused(what: Any, words: str) -> None:
    with pytest.raises(DeviceError, match=words):
        devices.explain(what)


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((1, 2, 3), {}, "at most 2 positional arguments, got 3"),
        ((torch.ones(1),), {"self": 1}, "no further argument 'self'"),
        ((torch.ones(1), 1), {"beta": 1}, "no further argument 'beta'"),
        ((torch.ones(1),), {}, r"also other: aten::add\.Tensor\("),
    ],
)
def test_arguments_that_do_not_fit_are_refused(args: Any, kwargs: Any, words: str) -> None:
    with pytest.raises(DeviceError, match=words):
        devices.explain("aten::add.Tensor", *args, **kwargs)
    with pytest.raises(DeviceError, match="no overload takes these arguments"):
        devices.explain(torch.ops.aten.add, "text", 1)
    with pytest.raises(DeviceError, match="takes nothing else"):
        devices.explain(torch.ones(1), 2)


def test_an_operator_with_one_overload_needs_no_name_of_it() -> None:
    assert devices.explain(torch.ops.aten.relu.default).operator == "aten::relu"
    assert devices.explain("aten::relu.default").operator == "aten::relu"
    assert devices.explain(torch.ops.aten.bernoulli_.float).operator == "aten::bernoulli_.float"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("CPU: made of [cheese]\n", r"'CPU: made of \[cheese\]' cannot be read"),
        ("Nowhere: registered by X [kernel]\n", "unknown keys Nowhere"),
    ],
)
def test_a_row_of_a_newer_torch_is_refused_rather_than_left_out(row: str, words: str) -> None:
    with (
        mock.patch.object(CPP, "_dispatch_dump_table", return_value=row),
        pytest.raises(DeviceError, match=words),
    ):
        devices.dispatch_table("aten::relu")


def test_a_hidden_registration_is_told_as_hidden() -> None:
    found = devices.dispatch_table("aten::add.Tensor").registrations
    meta = [
        (one.active, Path(one.where).name.partition(":")[0]) for one in found if one.key == "Meta"
    ]
    assert meta == [(True, "_meta_registrations.py"), (False, "RegisterMeta_0.cpp")]
    assert [one.unboxed for one in found if one.key == "Meta"] == [False, True]


def test_neighbours_with_one_kernel_are_shown_as_one_and_the_device_alone() -> None:
    table = devices.dispatch_table("aten::add.Tensor")
    shown = dict(table.groups())
    assert {"PrivateUse1", "AutogradPrivateUse1"} <= set(shown)
    joined = [keys for keys in shown if keys.startswith("AutogradMAIA to AutogradOther (")]
    assert len(joined) == 1
    assert not any(entry.kind is KernelKind.MISSING for entry in shown.values())
    assert str(table).splitlines()[0] == table.schema
    assert (
        table["PrivateUse1"].source
        == f"native/torch/devices/fallback.cpp:{table['PrivateUse1'].line}"
    )
    assert table["CPU"].source.startswith("build/aten/src/ATen/RegisterCPU_0.cpp:")
    assert table["Meta"].source.startswith("torch/_meta_registrations.py:")
    assert devices.dispatch_table("aten::relu")["Lazy"].where == ""


OUT_FORM = """
import torch
from bringup import devices

devices.load_driver("sim")
x = torch.ones(2, device="npu")
before = devices.explain("aten::exp", x).chain
library = torch.library.Library("aten", "IMPL")
library.impl("exp.out", lambda x, out: out.fill_(7), "PrivateUse1")
after = devices.explain("aten::exp", x).chain
devices.fallback_report(reset=True)
values = torch.exp(x).tolist()
fell_back = [row.operator for row in devices.fallback_report().rows]
print([entry.kind.value for entry in before])
print([entry.kind.value for entry in after])
print(values, "aten::exp" in fell_back)
"""


def test_a_fallback_that_leaves_it_to_an_out_form_of_the_device_is_composite(
    fresh_python: Callable[..., str],
) -> None:
    before, after, ran = fresh_python(OUT_FORM).splitlines()
    assert before == "['autograd', 'host fallback', 'kernel']"
    assert after == "['autograd', 'composite explicit']"
    assert ran == "[7.0, 7.0] False"
