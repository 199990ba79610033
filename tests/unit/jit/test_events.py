"""Events: who hears them, and what a listener that fails does."""

from __future__ import annotations

import logging

import pytest

from bringup.jit import _build, _compile, _events
from bringup.jit._source import Source


@pytest.fixture
def request_of_a_kernel() -> _build.Request:
    compiler = _compile.find_target("cpu").toolchain(_compile.cache())
    return _build.Request(Source(text="int run;", name="k.c"), (), "cpu", (), compiler)


def test_a_listener_hears_events_until_it_unsubscribes(request_of_a_kernel: _build.Request) -> None:
    heard: list[_events.Event] = []
    unsubscribe = _events.subscribe(heard.append)
    assert _events.has_listeners()
    asked = _events.Asked(request_of_a_kernel)
    _events.emit(asked)
    unsubscribe()
    unsubscribe()
    _events.emit(asked)
    assert heard == [asked]


def test_a_listener_that_raises_is_logged_and_the_others_still_hear(
    request_of_a_kernel: _build.Request, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(event: _events.Event) -> None:
        raise RuntimeError("no room")

    heard: list[_events.Event] = []
    ends = [_events.subscribe(broken), _events.subscribe(heard.append)]
    waiting = _events.Waiting(request_of_a_kernel, "key", 5.0, pid=7)
    try:
        with caplog.at_level(logging.ERROR, "bringup.jit"):
            _events.emit(waiting)
    finally:
        for end in ends:
            end()
    assert heard == [waiting]
    assert "a listener of jit events failed on Waiting" in caplog.text
    assert "no room" in caplog.text
