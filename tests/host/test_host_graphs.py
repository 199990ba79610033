"""What passes of Python see of a C++ program's graph, and what it has afterwards: the program's
operators, symbolic sizes, arguments of every kind, passes of every kind.
"""

from __future__ import annotations

import re

from tests.host.programs import needs_shared_python, output, twice, whole

pytestmark = needs_shared_python

DECOMPOSE = """
from bringup import ir, passes

@passes.register_decompose_pass(
    name="Split", stage=passes.PassStage.AFTER_INFER_SHAPE, op_types=["{type}"]
)
class Split(passes.DecomposePass):
    def replacement(self, node):
        builder = ir.GraphBuilder()
        return builder.op("demo::half", builder.op("demo::half", builder.create_input()))
"""


def nodes(said: str) -> list[str]:
    return re.findall(r"^node (.*)$", said, re.MULTILINE)


def test_the_programs_schemas_and_shapes_hold_for_what_a_pass_makes(program, passes_file):
    said = output(program, "providers", TEST_PASS_PATH=passes_file("twice.py", twice()))
    assert "run failed" in said  # demo::once lies on another device
    assert re.search(r"message: .*device is chip:1 where it was cpu", said)
    assert nodes(said)[1] == "demo::relu(value): float32[s0, 4] cpu"
    assert "asked schema=1 shape=1" in said


def test_a_replacement_that_the_program_describes_alike_stays(program, passes_file):
    file = passes_file("twice.py", twice(made="demo::relu"))
    assert nodes(output(program, "providers", TEST_PASS_PATH=file)) == [
        "ir::input(): float32[s0, 4] cpu",
        "demo::relu(value): float32[s0, 4] cpu",
        "demo::pad(value, 3, 'edge'): float32[s0, 4] cpu",
        "ir::output(value)",
    ]


def test_an_operator_that_the_program_does_not_know_is_refused_with_its_words(program, passes_file):
    file = passes_file("twice.py", twice(made="demo::other"))
    said = output(program, "providers", TEST_PASS_PATH=file)
    assert re.search(r"message: SchemaError: demo::other: .*this chip has no such operator", said)
    assert len(nodes(said)) == 5


def test_a_pass_names_arguments_as_the_programs_schema_does(program, passes_file):
    file = passes_file(
        "names.py",
        whole(
            "(pad,) = graph.find('demo::pad')",
            "assert (pad.argument('size'), pad.get_attr('mode')) == (3, 'edge')",
            "graph.set_argument(pad, 'size', 5)",
            "more = graph.insert('demo::pad', (pad.output,), {'mode': 'wrap'}, before=pad.next)",
            "graph.set_outputs((more.output,))",
        ),
    )
    said = output(program, "providers", TEST_PASS_PATH=file)
    assert "run succeeded" in said
    assert nodes(said)[3:5] == [
        "demo::pad(value, 5, 'edge'): float32[s0, 4] cpu",
        "demo::pad(value, kind 0, 'wrap'): float32[s0, 4] cpu",
    ]


def test_a_name_that_the_schema_lacks_is_an_error(program, passes_file):
    file = passes_file(
        "names.py",
        whole(
            "(pad,) = graph.find('demo::pad')",
            "graph.insert('demo::pad', (pad.output,), {'colour': 1}, before=pad.next)",
        ),
    )
    assert re.search(r"message: .*colour", output(program, "providers", TEST_PASS_PATH=file))


def test_without_schemas_arguments_have_no_names(program, passes_file):
    file = passes_file(
        "names.py",
        whole("graph.insert('demo::any', (graph.inputs[0],), {'size': 1})"),
    )
    said = output(program, "arguments", TEST_PASS_PATH=file)
    assert "the program gave its graph no schemas, so arguments have no names" in said
    assert "pass 'size' by position" in said


