"""The graph that passes see; what an operator is reaches it through a Dialect. Never imports torch.

In reading order: `SymbolicDim` (a size that is not known yet), `Shape` and `TensorDesc` (what a
tensor looks like), `Dialect` (who knows operators), `Graph`, `Node`, `Value` (the graph and its
edits), `GraphBuilder` and `TensorHolder` (making one).
"""

from bringup.ir.builder import GraphBuilder, TensorHolder
from bringup.ir.constraint import DimPattern, TensorConstraint
from bringup.ir.dialect import (
    Dialect,
    VerifiableDialect,
    current_dialect,
    special_numbers,
    use_dialect,
)
from bringup.ir.edits import Control, Edit, Erase, Insert, Move, Rewire
from bringup.ir.effects import AliasAnalysis
from bringup.ir.graph import Graph
from bringup.ir.inference import infer_shapes
from bringup.ir.node import (
    CONSTANT,
    INPUT,
    ONE_OF,
    OUTPUT,
    InAnchor,
    Node,
    OutAnchor,
    Value,
    argument_text,
    node_text,
)
from bringup.ir.operators import Operator, Parameter
from bringup.ir.order import topological_sort
from bringup.ir.outputs import replace_output
from bringup.ir.printing import graph_text, to_dot
from bringup.ir.schemas import COMMUTATIVE_ATEN, AtenOperators, AtenSchemas, aten_schemas
from bringup.ir.symbolic import Dim, DimLike, SymbolicDim, same_size, sizes_in
from bringup.ir.tensor import ConstantData, Shape, TensorDesc

__all__ = [
    "COMMUTATIVE_ATEN", "CONSTANT", "INPUT", "ONE_OF", "OUTPUT", "AliasAnalysis", "AtenOperators",
    "AtenSchemas", "ConstantData", "Control", "Dialect", "Dim", "DimLike", "DimPattern", "Edit",
    "Erase", "Graph", "GraphBuilder", "InAnchor", "Insert", "Move", "Node", "Operator", "OutAnchor",
    "Parameter", "Rewire", "Shape", "SymbolicDim", "TensorConstraint", "TensorDesc", "TensorHolder",
    "Value", "VerifiableDialect", "argument_text", "aten_schemas", "current_dialect", "graph_text",
    "infer_shapes", "node_text", "replace_output", "same_size", "sizes_in", "special_numbers",
    "to_dot", "topological_sort", "use_dialect",
]  # fmt: skip
