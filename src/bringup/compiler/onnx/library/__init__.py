"""The pass library on ONNX: what onnxscript's rewriter does by default, where it is right.

`register_library()` registers the passes; importing this package registers nothing. They run in the
stage `AFTER_INFER_SHAPE`, in the order of `LIBRARY`, after the passes that others register with the
default priority. `bringup compile` registers them for the time of one file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bringup.compiler.onnx.library.casts import MergeCasts
from bringup.compiler.onnx.library.clips import MergeClips
from bringup.compiler.onnx.library.convolutions import DropZeroBiases, ExplicitPads, PadIntoConv
from bringup.compiler.onnx.library.no_ops import DropNoOps
from bringup.compiler.onnx.library.normalizations import BatchNormIntoWeights
from bringup.compiler.onnx.library.products import MatMulAddToGemm, MatMulWithoutReshapes
from bringup.compiler.onnx.library.reshapes import MergeReshapes, MergeUnsqueezes
from bringup.compiler.onnx.library.scatters import DropScatters
from bringup.compiler.onnx.library.slices import MergeSlices, SlicesToSplit
from bringup.compiler.onnx.library.transposes import MergeTransposes
from bringup.passes import ErrorPolicy, FusionBasePass, get_registered_passes, unregister_pass
from bringup.passes.registry.registering import register_in_order

__all__ = ["LIBRARY", "OPT_IN", "library_registered", "register_library"]

LIBRARY: tuple[type[FusionBasePass], ...] = (
    DropNoOps,
    MergeCasts,
    MatMulWithoutReshapes,  # before its reshapes are joined with others
    MergeReshapes,
    MergeUnsqueezes,
    MergeTransposes,
    MergeSlices,
    SlicesToSplit,
    MergeClips,
    DropScatters,
    PadIntoConv,
    ExplicitPads,
    MatMulAddToGemm,  # before what merges more into a Gemm
    BatchNormIntoWeights,
    DropZeroBiases,  # also those that a normalization left
)
"""The passes in the order in which they run; each is registered as `OnnxLibrary` + its name."""

OPT_IN: frozenset[type[FusionBasePass]] = frozenset({MatMulAddToGemm})
"""Those that are registered only by name, as onnxscript has them outside its defaults."""


def register_library(names: Sequence[str] | None = None) -> tuple[str, ...]:
    """Register passes of the ONNX library and return the names they are registered under.

    Args:
        names: class names (`MergeCasts`) of the ones to register; None for all but `OPT_IN`.
            Registering one again is free.

    Raises `ValueError` for a name that the library does not have, or that another pass has taken.
    """
    if names is None:
        names = [item.__name__ for item in LIBRARY if item not in OPT_IN]
    return register_in_order(
        LIBRARY,
        names,
        prefix="OnnxLibrary",
        owner="the ONNX library",
        on_error=ErrorPolicy.ROLLBACK,  # what it cannot improve, it leaves
    )


@contextmanager
def library_registered() -> Iterator[None]:
    """In this block the library is registered; what was not before is forgotten at its end."""
    before = {item.pass_name for item in get_registered_passes()}
    names = register_library()
    try:
        yield
    finally:
        for name in names:
            if name not in before:
                unregister_pass(name)
