"""What packages add to a device, loaded or not: attributes of `torch.<device>` and a code
generator. Below them, so that neither imports the other.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` for it takes longer than this module
if TYPE_CHECKING:
    from collections.abc import Callable


GRAPHS = {
    "ExternalEvent": "ExternalEvent", "MemPool": "GraphPool", "NPUGraph": "CapturedGraph",
    "_launch_host_func": "_launch_host_func", "_subscribe_report": "_subscribe_report",
    "_unsubscribe_report": "_subscribe_report", "graph": "capture",
    "graph_pool_handle": "graph_pool_handle", "graph_task_group_begin": "graph_task_group_begin",
    "graph_task_group_end": "graph_task_group_end",
    "graph_task_update_begin": "graph_task_update_begin",
    "graph_task_update_end": "graph_task_update_end",
    "is_current_stream_capturing": "is_current_stream_capturing",
    "make_graphed_callables": "make_graphed_callables",
}  # fmt: skip
"""What torch_npu calls captured graphs by, and the name in `bringup.graphs`."""

_factories: dict[str, Callable[[], object]] = {}
_code_generators: list[Callable[[str], object]] = []


def register_module_attribute(name: str, factory: Callable[[], object]) -> None:
    """Make `factory()` the attribute `name` of the device module, made when first asked for.

    Args:
        name: an identifier, e.g. "graph" for `torch.npu.graph`.
        factory: called at most once a module; may import what it needs.

    Raises:
        ValueError: `name` is no identifier, or another factory has it.
    """
    if not name.isidentifier():
        raise ValueError(
            f"{name!r} cannot be an attribute of the device module: it is no identifier"
        )
    if _factories.setdefault(name, factory) is not factory:
        raise ValueError(f"the device module's attribute {name!r} is already registered")


def resolve(name: str) -> object:
    """Return the value of a registered attribute; `KeyError` for any other name."""
    return _factories[name]()


def names() -> list[str]:
    """Return the names that `resolve` knows."""
    return sorted(_factories)


def use_code_generator(register: Callable[[str], object]) -> None:
    """Let `register(name)` register the code generator of a device named so with Inductor."""
    _code_generators[:] = [register]


def register_code_generator(name: str) -> None:
    """Register the code generator of the device `name`, if there is one."""
    for register in _code_generators:
        register(name)
