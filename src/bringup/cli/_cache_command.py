"""`bringup cache`: what it holds, why a kernel was built anew, its bounds, and bundles of it."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bringup import jit, report, settings
from bringup.cli._exit_codes import ExitCode
from bringup.cli._requirements import ExecutorAddress, JsonFile, Output
from bringup.jit.store.prune import Pruned
from bringup.report._columns import fixed, numbers, texts

_SHOWN_DIGITS = 12

Key = Annotated[str, typer.Argument(help="The first digits of an entry's key.")]


def _cache() -> jit.Cache:
    """Return the user's cache, never a private one. Raises `PermissionError` saying why."""
    found = jit.Cache(settings.cache_dir())
    if reason := found.distrust():
        raise PermissionError(
            f"the kernel cache at {found.root} is not used: {reason}. Mend that, or set "
            "BRINGUP_CACHE_DIR to a folder of your own"
        )
    return found


def _ago(then: float) -> str:
    seconds = max(time.time() - then, 0)
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "now"


def _size(count: int) -> str:
    return f"{count / 1024:,.1f} KiB"


def ls(json_file: JsonFile = None) -> None:
    """List the kernels in the cache."""
    cache = _cache()
    entries = cache.entries()
    total = sum(entry.bytes for entry in entries)
    columns = [*fixed("key"), *texts("source"), *numbers("size"), *texts("last used", "loaded")]
    table = report.Table(f"Kernels in {cache.root}", columns)
    for entry in sorted(entries, key=lambda entry: -entry.last_used):
        loaded = "yes" if entry.in_use else ""
        used = _ago(entry.last_used)
        table.add(entry.key[:_SHOWN_DIGITS], entry.name, _size(entry.bytes), used, loaded)
    table.notes.append(f"{len(entries)} kernels, {_size(total)}")
    out = Output(json_file)
    report.render(table, out.console)
    rows = [entry._asdict() for entry in entries]
    out.results({"root": cache.root, "bytes": total, "entries": rows})


def _files(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest of every header and library that a build read."""
    record = meta["record"]
    digests = (*record["headers"], *record.get("inputs", ()))
    return dict(zip(meta["headers"], digests, strict=True))


def show(key: Key, json_file: JsonFile = None) -> None:
    """Show one kernel: what it was built from, and how."""
    entry = _cache().find(key)
    meta = entry.meta()
    table = report.Table(f"{entry.name} {entry.key}", [*fixed("what"), *texts("")])
    for field, values in meta["record"].items():
        if field not in ("headers", "inputs"):
            table.add(field, " ".join(values))
    table.add("built with", str(meta["compiler"]))
    table.add("in", f"{meta['seconds']:.2f} s")
    out = Output(json_file)
    report.render(table, out.console)
    # Not in the table, which would break them where they cannot be copied.
    for title, lines in (
        ("folder", [str(entry.path)]),
        ("read", meta["headers"]),
        ("command", [shlex.join(meta["command"])]),
    ):
        out.say("\n  ".join((f"\n{title}:", *lines)))
    out.results({**entry._asdict(), "meta": meta})


def why(first: Key, second: Key, json_file: JsonFile = None) -> None:
    """Say what two kernels were built from differently. Exit code 0 also when nothing differs."""
    metas = [_cache().find(key).meta() for key in (first, second)]
    found = jit.differences(metas[1]["record"], metas[0]["record"])
    ours, theirs = (_files(meta) for meta in metas)
    changed = sorted(path for path in {*ours, *theirs} if ours.get(path) != theirs.get(path))
    out = Output(json_file)
    rows = [
        {"field": one.field, "first": one.theirs, "second": one.ours, "says": str(one)}
        for one in found
    ]
    results = {"differences": rows, "files": changed}
    if not found:
        out.say("Nothing differs: both keys are the same.")
        out.results(results)
        return
    table = report.Table(
        f"{metas[1]['key'][:_SHOWN_DIGITS]} against {metas[0]['key'][:_SHOWN_DIGITS]}",
        [*fixed("field"), *texts("difference")],
    )
    for one in found:
        table.add(one.field, str(one))
    table.notes.extend(f"other content, or read by one only: {path}" for path in changed)
    report.render(table, out.console)
    out.results(results)


def _report_removed(done: Pruned, out: Output) -> None:
    out.say(f"{len(done.removed)} kernels removed, {_size(done.bytes)}")
    if done.in_use:
        keys = ", ".join(key[:_SHOWN_DIGITS] for key in done.in_use)
        out.say(f"{len(done.in_use)} stay, for running processes have them loaded: {keys}")
    out.results(vars(done))


def _bound(text: str) -> float:
    try:
        return settings.size(text) or math.inf
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def prune(
    max_bytes: Annotated[
        float | None,
        typer.Option(
            parser=_bound,
            metavar="BYTES",
            help="What all kernels may hold, also with K, M or G; default: the setting.",
        ),
    ] = None,
    max_entries: Annotated[
        int | None, typer.Option(help="How many kernels may stay; default: the setting.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Remove the kernels used longest ago until the cache is within its bounds."""
    _report_removed(_cache().prune(max_bytes, max_entries), Output(json_file))


def clear(json_file: JsonFile = None) -> None:
    """Remove everything but what running processes have loaded."""
    _report_removed(_cache().clear(), Output(json_file))


def export(
    path: Annotated[Path, typer.Argument(help="The bundle to write.")],
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="Which kernels, by the first digits of their keys."),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Write kernels into one file, for machines without a compiler."""
    entries = _cache().export_bundle(path, keys or None)
    words = f"{len(entries)} kernels in {path} ({_size(path.stat().st_size)})"
    _report_entries(Output(json_file), words, path, entries)


def import_(
    path: Annotated[Path, typer.Argument(help="A bundle that `bringup cache export` wrote.")],
    json_file: JsonFile = None,
) -> None:
    """Take the kernels of a bundle. They are programs: take them only from people you trust."""
    entries = _cache().import_bundle(path)
    words = f"{len(entries)} kernels of {path} can be used here"
    _report_entries(Output(json_file), words, path, entries)


def _report_entries(out: Output, words: str, path: Path, entries: Sequence[jit.Entry]) -> None:
    out.say(words)
    out.results({"path": path, "entries": [entry._asdict() for entry in entries]})


def prebuild(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="Of specs, written by jit.record or jit.save_specs."),
    ],
    workers: Annotated[
        int | None, typer.Option("--workers", help="Compilers at a time; default: processors.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", help="Build for this instead of the specs' own; repeatable."),
    ] = None,
    executor: ExecutorAddress = None,
    json_file: JsonFile = None,
) -> None:
    """Build all kernels of the files that the cache lacks. Exit code 1: one could not be built."""
    specs = jit.load_specs(*files)
    done = jit.prebuild(specs, workers=workers, targets=target or None, executor=executor)
    out = Output(json_file)
    out.say(str(done))
    outcomes = [
        {
            "kernel": str(outcome.spec),
            "status": outcome.status,
            "key": outcome.key,
            "seconds": round(outcome.seconds, 4),
            "error": str(outcome.error or ""),
        }
        for outcome in done.outcomes
    ]
    out.results({"cache": str(jit.cache().root), "outcomes": outcomes})
    if done.failed:
        raise typer.Exit(ExitCode.FAILED)
