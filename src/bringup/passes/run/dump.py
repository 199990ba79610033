"""Writing graphs before and after a pass to a folder."""

from __future__ import annotations

from pathlib import Path

from bringup import ir
from bringup.errors import BringupError
from bringup.passes.report import PassResult, dump_stem


def prepare(folder: Path) -> None:
    """Make the folder; `BringupError` that names the option when nothing can be written to it."""
    from tempfile import TemporaryFile  # for dumps only

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BringupError(
            "graphs cannot be dumped (option 'dump_passes', BRINGUP_PASS_DUMP) to "
            f"{str(folder)!r}: {error.strerror or error}"
        ) from error


def dump(folder: Path, result: PassResult, before: str, graph: ir.Graph) -> None:
    """Write `<number>_<graph>_<pass>.before.txt`, `.after.txt` and `.after.dot`.

    The number is that of the session, so that files sort in the order in which passes ran. Of a
    pass that failed there is no graph after it; its traceback is written as `.error.txt`.
    """
    stem = dump_stem(result)
    (folder / f"{stem}.before.txt").write_text(before + "\n")
    if result.traceback:
        (folder / f"{stem}.error.txt").write_text(result.traceback + "\n")
    else:
        (folder / f"{stem}.after.txt").write_text(f"{graph}\n")
        (folder / f"{stem}.after.dot").write_text(ir.to_dot(graph))
