"""Columns of the commands' tables, by kind."""

from __future__ import annotations

from bringup.report import Column


def texts(*headings: str) -> list[Column]:
    """Return columns whose texts may be folded."""
    return [Column(heading) for heading in headings]


def fixed(*headings: str) -> list[Column]:
    """Return columns whose texts stay in one line."""
    return [Column(heading, fixed=True) for heading in headings]


def numbers(*headings: str) -> list[Column]:
    """Return columns of numbers."""
    return [Column(heading, number=True) for heading in headings]
