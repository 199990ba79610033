"""Jagged nested tensors in a capture: torch hides the recorder from what a subclass calls."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch

RECORDER = torch._C._parse_dispatch_key("DeferredInit")


def show_to_recorder() -> None:
    """Let a capture see what operators on jagged nested tensors call."""
    nested: Any = importlib.import_module("torch.nested._internal.nested_tensor")
    original = nested.NestedTensor.__torch_dispatch__.__func__

    @functools.wraps(original)
    def dispatch(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not torch._C._dispatch_tls_is_dispatch_key_included(RECORDER):
            return original(cls, func, types, args, kwargs)
        with torch._C._SetExcludeDispatchKeyGuard(RECORDER, False):
            return original(cls, func, types, args, kwargs)

    nested.NestedTensor.__torch_dispatch__ = classmethod(dispatch)
