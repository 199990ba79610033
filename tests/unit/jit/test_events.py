"""Events: who hears them, and what a listener that fails does."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from bringup.errors import CompileError
from bringup.jit import _build, _compile, _events
from bringup.jit._source import Source


@pytest.fixture
def request_of_a_kernel() -> _build.Request:
    compiler = _compile.find_target("cpu").toolchain(_compile.cache())
    return _build.Request(Source(text="int run;", name="k.c"), (), "cpu", (), compiler)


def test_a_listener_hears_events_until_it_unsubscribes(request_of_a_kernel: _build.Request) -> None:
    heard: list[_events.Event] = []
    unsubscribe = _events.subscribe(heard.append)
    assert _events.is_heard(_events.Asked)
    asked = _events.Asked(request_of_a_kernel)
    _events.emit(asked)
    unsubscribe()
    unsubscribe()
    _events.emit(asked)
    assert heard == [asked]


def test_a_listener_hears_only_the_kinds_it_wants(request_of_a_kernel: _build.Request) -> None:
    heard: list[_events.Event] = []
    unsubscribe = _events.subscribe(heard.append, _events.Waiting)
    try:
        assert not _events.is_heard(_events.Asked)
        _events.emit(_events.Asked(request_of_a_kernel))
        _events.emit(_events.Waiting(request_of_a_kernel, "key", 5.0))
    finally:
        unsubscribe()
    assert [type(event) for event in heard] == [_events.Waiting]


def test_a_compile_announces_its_steps_and_a_hit_only_that_it_was_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path))
    heard: list[_events.Event] = []
    unsubscribe = _events.subscribe(heard.append)
    source = Source(text="int run() { return 0; }", name="k.c")
    try:
        for _ in range(2):
            _compile.compile(source, macros={"N": 1})
        with pytest.raises(CompileError):
            _compile.compile(Source(text="no", name="no.c"))
    finally:
        unsubscribe()
    kinds = [type(event).__name__ for event in heard]
    assert kinds == [
        *("Asked", "CompileStarted", "CompileFinished", "Asked"),
        *("Asked", "CompileStarted", "CompileFailed"),
    ]
    started, finished = heard[1:3]
    assert isinstance(started, _events.CompileStarted)
    assert isinstance(finished, _events.CompileFinished)
    assert (started.request.source, started.request.macros) == (source, ("N=1",))
    assert finished.key == started.key == started.request.key(source.digest())
    assert finished.seconds > 0


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
