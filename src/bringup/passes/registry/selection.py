"""Choosing the passes of a compile, by the engine's rules: name, version, switch, order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bringup import settings
from bringup.errors import did_you_mean
from bringup.passes.engine import native
from bringup.passes.registry.descriptor import PassDescriptor
from bringup.passes.registry.registry import descriptors_of, get_registered_passes


def select_passes(
    names: Sequence[str] | None,
    *,
    versions: Mapping[str, str] | None = None,
    switch: Mapping[str, bool] | None = None,
) -> tuple[PassDescriptor, ...]:
    """Return the registered passes of these names in running order; all of them for None.

    What a pass `requires` is selected with it.

    Args:
        names: of passes, each also as `name@version`.
        versions: the version to run, by name; otherwise the newest one runs.
        switch: passes to switch off (or on) by name, `ALL` for all others. It goes before
            `BRINGUP_PASS_SWITCH`.

    Raises `ValueError` that suggests the nearest name when a pass or version is not registered,
    `TypeError` for an argument of another kind, and `PassError` when passes cannot be ordered or a
    required one is missing or switched off.
    """
    _check_kinds(names, versions, switch)
    wanted = dict(versions or {})
    listed = None
    if names is not None:
        listed = [_split(name, wanted) for name in names]
    registered = get_registered_passes()  # alive until the end: what is chosen is made once
    known = dict.fromkeys(item.pass_name for item in registered)
    for name in (*(listed or ()), *wanted, *(switch or ())):
        if name not in known and name != "ALL":
            raise _unknown(name, list(known))
    switches = {**settings.pass_switch(), **(switch or {})}
    try:
        return descriptors_of(native.select_passes(listed, wanted, switches))
    except KeyError as error:
        raise ValueError(error.args[0]) from None


def is_enabled(name: str, switches: Mapping[str, bool]) -> bool:
    """Return whether pass `name` runs: by its own in `switches`, else by `ALL`, else it does."""
    return native.is_enabled(name, dict(switches))


def _check_kinds(names: object, versions: object, switch: object) -> None:
    if isinstance(names, str):
        raise TypeError(f"passes must be a list of names or None, got the string {names!r}")
    if names is not None and not isinstance(names, Iterable):
        raise TypeError(f"passes must be a list of names or None, got {names!r}")
    stated = (("pass_versions", versions, str), ("pass_switch", switch, bool))
    for option, given, kind in stated:
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(
                f"{option} must map names of passes to a {kind.__name__}, got {given!r}"
            )
        for name, value in (given or {}).items():
            if not isinstance(name, str) or not isinstance(value, kind):
                raise TypeError(
                    f"{option} must map names of passes to a {kind.__name__}, got {value!r} for "
                    f"{name!r}"
                )


def _split(name: object, versions: dict[str, str]) -> str:
    if not isinstance(name, str):
        raise TypeError(f"passes must be a list of names, got {name!r} in it")
    plain, separator, version = name.partition("@")
    if separator:
        versions[plain] = version
    return plain


def _unknown(name: str, known: list[str]) -> ValueError:
    there = f"there are {known}" if known else "there are no passes at all"
    return ValueError(
        f"no pass named {name!r} is registered; {there}{did_you_mean(name, known) or '.'}"
    )
