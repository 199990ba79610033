"""Choosing the passes of a compile: by name, version and switch, and in which order they run."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from bringup import settings
from bringup.errors import PassError
from bringup.passes.descriptor import PassDescriptor, version_key
from bringup.passes.registry import get_registered_passes
from bringup.passes.stages import PassStage

__all__ = ["in_running_order", "is_switched_on", "select_passes"]


def select_passes(
    names: Sequence[str] | None,
    *,
    versions: Mapping[str, str] | None = None,
    switch: Mapping[str, bool] | None = None,
) -> tuple[PassDescriptor, ...]:
    """The registered passes of these names in running order; all of them for None.

    What a pass `requires` is selected with it.

    Arguments:
        names: of passes, each also as `name@version`.
        versions: the version to run, by name; otherwise the newest one runs.
        switch: passes to switch off (or on) by name, `ALL` for all others. It goes before
            `BRINGUP_PASS_SWITCH`.

    Raises `ValueError` that suggests the nearest name when a pass or version is not registered,
    and `PassError` when passes cannot be ordered or a required one is missing or switched off.
    """
    if isinstance(names, str):
        raise TypeError(f"passes must be a list of names or None, got the string {names!r}")
    wanted = dict(versions or {})
    listed = None
    if names is not None:
        listed = [_split(name, wanted) for name in names]
    by_name = _one_of_each(wanted)
    for name in (*(listed or ()), *wanted, *(switch or ())):
        if name not in by_name and name != "ALL":
            raise _unknown(name, by_name)
    chosen = list(by_name.values() if listed is None else (by_name[name] for name in listed))
    switches = {**settings.pass_switch(), **(switch or {})}
    chosen = [item for item in chosen if is_switched_on(item.pass_name, switches)]
    return in_running_order(_with_required(chosen, by_name, switches))


def is_switched_on(name: str, switches: Mapping[str, bool]) -> bool:
    """Whether a pass runs: by its own switch, else by that of `ALL`, else it does."""
    return switches.get(name, switches.get("ALL", True))


def in_running_order(descriptors: Iterable[PassDescriptor]) -> tuple[PassDescriptor, ...]:
    """By stage; within one by `requires` and `after`, then priority, then name.

    Raises `PassError` that names the passes when there is no such order.
    """
    by_name = {item.pass_name: item for item in descriptors}
    stages = list(PassStage)
    for item in by_name.values():
        for before in _predecessors(item, by_name):
            if stages.index(before.stage) > stages.index(item.stage):
                raise PassError(
                    f"pass {item.pass_name!r} ({item.stage.name}) shall run after "
                    f"{before.pass_name!r}, which runs in the later stage {before.stage.name}"
                )
    ordered: list[PassDescriptor] = []
    for stage in stages:
        ordered.extend(_order({k: v for k, v in by_name.items() if v.stage is stage}))
    return tuple(ordered)


def _order(by_name: Mapping[str, PassDescriptor]) -> list[PassDescriptor]:
    """Kahn's algorithm; of those that may run, the one of highest priority, then first name."""
    waiting = {
        name: {before.pass_name for before in _predecessors(item, by_name)}
        for name, item in by_name.items()
    }
    ready = [(-by_name[name].priority, name) for name, before in waiting.items() if not before]
    heapq.heapify(ready)
    ordered: list[PassDescriptor] = []
    while ready:
        _, name = heapq.heappop(ready)
        ordered.append(by_name[name])
        for other, before in waiting.items():
            if name in before:
                before.remove(name)
                if not before:
                    heapq.heappush(ready, (-by_name[other].priority, other))
    if len(ordered) < len(by_name):
        raise PassError(f"these passes shall run after each other in a circle: {_circle(waiting)}")
    return ordered


def _circle(waiting: Mapping[str, set[str]]) -> str:
    """One circle among passes that wait for each other, as `a -> b -> a`."""
    walked = [min(name for name, before in waiting.items() if before)]
    while walked.count(walked[-1]) < 2:
        walked.append(min(waiting[walked[-1]]))
    return " -> ".join(walked[walked.index(walked[-1]) :])


def _predecessors(
    item: PassDescriptor, by_name: Mapping[str, PassDescriptor]
) -> list[PassDescriptor]:
    names = dict.fromkeys((*item.requires, *item.after))
    return [by_name[name] for name in names if name in by_name]


def _with_required(
    chosen: list[PassDescriptor],
    by_name: Mapping[str, PassDescriptor],
    switches: Mapping[str, bool],
) -> list[PassDescriptor]:
    taken = {item.pass_name: item for item in chosen}
    agenda = list(chosen)
    while agenda:
        item = agenda.pop()
        for name in item.requires:
            if name in taken:
                continue
            if name not in by_name:
                raise PassError(f"pass {item.pass_name!r} requires {name!r}, which is not there")
            if not is_switched_on(name, switches):
                raise PassError(
                    f"pass {item.pass_name!r} requires {name!r}, which is switched off: "
                    f"switch {item.pass_name!r} off too"
                )
            taken[name] = by_name[name]
            agenda.append(by_name[name])
    return list(taken.values())


def _one_of_each(versions: Mapping[str, str]) -> dict[str, PassDescriptor]:
    """One descriptor by name: of the version asked for, else the newest."""
    by_name: dict[str, PassDescriptor] = {}
    there: dict[str, list[str]] = {}
    for item in get_registered_passes():  # newest first
        there.setdefault(item.pass_name, []).append(item.version)
        asked = versions.get(item.pass_name)
        if asked is None or version_key(asked) == version_key(item.version):
            by_name.setdefault(item.pass_name, item)
    for name, asked in versions.items():
        if name in there and name not in by_name:
            raise ValueError(f"pass {name!r} has no version {asked!r}; there are {there[name]}")
    return by_name


def _split(name: object, versions: dict[str, str]) -> str:
    if not isinstance(name, str):
        raise TypeError(f"passes must be a list of names, got {name!r} in it")
    plain, separator, version = name.partition("@")
    if separator:
        versions[plain] = version
    return plain


def _unknown(name: str, by_name: Mapping[str, PassDescriptor]) -> ValueError:
    import difflib  # for a wrong name only

    known = list(by_name)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return ValueError(f"no pass named {name!r} is registered; there are {known}.{hint}")
