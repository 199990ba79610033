"""Rewriting graphs: one RMSNorm rule over a Llama-like block repeated to 1k, 10k and 50k nodes, and
100 rules that match nothing: because they need a number that the graph does not have, or because a
search down to the last node refuses them.

Graphs are made anew for every round, outside of the clock, which counts processor time: all systems
run on one thread, and other work on the machine does not matter. They are graph modules as
`torch.compile` hands them to backends, whose Python code is made when somebody runs it: no system's
time has that in it; the row `recompile` says what it would add to each. All systems have run once
before, on a small graph; for the 100 rules their patterns are prepared. Rows of bringup's own
parts: `mirror` is a run without passes, `match` a pass whose pattern fails only after a search down
to its last node (a run with 20 of them, less the mirror), `edit` what a run that matches takes in
addition. Their peer is the whole of `torch.fx`.
`python -m benchmarks.rewrite --nodes 10000` runs one size.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console

from benchmarks._harness import Row, row
from benchmarks._rewrite_graphs import BLOCK_NORMS, block_module, layers_for
from benchmarks._rewrite_peers import (
    SYSTEMS,
    Rule,
    System,
    bringup_many,
    bringup_mirror,
    fx_many,
    inductor_many,
    missing_rules,
    searched_rules,
)
from bringup import passes

SIZES = {1_000: 9, 10_000: 5, 50_000: 2}  # nodes, and rounds
PATTERNS = 100
_SEARCHES = 20
_MICRO = 1e3


def _timed(make: Callable[[], Any], action: Callable[[Any], Any]) -> float:
    graph = make()
    gc.collect()
    start = time.process_time_ns()
    action(graph)
    return float(time.process_time_ns() - start)


def _apply(system: System, rule: Rule, expected: int) -> Callable[[Any], None]:
    def action(graph: Any) -> None:
        found = system.apply(graph, rule)
        if found != expected:
            raise AssertionError(f"{system.name} matched {found} times instead of {expected}")

    return action


def _size_rows(nodes: int, rounds: int) -> list[Row]:
    layers = layers_for(nodes)
    count, matches = _compute_nodes() * layers, BLOCK_NORMS * layers
    systems = SYSTEMS()
    ours, *peers = systems
    makers = {system.name: system.prepare(layers) for system in systems}
    samples: dict[str, list[float]] = {
        name: [] for name in (*makers, "mirror", "searches", "recompile")
    }
    for system in systems:  # what a process does once
        system.apply(system.prepare(1)(), Rule())
    bringup_many(searched_rules(_SEARCHES))(ours.prepare(1)())
    for _ in range(rounds):
        for system in systems:
            made = _timed(makers[system.name], _apply(system, Rule(), matches))
            samples[system.name].append(made)
        make = makers[ours.name]
        samples["mirror"].append(_timed(make, bringup_mirror))
        samples["searches"].append(_timed(make, bringup_many(searched_rules(_SEARCHES))))
    samples["recompile"].append(_timed(make, lambda module: module.code))
    label = f"{nodes // 1000}k"
    rows = [
        row(f"rewrite {label} nodes", peer.name, samples[ours.name], samples[peer.name])
        for peer in peers
    ]
    mirror, searches, recompile, edited = (
        statistics.median(samples[name]) for name in ("mirror", "searches", "recompile", ours.name)
    )
    search = (searches - mirror) / _SEARCHES
    fx_time = statistics.median(samples[peers[0].name])
    parts = {
        f"mirror {label}, a node": (mirror / count, "0.8 us"),
        f"match {label}, a node": (search / count, "0.1 us"),
        f"edit {label}, a match": ((edited - mirror - search) / matches, "40 us"),
        f"recompile {label}, a node": (recompile / count, "none: torch.fx's own"),
    }
    rows.extend(
        _part_row(name, part, fx_time / count, limit) for name, (part, limit) in parts.items()
    )
    return rows


def _part_row(name: str, part_ns: float, peer_ns: float, limit: str) -> Row:
    note = f"{part_ns / _MICRO:.2f} us, budget {limit}"
    return Row(name, "torch.fx, a node", part_ns / peer_ns, part_ns, peer_ns, None, note)


def _compute_nodes() -> int:
    return sum(node.op == "call_function" for node in block_module().graph.nodes)


def _many_rows(nodes: int, rounds: int, kind: str, rules: list[Rule]) -> list[Row]:
    make = SYSTEMS()[0].prepare(layers_for(nodes))
    peers = {
        "torch.fx SubgraphMatcher": fx_many(rules),
        "Inductor CallFunction tree": inductor_many(rules),
    }
    actions = {"ours": bringup_many(rules), "mirror": bringup_mirror, **peers}
    samples: dict[str, list[float]] = {name: [] for name in actions}
    for action in actions.values():
        action(make())
    for _ in range(rounds):
        for name, action in actions.items():
            samples[name].append(_timed(make, action))
    ours, mirror = (statistics.median(samples[name]) / 1e6 for name in ("ours", "mirror"))
    label = f"{PATTERNS} patterns {kind}, {nodes // 1000}k nodes"
    note = f"{ours:.1f} ms, of these {mirror:.1f} ms for the mirror; budget 25 ms at 10k nodes"
    return [row(label, peer, samples["ours"], samples[peer], note=note) for peer in peers]


def run(*, quick: bool = False, sizes: tuple[int, ...] = ()) -> list[Row]:
    """The rows; each pass is registered for the run only."""
    registered = {item.pass_name for item in passes.get_registered_passes()}
    chosen = sizes or ((1_000,) if quick else tuple(SIZES))
    try:
        rows = [made for nodes in chosen for made in _size_rows(nodes, SIZES.get(nodes, 1))]
        nodes, rounds = min(max(chosen), 10_000), 1 if quick else 2
        rows += _many_rows(nodes, rounds, "without their number", missing_rules(PATTERNS))
        return [*rows, *_many_rows(nodes, rounds, "searched", searched_rules(PATTERNS))]
    finally:
        for item in passes.get_registered_passes():
            if item.pass_name not in registered:
                passes.unregister_pass(item.pass_name)


def main() -> None:
    """Prints the rows of the sizes on the command line."""
    from benchmarks.__main__ import table

    parser = argparse.ArgumentParser(prog="python -m benchmarks.rewrite", description=__doc__)
    parser.add_argument("--nodes", type=int, action="append", help="a size; default all")
    options = parser.parse_args()
    rows = run(sizes=tuple(options.nodes or ()))
    console = Console(width=150)
    console.print(table(rows))
    for item in rows:
        if item.note:
            console.print(f"{item.name}: {item.note}")


if __name__ == "__main__":
    main()
