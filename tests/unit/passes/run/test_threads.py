"""One graph in two threads: an error, never a crash."""

import threading

import pytest
from tests.unit.passes.plain import PlainDialect, desc

from bringup import ir, passes
from bringup.passes.matching.native_matcher import NativeMatcher


class Waiting(PlainDialect):
    """Answers what a tensor looks like when it is allowed to: holds a search where it is."""

    def __init__(self):
        super().__init__()
        self.asked, self.allowed = threading.Event(), threading.Event()

    def describe(self, meta):
        if threading.current_thread() is not threading.main_thread():
            self.asked.set()
            assert self.allowed.wait(60)
        return meta


def test_graph_that_another_thread_searches_cannot_be_edited():
    """The search walks over the graph's memory without the GIL."""
    dialect = Waiting()
    graph = ir.Graph("searched", dialect)
    x = graph.add_input(meta=desc(4))
    node = graph.insert("t::relu", (x,))
    graph.set_outputs(node.output)
    builder = ir.GraphBuilder("pattern", dialect)
    wanted = builder.op("t::relu", builder.create_input()).where(dtype="float32")
    pattern = passes.Pattern(builder.build_and_reset(wanted))
    matcher = NativeMatcher(pattern, graph, ir.AliasAnalysis(graph))
    found = []
    search = threading.Thread(target=lambda: found.extend(matcher.matches()))
    search.start()
    assert dialect.asked.wait(60)
    try:
        for edit in (
            lambda: graph.insert("t::relu", (x,)),
            lambda: graph.add_input(),
            lambda: graph.erase(node),
            lambda: graph.set_outputs(x),
            lambda: graph.replace_all_uses(node.output, x),
        ):
            with pytest.raises(
                RuntimeError, match="graph 'searched' cannot be edited: another thread is looking"
            ):
                edit()
        with pytest.raises(RuntimeError, match="cannot be edited"), graph.transaction():
            pass
    finally:
        dialect.allowed.set()
        search.join()
    assert len(found) == 1
    graph.insert("t::relu", (x,))
