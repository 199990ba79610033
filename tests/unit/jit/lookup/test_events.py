"""Events: who hears them, and what a listener that fails does."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from bringup.errors import CompileError
from bringup.jit.builder import build
from bringup.jit.lookup import compilation, events
from bringup.jit.source.source import Source


@pytest.fixture
def request_of_a_kernel() -> build.Request:
    compiler = compilation.find_target("cpu").toolchain(compilation.cache())
    return build.Request(Source(text="int run;", name="k.c"), (), "cpu", (), compiler)


def test_a_listener_hears_events_until_it_unsubscribes(request_of_a_kernel: build.Request) -> None:
    heard: list[events.Event] = []
    unsubscribe = events.subscribe(heard.append)
    assert events.has_listeners(events.Asked)
    asked = events.Asked(request_of_a_kernel)
    events.emit(asked)
    unsubscribe()
    unsubscribe()
    events.emit(asked)
    assert heard == [asked]


def test_a_listener_hears_only_the_kinds_it_wants(request_of_a_kernel: build.Request) -> None:
    heard: list[events.Event] = []
    unsubscribe = events.subscribe(heard.append, events.Waiting)
    try:
        assert not events.has_listeners(events.Asked)
        events.emit(events.Asked(request_of_a_kernel))
        events.emit(events.Waiting(request_of_a_kernel, "key", 5.0))
    finally:
        unsubscribe()
    assert [type(event) for event in heard] == [events.Waiting]


def test_a_compile_announces_its_steps_and_a_hit_only_that_it_was_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path))
    heard: list[events.Event] = []
    unsubscribe = events.subscribe(heard.append)
    source = Source(text="int run() { return 0; }", name="k.c")
    try:
        for _ in range(2):
            compilation.compile(source, macros={"N": 1})
        with pytest.raises(CompileError):
            compilation.compile(Source(text="no", name="no.c"))
    finally:
        unsubscribe()
    kinds = [type(event).__name__ for event in heard]
    assert kinds == [
        *("Asked", "CompileStarted", "CompileFinished", "Asked"),
        *("Asked", "CompileStarted", "CompileFailed"),
    ]
    started, finished = heard[1:3]
    assert isinstance(started, events.CompileStarted)
    assert isinstance(finished, events.CompileFinished)
    assert (started.request.source, started.request.macros) == (source, ("N=1",))
    assert finished.key == started.key == started.request.key(source.digest())
    assert finished.seconds > 0


def test_a_listener_that_raises_is_logged_and_the_others_still_hear(
    request_of_a_kernel: build.Request, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(event: events.Event) -> None:
        raise RuntimeError("no room")

    heard: list[events.Event] = []
    ends = [events.subscribe(broken), events.subscribe(heard.append)]
    waiting = events.Waiting(request_of_a_kernel, "key", 5.0, pid=7)
    try:
        with caplog.at_level(logging.ERROR, "bringup.jit"):
            events.emit(waiting)
    finally:
        for end in ends:
            end()
    assert heard == [waiting]
    assert "a listener of jit events failed on Waiting" in caplog.text
    assert "no room" in caplog.text
