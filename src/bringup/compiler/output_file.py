"""Writing a file whole or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Open an empty file, which replaces `path`, keeping permissions, if the block ends well."""
    made = path.parent / f".{path.stem}.{uuid.uuid4().hex[:8]}{path.suffix}"
    os.close(os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield made
        if path.exists():
            made.chmod(path.stat().st_mode & 0o7777)
        made.replace(path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