def test_the_program_says_what_it_supports(program, passes_file):
    file = passes_file(
        "asks.py",
        whole(
            "(pad,), relu = graph.find('demo::pad'), graph.find('demo::relu')[0]",
            "found = graph.dialect.supports(relu), graph.dialect.supports(pad)",
            "raise ValueError(found)",
        ),
    )
    said = output(program, "providers", TEST_PASS_PATH=file)
    assert "((True, ''), (False, 'the chip has relu alone'))" in said
    assert "supports=1" in said


def test_a_program_that_does_not_say_supports_everything(program, passes_file):
    file = passes_file(
        "asks.py",
        whole("raise ValueError(graph.dialect.supports(graph.find('demo::many')[0]))"),
    )
    assert "ValueError: (True, '')" in output(program, "arguments", TEST_PASS_PATH=file)


def test_symbolic_sizes_and_strides_are_symbols_in_python(program, passes_file):
    file = passes_file(
        "look.py",
        whole(
            "(x,) = graph.inputs",
            "(many,) = graph.find('demo::many')",
            "desc = x.known_desc",
            "raise ValueError(f'{desc} {desc.strides[0]} {many.arguments[1] * 2}')",
        ),
    )
    said = output(program, "arguments", TEST_PASS_PATH=file)
    assert re.search(r"ValueError: float32\[s0, 4\]\S* 4\*s1 2\*2\*s0", said), said


def test_arguments_of_every_kind_are_the_programs_again_after_a_pass(program, passes_file):
    file = passes_file(
        "moves.py",
        whole(
            "(many,), (last,) = graph.find('demo::many'), graph.find('demo::last')",
            "x, twice, five, two, listed = many.arguments",
            "assert five == listed[2] == last.arguments[1] != two",
            "assert listed[1] == 7",
            "rows = x.known_desc.shape[0]",
            "graph.insert('demo::more', (x, two, (five, listed[0]), rows), before=last)",
        ),
    )
    said = output(program, "arguments", TEST_PASS_PATH=file)
    assert "run succeeded" in said, said
    assert nodes(said)[1:4] == [
        "demo::many(value, symbol 2*s0, object 5, object 2, [value 7 object 5]): unknown",
        "demo::more(value, object 2, [object 5 value], symbol s0): unknown",
        "demo::last(value, object 5): unknown",
    ]


def test_decompose_passes_run_over_a_programs_graph(program, passes_file):
    file = passes_file("split.py", DECOMPOSE.format(type="demo::last"))
    said = output(program, "arguments", TEST_PASS_PATH=file)
    assert "pass Split outcome=1 matches=1" in said
    assert [node.partition("(")[0] for node in nodes(said)] == [
        *("ir::input", "demo::many", "demo::half", "demo::half", "ir::output")
    ]


def test_a_subgraph_that_a_pass_adds_would_be_lost_and_is_refused(program, passes_file):
    file = passes_file(
        "nests.py",
        whole(
            "from bringup import ir",
            "(last,) = graph.find('demo::last')",
            "body = ir.Graph('body')",
            "graph.add_subgraph('body', body, last)",
        ),
    )
    said = output(program, "arguments", TEST_PASS_PATH=file)
    assert "was given the subgraph 'body', which the graph of a C++ program does not keep" in said
    assert "run failed" in said


def test_an_attribute_that_a_pass_sets_would_be_lost_and_is_refused(program, passes_file):
    file = passes_file("sets.py", whole("graph.find('demo::last')[0].set_attr('alpha', 2)"))
    said = output(program, "arguments", TEST_PASS_PATH=file)
    assert re.search(r"message: .*was given the attributes \['alpha'\].*does not keep", said)
    assert "run failed" in said


def test_notes_that_passes_leave_on_nodes_are_python_s_own(program, passes_file):
    file = passes_file("notes.py", whole("graph.find('demo::last')[0].meta['seen'] = True"))
    assert "run succeeded" in output(program, "arguments", TEST_PASS_PATH=file)
