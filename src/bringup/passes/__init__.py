"""Graph rewrites written in Python. Never imports torch.

In reading order: the pass kinds (`FusionBasePass`, `PatternFusionPass`, `DecomposePass`),
registering them, patterns and matches, plugins, running passes and what they report.

What is not named here is internal (but for `bootstrap`, whose name is GE's). Its packages, each
knowing only those before it:

- `patterns`: patterns, and what a match of one tells
- `definition`: what an author of a pass writes
- `rewrite`: putting something where a match was
- `matching`: finding a pattern with the native engine
- `registry`: which passes there are, and which of them run
- `run`: running them; `report` is what came of it
- `mining`: what repeats in a graph
"""

from bringup._lazy import lazily
from bringup.errors import (
    ExpiredHandleError,
    PassError,
    PassFatalError,
    PassSkipException,
    WrongRewriteError,
)
from bringup.passes.definition.base import DecomposePass, FusionBasePass, PatternFusionPass, pattern
from bringup.passes.definition.context import PassContext
from bringup.passes.definition.stages import PassStage
from bringup.passes.patterns.elements import (
    AnyValue,
    ArgumentPattern,
    Constant,
    any_value,
    constant,
    one_of,
    optional,
)
from bringup.passes.patterns.match import MatchResult
from bringup.passes.patterns.matcher_config import PatternMatcherConfig, PatternMatcherConfigBuilder
from bringup.passes.patterns.pattern import (
    NodeIo,
    Pattern,
    PatternInputs,
    Variadic,
    capture_tensor,
    create_pattern,
    variadic,
)
from bringup.passes.registry.descriptor import ErrorPolicy, PassDescriptor
from bringup.passes.registry.loader import (
    PluginReport,
    load_pass_plugins,
    shutdown,
    unload_pass_plugins,
)
from bringup.passes.registry.registering import (
    register_custom_pass,
    register_decompose_pass,
    register_fusion_pass,
)
from bringup.passes.registry.registry import (
    clear_registered_passes,
    get_registered_pass_by_descriptor_key,
    get_registered_pass_dicts,
    get_registered_passes,
    unregister_pass,
)
from bringup.passes.registry.selection import is_enabled, select_passes
from bringup.passes.report import NearMiss, PassReport, PassResult, PassStatus
from bringup.passes.rewrite.fusing import FuseCheckResult, can_fuse, check_node_support, report_fuse
from bringup.passes.rewrite.rewriter import create_replacement
from bringup.passes.rewrite.shapes import infer_shape
from bringup.passes.rewrite.subgraph import (
    SubgraphBoundary,
    SubgraphInput,
    SubgraphOutput,
    SubgraphRewriter,
)
from bringup.passes.run.controls import Rewrite, RewriteLimit, limit_rewrites
from bringup.passes.run.events import EventKind, PassEvent, profile_with, subscribe
from bringup.passes.run.executor import run_passes

TYPE_CHECKING = False  # `typing` is not imported for it
if TYPE_CHECKING:
    from bringup.passes.mining.mining import Mined, Repeat, mine
else:
    __getattr__ = lazily(__name__, {"mining.mining": "Mined Repeat mine"})

__all__ = [
    "AnyValue", "ArgumentPattern", "Constant", "DecomposePass", "ErrorPolicy", "EventKind",
    "ExpiredHandleError", "FuseCheckResult", "FusionBasePass", "MatchResult", "Mined", "NearMiss",
    "NodeIo", "PassContext", "PassDescriptor", "PassError", "PassEvent", "PassFatalError",
    "PassReport", "PassResult", "PassSkipException", "PassStage", "PassStatus", "Pattern",
    "PatternFusionPass", "PatternInputs", "PatternMatcherConfig", "PatternMatcherConfigBuilder",
    "PluginReport", "Repeat", "Rewrite", "RewriteLimit", "SubgraphBoundary", "SubgraphInput",
    "SubgraphOutput", "SubgraphRewriter", "Variadic", "WrongRewriteError", "any_value", "can_fuse",
    "capture_tensor", "check_node_support", "clear_registered_passes", "constant", "create_pattern",
    "create_replacement", "get_registered_pass_by_descriptor_key", "get_registered_pass_dicts",
    "get_registered_passes", "infer_shape", "is_enabled", "limit_rewrites", "load_pass_plugins",
    "mine", "one_of", "optional", "pattern", "profile_with", "register_custom_pass",
    "register_decompose_pass", "register_fusion_pass", "report_fuse", "run_passes", "select_passes",
    "shutdown", "subscribe", "unload_pass_plugins", "unregister_pass", "variadic",
]  # fmt: skip
