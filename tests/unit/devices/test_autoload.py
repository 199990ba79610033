"""`import torch` loads the driver that BRINGUP_DRIVER names, and nothing that it does breaks it."""

from __future__ import annotations

from tests.forked_python import output_of_start

ONES = "import torch; print(torch.ones(2, device='npu').sum().item())"


def test_the_driver_of_the_variable_is_loaded() -> None:
    assert output_of_start(ONES, BRINGUP_DRIVER="sim") == "2.0"


def test_without_the_variable_nothing_is_imported() -> None:
    code = """
import sys, torch
print(torch._C._get_privateuse1_backend_name(), [m for m in sys.modules if m[:8] == "bringup."])
"""
    assert (
        output_of_start(code, BRINGUP_DRIVER="")
        == "privateuseone ['bringup._device_attributes', 'bringup._version', 'bringup._autoload']"
    )


def test_a_driver_that_cannot_be_loaded_is_one_warning() -> None:
    code = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
(warning,) = [w for w in caught if "bringup" in str(w.message)]
print(warning.category.__name__, warning.message)
print(torch.ones(2).sum().item())
"""
    said = output_of_start(code, BRINGUP_DRIVER="/no/such/libdriver.so").splitlines()
    assert said[0].startswith(
        "RuntimeWarning bringup did not load the driver that BRINGUP_DRIVER names"
    )
    assert "/no/such/libdriver.so" in said[0]
    assert said[1] == "2.0"


def test_torchs_own_switch_is_obeyed() -> None:
    code = "import torch; print(torch._C._get_privateuse1_backend_name())"
    said = output_of_start(code, BRINGUP_DRIVER="sim", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert said == "privateuseone"


def test_a_call_of_load_driver_counts_for_more() -> None:
    code = (
        "from bringup import devices; print(devices.load_driver('sim', name='board').device_name)"
    )
    assert output_of_start(code, BRINGUP_DRIVER="sim") == "board"
