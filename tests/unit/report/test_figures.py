"""Pictures: where things lie in them."""

from __future__ import annotations

import re

from bringup import report


def test_both_axes_of_a_loglog_picture_are_logarithmic() -> None:
    lines = {"<roof>": [(1.0, 10.0), (100.0, 1000.0)]}
    points = {"a": [(10.0, 100.0)], "b": [(1.0, 10.0), (100.0, 10.0)]}
    picture = report.loglog(lines, points, x="FLOP/byte", y="GFLOP/s")
    segment = r'<line x1="([^"%]*)%" y1="([^"]*)" x2="([^"%]*)%" y2="([^"]*)" [^>]*dasharray'
    ((left, bottom, right, top),) = (map(float, one) for one in re.findall(segment, picture))
    places = re.findall(r'<circle cx="([^"]*)%" cy="([^"]*)" r="5" fill="([^"]*)"', picture)
    (x, y, first), (_, _, second), (far, low, third) = places
    assert (float(x), float(y)) == ((left + right) / 2, (bottom + top) / 2)
    assert (float(far), float(low)) == (right, bottom)
    assert left < right
    assert top < bottom
    assert first != second == third
    assert "&lt;roof&gt;" in picture
    assert "GFLOP/s by FLOP/byte" in picture
    assert re.findall(r">([0-9.]+)</text>", picture) == ["1", "10", "100", "10", "100", "1000"]
    legend = [int(y) for y in re.findall(r'<text x="34" y="(\d+)"', picture)]
    assert len({*legend}) == 3
    assert max(legend) < int(re.findall(r'height="(\d+)"', picture)[0])


def test_one_value_has_a_decade_around_it() -> None:
    picture = report.loglog({"flat": [(10.0, 5.0)]}, {}, x="x", y="y")
    assert re.findall(r">([0-9.]+)</text>", picture) == ["10", "100", "1", "10"]
