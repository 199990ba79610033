"""Exported programs: weights are constants while passes run, and new constants are kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import fx
from torch._export.passes.lift_constants_pass import ConstantAttrMap, lift_constants_pass
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

_HELD = frozenset({InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR})


@contextmanager
def frozen_program(program: ExportedProgram) -> Iterator[frozenset[str]]:
    """In this block the program's weights are constants of its graph; gives their names.

    Those that the program writes are left alone. Afterwards a weight that is still read is an input
    again, and constants that passes made belong to the program, so that saving keeps them.
    """
    module: Any = program.graph_module
    frozen = _freeze(program, module)
    try:
        yield frozenset(frozen)
    finally:
        for name, placeholder in frozen.items():
            for node in [*module.graph.find_nodes(op="get_attr", target=name)]:
                node.replace_all_uses_with(placeholder)
                module.graph.erase_node(node)
            delattr(module, name)
        _lift_constants(program, module)
        _rename_outputs(program, module)
        module.recompile()


def _freeze(program: ExportedProgram, module: Any) -> dict[str, Any]:
    signature = program.graph_signature
    written = {*signature.buffers_to_mutate.values(), *signature.parameters_to_mutate.values()}
    held = {**program.constants, **program.state_dict}
    placeholders = {node.name: node for node in module.graph.find_nodes(op="placeholder")}
    first = next(node for node in module.graph.nodes if node.op != "placeholder")
    frozen: dict[str, Any] = {}
    for spec in signature.input_specs:
        tensor = held.get(spec.target or "")
        if spec.kind not in _HELD or spec.target in written or tensor is None:
            continue
        placeholder, name = placeholders[spec.arg.name], f"_frozen_{len(frozen)}"
        module.register_buffer(name, tensor.detach(), persistent=False)
        with module.graph.inserting_before(first):
            constant = module.graph.get_attr(name)
        constant.meta["val"] = placeholder.meta["val"]
        placeholder.replace_all_uses_with(constant)
        frozen[name] = placeholder
    return frozen


def _lift_constants(program: ExportedProgram, module: Any) -> None:
    """New constants become inputs that the program holds."""
    constants = module.graph.find_nodes(op="get_attr")
    for node in constants:
        node.meta.setdefault("nn_module_stack", {})  # torch asks for it: whose constant is it?
    names = {node.target for node in constants}
    for node in constants:
        if not node.users:  # torch looks at the first reader of each
            module.graph.erase_node(node)
    lifted = lift_constants_pass(module, program.graph_signature, ConstantAttrMap())
    program.constants.update(lifted)
    for name in names:
        if name in dict(module.named_buffers(recurse=False)):
            delattr(module, name)


def _rename_outputs(program: ExportedProgram, module: Any) -> None:
    """Let the signature name the outputs as the rewritten graph does."""
    results = module.graph.output_node().args[0]
    for spec, result in zip(program.graph_signature.output_specs, results, strict=True):
        if isinstance(result, fx.Node) and getattr(spec.arg, "name", None) is not None:
            spec.arg.name = result.name
