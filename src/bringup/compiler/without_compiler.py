"""Rewriting where no compiler is: the shipped passes need kernels, which the cache may have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from bringup import jit, settings
from bringup.compiler.graph_modules import bodies, copied
from bringup.errors import BringupError, MissingCompilerError

_LOG = settings.logger("compiler")


def rewritten_or_left(module: Any, rewrite: Callable[[bool], None]) -> None:
    """Call `rewrite(True)` for all passes, or `rewrite(False)` where a kernel cannot be had."""
    problem = jit.toolchain("cpu").problem
    if not problem:
        rewrite(True)
        return
    modules = [module, *bodies(module)]
    graphs = [copied(each).graph for each in modules]
    try:
        rewrite(True)
        missing = next(filter(None, map(_missing, modules)), "")
    except BringupError as error:  # of a pass that runs kernels, on weights
        if not isinstance(error.__cause__ or error, MissingCompilerError):
            raise
        missing = str(error.__cause__ or error)
    if missing:
        _warn(problem, missing.partition(":")[0])
        for each, graph in zip(modules, graphs, strict=True):
            each.graph = graph
        rewrite(False)


def _missing(module: Any) -> str:
    """Return why the first kernel of a graph that cannot be had is missing."""
    from bringup.ops.kernel.availability import missing_binary

    for node in module.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda given: given.meta["val"])
            if missing := missing_binary(node.target, args, kwargs):
                return missing
    return ""


@functools.cache  # once a process: a model may have many graphs
def _warn(problem: str, kernel: str) -> None:
    _LOG.warning(
        "the shipped passes are left out where their kernels are not in the cache (%s): %s",
        kernel,
        problem,
    )
