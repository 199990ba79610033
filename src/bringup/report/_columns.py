"""Columns of tables, by kind."""

from __future__ import annotations

from bringup.report._table import Column


def texts(*headings: str, least: int = 0) -> list[Column]:
    """Return columns whose texts may be folded; with `least`, left out where less room remains."""
    return [Column(heading, least=least) for heading in headings]


def names(*headings: str, least: int = 0) -> list[Column]:
    """Return columns of names, cut in the middle to fit; below `least` places left out."""
    return [Column(heading, cut=True, least=least) for heading in headings]


def fixed(*headings: str, spare: bool = False) -> list[Column]:
    """Return columns whose texts stay in one line; left out where there is no room, if `spare`."""
    return [Column(heading, fixed=True, least=int(spare)) for heading in headings]


def numbers(*headings: str, spare: bool = False) -> list[Column]:
    """Return columns of numbers; left out where there is no room, if `spare`."""
    return [Column(heading, number=True, least=int(spare)) for heading in headings]
