"""A run is captured once, replayed, and its arguments updated.

In reading order: `capture` records a `with` block into a `CapturedGraph`; `CapturedGraph.run` calls
it with inputs of any thread, and `CapturedGraph.replay` runs it again on the captured ones;
`CapturedGraph.slots` and `.update` read and write host arguments by name; `scope` gives names to
parts of the code; `constant` declares what replay may take as it is; `register_graph_handler` makes
arguments of any operator updatable; `CapturedGraph.to_dot` and `.diff` show what was captured;
`save` writes a graph into a file, from which `load` makes it in another process.
"""

from __future__ import annotations

from bringup.graphs._capture import capture, constant, is_current_stream_capturing, scope
from bringup.graphs._control_flow import record_control_flow
from bringup.graphs._describe import Change, GraphDiff, GraphMemory
from bringup.graphs._dispatch_records import DispatchRecord
from bringup.graphs._events import ExternalEvent
from bringup.graphs._graph import CapturedGraph, NodeLevel, UpdateReport
from bringup.graphs._graphed_callables import make_graphed_callables
from bringup.graphs._handlers import (
    GraphOpHandler,
    _registry,
    graph_handler_scope,
    graph_handlers,
    register_graph_handler,
    unregister_graph_handler,
)
from bringup.graphs._host_functions import (
    host_function,
    launch_host_function,
    print_tensor,
    save_tensor,
    subscribe_report,
)
from bringup.graphs._lint import DetectedUpdate, DetectedUpdates, Refusal, detect_updates, lint
from bringup.graphs._load import load
from bringup.graphs._pieces import Piece
from bringup.graphs._plans import BoundPlan, Constant, Input, PlannedCall, UpdatePlan
from bringup.graphs._pool import GraphPool, graph_pool_handle
from bringup.graphs._recorded_arguments import TensorRef
from bringup.graphs._save import save
from bringup.graphs._slots import HostValue, NodeInfo, Slot
from bringup.graphs._task_groups import (
    TaskGroup,
    graph_task_group_begin,
    graph_task_group_end,
    graph_task_update_begin,
    graph_task_update_end,
)

__all__ = [
    "BoundPlan",
    "CapturedGraph",
    "Change",
    "Constant",
    "DetectedUpdate",
    "DetectedUpdates",
    "DispatchRecord",
    "ExternalEvent",
    "GraphDiff",
    "GraphMemory",
    "GraphOpHandler",
    "GraphPool",
    "HostValue",
    "Input",
    "NodeInfo",
    "NodeLevel",
    "NpuGraphOpHandler",
    "Piece",
    "PlannedCall",
    "Refusal",
    "Slot",
    "TaskGroup",
    "TensorRef",
    "TensorWeakRef",
    "UpdatePlan",
    "UpdateReport",
    "capture",
    "constant",
    "detect_updates",
    "graph_handler_scope",
    "graph_handlers",
    "graph_pool_handle",
    "graph_task_group_begin",
    "graph_task_group_end",
    "graph_task_update_begin",
    "graph_task_update_end",
    "host_function",
    "is_current_stream_capturing",
    "lint",
    "load",
    "make_graphed_callables",
    "print_tensor",
    "register_graph_handler",
    "register_npu_graph_handler",
    "save",
    "save_tensor",
    "scope",
    "unregister_graph_handler",
]

record_control_flow()

# What torch_npu calls them.
NpuGraphOpHandler = GraphOpHandler
register_npu_graph_handler = register_graph_handler
TensorWeakRef = TensorRef
_launch_host_func = launch_host_function
_subscribe_report = subscribe_report
_NPU_GRAPH_OP_HANDLERS = _registry  # for writing; `graph_handlers` is for reading
