"""Every test starts and ends with an empty registry; `traced` makes FX graphs of ATen operators."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from bringup import passes


@pytest.fixture(autouse=True)
def _empty_registry(monkeypatch):
    monkeypatch.delenv("BRINGUP_PASS_PATH", raising=False)
    monkeypatch.delenv("ASCEND_GE_PY_PASS_PATH", raising=False)
    passes.clear_registered_passes()
    yield
    passes.unload_pass_plugins()
    passes.clear_registered_passes()


@pytest.fixture
def traced():
    """`traced(function, *examples)`: the function as an FX graph of ATen operators."""

    def trace(function, *examples):
        with torch.no_grad():
            return make_fx(function, tracing_mode="fake")(*examples)

    return trace
