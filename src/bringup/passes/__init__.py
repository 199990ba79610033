"""Graph rewrites written in Python. Never imports torch.

In reading order: the pass kinds (`FusionBasePass`, `PatternFusionPass`, `DecomposePass`),
registering them, patterns and matches, plugins, running passes and what they report.
"""

from bringup.errors import (
    ExpiredHandleError,
    PassError,
    PassFatalError,
    PassSkipException,
    WrongRewriteError,
)
from bringup.passes.base import DecomposePass, FusionBasePass, PatternFusionPass, pattern
from bringup.passes.context import PassContext
from bringup.passes.controls import RewriteLimit, limit_rewrites
from bringup.passes.descriptor import ErrorPolicy, PassDescriptor
from bringup.passes.elements import (
    AnyValue,
    ArgumentPattern,
    Constant,
    Variadic,
    any_value,
    constant,
    one_of,
    optional,
    variadic,
)
from bringup.passes.events import EventKind, PassEvent, listening, profile_with
from bringup.passes.executor import run_passes
from bringup.passes.fusing import FuseCheckResult, can_fuse, check_node_support, report_fuse
from bringup.passes.loader import (
    PluginReport,
    load_pass_plugins,
    shutdown,
    unload_pass_plugins,
)
from bringup.passes.match import MatchResult
from bringup.passes.matcher_config import PatternMatcherConfig, PatternMatcherConfigBuilder
from bringup.passes.mining import Mined, Repeat, mine
from bringup.passes.patterns import (
    NodeIo,
    Pattern,
    PatternInputs,
    capture_tensor,
    create_pattern,
)
from bringup.passes.registering import (
    register_custom_pass,
    register_decompose_pass,
    register_fusion_pass,
)
from bringup.passes.registry import (
    clear_registered_passes,
    get_registered_pass_by_descriptor_key,
    get_registered_pass_dicts,
    get_registered_passes,
    unregister_pass,
)
from bringup.passes.report import NearMiss, PassResult, PassStatus, Report
from bringup.passes.rewriter import create_replacement
from bringup.passes.selection import is_switched_on, select_passes
from bringup.passes.shapes import infer_shape
from bringup.passes.stages import PassStage
from bringup.passes.subgraph import (
    SubgraphBoundary,
    SubgraphInput,
    SubgraphOutput,
    SubgraphRewriter,
)

__all__ = [
    "AnyValue",
    "ArgumentPattern",
    "Constant",
    "DecomposePass",
    "ErrorPolicy",
    "EventKind",
    "ExpiredHandleError",
    "FuseCheckResult",
    "FusionBasePass",
    "MatchResult",
    "Mined",
    "NearMiss",
    "NodeIo",
    "PassContext",
    "PassDescriptor",
    "PassError",
    "PassEvent",
    "PassFatalError",
    "PassResult",
    "PassSkipException",
    "PassStage",
    "PassStatus",
    "Pattern",
    "PatternFusionPass",
    "PatternInputs",
    "PatternMatcherConfig",
    "PatternMatcherConfigBuilder",
    "PluginReport",
    "Repeat",
    "Report",
    "RewriteLimit",
    "SubgraphBoundary",
    "SubgraphInput",
    "SubgraphOutput",
    "SubgraphRewriter",
    "Variadic",
    "WrongRewriteError",
    "any_value",
    "can_fuse",
    "capture_tensor",
    "check_node_support",
    "clear_registered_passes",
    "constant",
    "create_pattern",
    "create_replacement",
    "get_registered_pass_by_descriptor_key",
    "get_registered_pass_dicts",
    "get_registered_passes",
    "infer_shape",
    "is_switched_on",
    "limit_rewrites",
    "listening",
    "load_pass_plugins",
    "mine",
    "one_of",
    "optional",
    "pattern",
    "profile_with",
    "register_custom_pass",
    "register_decompose_pass",
    "register_fusion_pass",
    "report_fuse",
    "run_passes",
    "select_passes",
    "shutdown",
    "unload_pass_plugins",
    "unregister_pass",
    "variadic",
]
