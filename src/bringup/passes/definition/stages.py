"""When passes run."""

from __future__ import annotations

from enum import Enum


class PassStage(str, Enum):
    """When a pass runs, in this order.

    The shapes of a graph that was built by hand are inferred between the first two stages; a graph
    that comes from FX has them at every stage.
    """

    BEFORE_INFER_SHAPE = "BeforeInferShape"
    AFTER_INFER_SHAPE = "AfterInferShape"
    AFTER_BUILTIN_FUSION_PASS = "AfterBuiltinFusionPass"
    AFTER_ORIGIN_GRAPH_OPTIMIZE = "AfterOriginGraphOptimize"
