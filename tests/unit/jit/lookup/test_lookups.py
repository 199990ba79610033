"""The list of look-ups: its order, and when each of them is asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bringup import jit
from bringup.jit.lookup import compilation, lookups
from bringup.jit.lookup.lookups import Lookup, Question, When
from bringup.jit.store.entries import Hit

ANSWER = Hit(Path("kernel.so"), "key", ())


@pytest.fixture
def question(root: Path) -> Question:
    source = jit.Source(text="int run(void) { return 0; }", name="k.c")
    request = compilation.request_without_compiler(source, {}, "cpu", (), None)
    return Question(request, jit.cache())


def _noting(name: str, asked: list[str], answer: Hit | None) -> Callable[[Question], Hit | None]:
    def find(_question: Question) -> Hit | None:
        asked.append(name)
        return answer

    return find


def test_a_look_up_is_asked_only_where_those_above_it_had_no_answer(
    question: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    listed = (
        Lookup(_noting("empty", asked, None), (When.ASKED,)),
        Lookup(_noting("another time", asked, ANSWER), (When.ALONE,)),
        Lookup(_noting("first", asked, ANSWER), (When.ASKED, When.ALONE)),
        Lookup(_noting("second", asked, ANSWER), (When.ASKED,)),
    )
    monkeypatch.setattr(lookups, "LOOKUPS", listed)
    assert lookups.first_answer(When.ASKED, question) is ANSWER
    assert asked == ["empty", "first"]
    assert lookups.first_answer(When.CALLED, question) is None
    assert asked == ["empty", "first"]


def _asked(when: When) -> list[str]:
    return [lookup.find.__name__ for lookup in lookups.LOOKUPS if when in lookup.when]


def test_what_is_asked_when() -> None:
    """Stamps before contents, what is here before what is elsewhere, an answer before a wait."""
    assert {when: _asked(when) for when in When} == {
        When.CALLED: ["call_record"],
        When.ASKED: ["manifest", "private_cache", "portable_index"],
        When.WITHOUT_COMPILER: ["portable_index"],
        When.FROZEN: ["shared_tier"],
        When.BUILDING: ["failures"],
        When.ALONE: ["manifest", "failures", "shared_tier"],
    }


def test_a_call_without_a_record_is_answered_by_its_manifest_each_time(
    root: Path, source: jit.Source, counted: Callable[[], int]
) -> None:
    """As a debug build: nothing is remembered in memory that the disk would contradict."""
    debug = jit.Debug(line_info=True)
    binary = jit.compile(source, debug=debug)
    assert jit.compile(source, debug=debug) is binary
    assert counted() == 1
    assert not list(root.glob("v1/.calls/*"))
    binary.path.write_bytes(b"damaged")
    assert jit.compile(source, debug=debug) == binary
    assert counted() == 2
