"""Compiling a model's file: passes run over it, and the result is a file again."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from bringup import passes, settings
from bringup.compiler.apply import apply_passes
from bringup.compiler.output_file import replacing
from bringup.compiler.pass_runs import LIBRARY
from bringup.errors import ModelError
from bringup.passes import PassReport, PassStage
from bringup.passes.registry.loader import import_pass_module


def compile_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    names: Sequence[str] | None = None,
    paths: Sequence[str | os.PathLike[str]] = (),
    modules: Sequence[str] = (),
    stages: Sequence[PassStage] | None = None,
    library: bool = True,
    decompose: bool = False,
    options: Mapping[str, object] | None = None,
) -> PassReport:
    """Run passes over the model in a file and write what comes of it, whole or not at all.

    Args:
        source: an ONNX model (`.onnx`, which needs no torch), or a `.pt2` of `torch.export.save`.
        target: where the result goes, of the same kind; may be `source`. Data that an ONNX model
            keeps in other files stay there where both lie in one folder.
        names: of the passes; None for all that are registered and switched on.
        paths: files and folders with passes, besides those of `BRINGUP_PASS_PATH`.
        modules: Python modules that register passes when they are imported.
        stages: run only the passes of these stages; None for all of them.
        library: whether bringup's passes for such models are among them.
        decompose: whether composite operators of an exported program are taken apart first.
        options: see `apply_passes`, for example `{"verify": True}`.

    Returns the report. Raises `ModelError` for a file that is no model or of another kind,
    `OSError` for one that cannot be read or written, `PluginError` when passes cannot be loaded,
    `PassError` when one failed, and `ValueError` for an unknown name. The target is then as it was.
    """
    given, wanted = Path(source), Path(target)
    read, write = _kind_of(given, wanted)
    if not given.is_file():
        raise FileNotFoundError(f"there is no file {given}")
    if not wanted.absolute().parent.is_dir():
        raise FileNotFoundError(f"the folder {wanted.absolute().parent} does not exist")
    is_onnx = given.suffix == ".onnx"
    _load(paths, modules, library=not is_onnx)
    model = read(given)
    if decompose and not is_onnx:
        model = model.run_decompositions()
    with _onnx_library() if is_onnx and library else nullcontext():
        leave_out = () if library or is_onnx else (LIBRARY,)
        switched = _switched(options or {}, stages, leave_out)
        report = apply_passes(model, names, options=switched)
    write(model, wanted)
    return report


def _kind_of(
    source: Path, target: Path
) -> tuple[Callable[[Path], Any], Callable[[Any, Path], None]]:
    kinds: dict[str, tuple[Callable[[Path], Any], Callable[[Any, Path], None]]] = {
        ".onnx": (_read_onnx, lambda model, path: model.save(path)),
        ".pt2": (_read_exported, _write_exported),
    }
    if source.suffix not in kinds:
        raise ModelError(
            f"{source} is of no known kind: expected an ONNX model (.onnx) or an exported program "
            "of torch (.pt2)"
        )
    if target.suffix != source.suffix:
        raise ModelError(
            f"{target} must end in {source.suffix}, as {source} does: passes do not turn one kind "
            "of model into another"
        )
    return kinds[source.suffix]


def _load(
    paths: Sequence[str | os.PathLike[str]], modules: Sequence[str], *, library: bool
) -> None:
    for name in modules:
        import_pass_module(name)
    found = passes.load_pass_plugins(*paths, library=library)
    if found.errors:  # one that was asked for and is left out would be a silent difference
        raise found.errors[0]


def _onnx_library() -> AbstractContextManager[None]:
    """Return the library for ONNX models, for the time of one file."""
    if not settings.pass_library():
        return nullcontext()
    from bringup.compiler.onnx.library import library_registered

    return library_registered()


def _switched(
    options: Mapping[str, object], stages: Sequence[PassStage] | None, leave_out: tuple[str, ...]
) -> dict[str, object]:
    """Return the options with passes of other stages, and of modules to leave out, off."""
    switch = dict(options.get("pass_switch", {}))  # type: ignore[call-overload]
    for item in passes.get_registered_passes():
        is_other = stages is not None and item.stage not in stages
        if is_other or (leave_out and item.pass_class.__module__.startswith(leave_out)):
            switch[item.pass_name] = False
    return {**options, "pass_switch": switch} if switch else dict(options)


def _read_onnx(path: Path) -> Any:
    from bringup.compiler import onnx

    return onnx.load(path)


def _read_exported(path: Path) -> Any:
    import torch

    try:
        return torch.export.load(path)
    except Exception as error:
        raise ModelError(
            f"{path} is no exported program that this torch ({torch.__version__}) reads: "
            f"{type(error).__name__}: {error}"
        ) from error


def _write_exported(program: Any, path: Path) -> None:
    import torch

    with replacing(path) as made:
        torch.export.save(program, made)
