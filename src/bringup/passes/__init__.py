"""Graph rewrites written in Python. Never imports torch.

In reading order: the pass kinds (`FusionBasePass`, `PatternFusionPass`, `DecomposePass`),
registering them, patterns and matches, plugins, running passes and what they report.
"""

from bringup.errors import PassError, PassFatalError, PassSkipException
from bringup.passes.base import (
    DecomposePass,
    FusionBasePass,
    PassContext,
    PassStage,
    PatternFusionPass,
    pattern,
)
from bringup.passes.executor import run_passes, select_passes
from bringup.passes.loader import PluginReport, load_pass_plugins, unload_pass_plugins
from bringup.passes.match import MatchResult
from bringup.passes.patterns import AnyValue, Pattern, PatternInputs, any_value
from bringup.passes.registry import (
    PassDescriptor,
    clear_registered_passes,
    get_registered_passes,
    register_decompose_pass,
    register_fusion_pass,
    unregister_pass,
)
from bringup.passes.report import NearMiss, PassResult, PassStatus, Report

__all__ = [
    "AnyValue",
    "DecomposePass",
    "FusionBasePass",
    "MatchResult",
    "NearMiss",
    "PassContext",
    "PassDescriptor",
    "PassError",
    "PassFatalError",
    "PassResult",
    "PassSkipException",
    "PassStage",
    "PassStatus",
    "Pattern",
    "PatternFusionPass",
    "PatternInputs",
    "PluginReport",
    "Report",
    "any_value",
    "clear_registered_passes",
    "get_registered_passes",
    "load_pass_plugins",
    "pattern",
    "register_decompose_pass",
    "register_fusion_pass",
    "run_passes",
    "select_passes",
    "unload_pass_plugins",
    "unregister_pass",
]
