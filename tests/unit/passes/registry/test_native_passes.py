"""Passes of C and C++ libraries through the loader, registry and executor of Python passes.

Failures, duplicate names and repeated loads are treated as those of Python passes.
"""

import dataclasses
import os
import shutil
import threading
from types import MappingProxyType

import pytest
import torch
from tests.unit.passes.native_libraries import EXAMPLES, LIBRARIES, build
from tests.unit.passes.support import STAGE, registered_names

from bringup import compiler, ir, passes
from bringup.errors import PassError

X = torch.randn(4, 8)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The libraries of the example, built once."""
    folder = tmp_path_factory.mktemp("built")
    for name in ("passes.c", "passes.cpp"):
        build(EXAMPLES / name, folder / f"{name.replace('.', '_')}.so")
    return folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder that is the pass path."""
    monkeypatch.setenv("BRINGUP_PASS_PATH", str(tmp_path))
    yield tmp_path
    passes.unload_pass_plugins()


@pytest.fixture
def both(built, folder):
    """The example's libraries on the pass path."""
    for library in built.iterdir():
        shutil.copy(library, folder)
    return folder


def operators(module):
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def write_and_build(folder, name, body):
    """A library whose one graph pass is called `name` and runs `body`."""
    source = folder.parent / f"{name}.cpp"
    source.write_text(
        f"""
#include <bringup/engine.h>
#include <stdexcept>
static const bringup_engine_api* engine;
static int32_t run(void*, bringup_ir_graph graph, bringup_pass_context context) {{
  (void)graph; (void)context;
  {body}
}}
extern "C" int32_t bringup_register_passes(const bringup_engine_api* api) {{
  engine = api;
  bringup_pass_definition definition{{}};
  definition.struct_size = sizeof(definition);
  definition.name = "{name}";
  definition.stage = BRINGUP_AFTER_INFER_SHAPE;
  definition.run = run;
  return api->register_pass(&definition);
}}
"""
    )
    return build(source, folder / f"lib_{name}.so")


def test_libraries_on_the_path_register_their_passes(both):
    report = passes.load_pass_plugins()
    assert report.errors == []
    assert report.loaded[str(both / "passes_c.so")] == (
        "DropReluOfRelu",
        "MulAddToAddcmul",
        "SiluToSigmoid",
    )
    found = {item.pass_name: item for item in passes.get_registered_passes()}
    assert found["MmAddToAddmm"].kind == "pattern_fusion"
    assert found["MmAddToAddmm"].class_qualname == "MmAdd"
    assert found["MmAddToAddmm"].module_name == str(both / "passes_cpp.so")
    assert found["SiluToSigmoid"].op_types == ("aten::silu",)
    assert found["SiluToSigmoid"].stage is passes.PassStage.BEFORE_INFER_SHAPE


@pytest.mark.parametrize(
    ("name", "function", "shapes", "before", "after"),
    [
        (
            "DropReluOfRelu",
            lambda x: torch.relu(torch.relu(x)) + 1,
            [(4, 8)],
            "aten.relu.default",
            ["aten.relu.default", "aten.add.Tensor"],
        ),
        (
            "MulAddToAddcmul",
            lambda a, b, c: torch.exp(a * b + c),
            [(4, 8), (4, 8), (8,)],
            "aten.mul.Tensor",
            ["aten.addcmul.default", "aten.exp.default"],
        ),
        (
            "SiluToSigmoid",
            lambda x: torch.nn.functional.silu(x) * 2,
            [(4, 8)],
            "aten.silu.default",
            ["aten.sigmoid.default", "aten.mul.Tensor", "aten.mul.Tensor"],
        ),
        (
            "DropDoubleNeg",
            lambda x: torch.neg(torch.neg(x + 1)).exp(),
            [(4, 8)],
            "aten.neg.default",
            ["aten.add.Tensor", "aten.exp.default"],
        ),
        (
            "MmAddToAddmm",
            lambda a, b, bias: torch.relu(a @ b + bias),
            [(4, 8), (8, 3), (3,)],
            "aten.mm.default",
            ["aten.addmm.default", "aten.relu.default"],
        ),
        (
            "HardswishToClamp",
            lambda x: torch.nn.functional.hardswish(x),
            [(4, 8)],
            "aten.hardswish.default",
            ["aten.add.Tensor", "aten.clamp.default", "aten.mul.Tensor", "aten.div.Tensor"],
        ),
    ],
)
def test_every_kind_of_native_pass_rewrites_a_torch_graph(
    both, traced, name, function, shapes, before, after
):
    """Graph, pattern and decompose passes in C and in C++, results compared."""
    inputs = [torch.randn(shape) for shape in shapes]
    module = traced(function, *inputs)
    assert before in operators(module)
    result = compiler.apply_passes(module, passes=[name])[name]
    assert result.status is passes.PassStatus.CHANGED
    assert result.matches == 1
    assert operators(module) == after
    assert all("val" in node.meta for node in module.graph.nodes if node.op == "call_function")
    torch.testing.assert_close(module(*inputs), function(*inputs))


def test_native_hook_that_refuses_leaves_the_match(both, traced):
    """Not met, so nothing changes; the near miss says so."""
    function = lambda a, b, c: torch.relu(a @ b + c)  # noqa: E731
    module = traced(function, X, torch.randn(8, 3), torch.randn(4, 3))
    result = compiler.apply_passes(module, passes=["MmAddToAddmm"])["MmAddToAddmm"]
    assert result.status is passes.PassStatus.UNCHANGED
    assert "meet_requirements returned False" in str(result.near_misses[0])
    assert "aten.mm.default" in operators(module)


@pytest.mark.parametrize(
    ("body", "text", "status"),
    [
        ('throw std::runtime_error("by hand");', "run of 'Bad' threw: by hand", 7),
        ("throw 3;", "run of 'Bad' threw something that is no std::exception", 7),
        ('engine->set_error("no room"); return 41;', "returned status 41: no room", 41),
        ("engine->erase_node(graph, 77); return 42;", "returned status 42", 42),
        ("return engine->erase_node(graph, 77);", "run of 'Bad' returned status 2", 2),
        ("return engine->erase_node(graph + 1000, 1);", "run of 'Bad' returned status 2", 2),
    ],
)
def test_failing_native_pass_is_reported_and_undone(folder, traced, body, text, status):
    """Exceptions, statuses and bad handles are failures as in any other pass."""
    swap = """
  const bringup_ir_node* nodes; uint32_t count;
  engine->find_nodes(graph, "aten::relu", &nodes, &count);
  const bringup_ir_value* reads; uint32_t read_count;
  engine->node_inputs(graph, nodes[0], &reads, &read_count);
  engine->replace_all_uses(graph, {nodes[0], 0}, reads[0]);
"""
    write_and_build(folder, "Bad", swap + body)
    module = traced(lambda x: torch.relu(x).exp(), X)
    code = str(module.graph)
    with pytest.raises(PassError) as failure:
        compiler.apply_passes(module)
    assert text in str(failure.value)
    assert failure.value.status == status
    assert str(module.graph) == code


def test_native_pass_may_skip(folder, traced):
    write_and_build(folder, "Skips", 'engine->set_error("not today"); return BRINGUP_ENGINE_SKIP;')
    result = compiler.apply_passes(traced(torch.relu, X))["Skips"]
    assert (result.status, result.message) == (passes.PassStatus.SKIPPED, "not today")


def test_native_pass_reads_options(folder, traced):
    body = """
  bringup_argument value{};
  if (engine->context_option(context, "level", &value) != 0) return 50;
  return value.of.integer == 3 ? 0 : 51;
"""
    write_and_build(folder, "Reads", body)
    module = traced(torch.relu, X)
    assert compiler.apply_passes(module, options={"level": 3})["Reads"].matches == 0
    with pytest.raises(PassError, match="returned status 50"):
        compiler.apply_passes(module)


CONSTANTS = """
#include <bringup/engine.h>
static const bringup_engine_api* engine;
static int32_t replace_node(void*, bringup_ir_graph, bringup_ir_node, bringup_pass_context,
                            bringup_ir_graph* replacement) {
  bringup_ir_value x{}, c{};
  const float numbers[2] = {10, 20};
  const int64_t shape[1] = {2};
  bringup_constant constant{};
  constant.struct_size = sizeof(constant);
  constant.rank = 1;
  constant.shape = shape;
  constant.dtype = "DTYPE";
  constant.data = numbers;
  constant.bytes = sizeof(numbers);
  engine->graph_create("shifted", replacement);
  engine->add_input(*replacement, "x", nullptr, &x);
  engine->add_constant(*replacement, "shift", &constant, &c);
  bringup_argument arguments[2] = {};
  arguments[0].kind = arguments[1].kind = BRINGUP_ARGUMENT_VALUE;
  arguments[0].of.value = x;
  arguments[1].of.value = c;
  bringup_ir_value out{};
  engine->add_node(*replacement, "aten::add", arguments, 2, 1, BRINGUP_NO_NODE, &out.node);
  return engine->set_outputs(*replacement, &out, 1);
}
extern "C" int32_t bringup_register_passes(const bringup_engine_api* api) {
  engine = api;
  static const char* const types[] = {"aten::relu", nullptr};
  bringup_pass_definition definition{};
  definition.struct_size = sizeof(definition);
  definition.name = "Shift";
  definition.kind = BRINGUP_PASS_DECOMPOSE;
  definition.stage = BRINGUP_AFTER_INFER_SHAPE;
  definition.op_types = types;
  definition.replace_node = replace_node;
  return api->register_pass(&definition);
}
"""


def test_replacement_may_bring_constants(folder, traced):
    """The value of a replacement's constant is kept."""
    source = folder.parent / "constants.cpp"
    source.write_text(CONSTANTS.replace("DTYPE", "float32"))
    build(source, folder / "constants.so")
    x = torch.randn(3, 2)
    module = traced(lambda x: torch.relu(x) * 1, x)
    compiler.apply_passes(module)
    torch.testing.assert_close(module(x), x + torch.tensor([10.0, 20.0]))


def test_constant_whose_data_do_not_fit_its_shape_fails_the_pass(folder, traced):
    source = folder.parent / "constants.cpp"
    source.write_text(CONSTANTS.replace("DTYPE", "float64"))
    build(source, folder / "constants.so")
    with pytest.raises(PassError, match=r"a constant of float64\[2\] has 16 bytes, got 8"):
        compiler.apply_passes(traced(torch.relu, torch.randn(3, 2)))


def test_operator_that_does_not_take_its_arguments_fails_by_name(folder, traced):
    body = """
  const bringup_ir_value* inputs; uint32_t count;
  engine->graph_inputs(graph, &inputs, &count);
  bringup_argument argument{BRINGUP_ARGUMENT_STRING, 0, {}};
  argument.of.text = "nonsense";
  bringup_ir_node node;
  int32_t status = engine->add_node(graph, "aten::relu", &argument, 1, 1, BRINGUP_NO_NODE, &node);
  if (status != 0) throw std::runtime_error(engine->last_error());
  return 0;
"""
    write_and_build(folder, "Nonsense", body)
    with pytest.raises(PassError, match="relu"):
        compiler.apply_passes(traced(torch.relu, X))


def test_broken_libraries_are_reported_and_the_others_load(folder):
    """A library that throws half way, lacks its entry or is none registers nothing."""
    build(LIBRARIES / "half.cpp", folder / "half.so")
    build(LIBRARIES / "empty.c", folder / "empty.so")
    build(LIBRARIES / "good.c", folder / "good.so")
    (folder / "text.so").write_text("no library")
    report = passes.load_pass_plugins()
    texts = " ".join(str(error) for error in report.errors)
    assert len(report.errors) == 3
    assert "it threw: no luck" in texts
    assert "exports no symbol 'bringup_register_passes'" in texts
    assert "text.so" in texts
    assert registered_names() == ["CountInC", "TanhInC"]


def test_name_taken_by_a_python_pass_refuses_the_whole_library(folder):
    """A duplicate name takes back all registrations of its library; the first stays."""

    @passes.register_fusion_pass(name="TanhInC", stage=STAGE)
    class First(passes.FusionBasePass):
        def run(self, graph, context):
            return None

    build(LIBRARIES / "good.c", folder / "good.so")
    (error,) = passes.load_pass_plugins().errors
    assert "a pass named 'TanhInC' is registered already" in str(error)
    assert registered_names() == ["TanhInC"]


def test_library_that_a_library_loads_stands_in_the_same_registry(folder):
    """One registry: what the engine registers is there for Python, whoever loaded it."""
    good = build(LIBRARIES / "good.c", folder.parent / "good.so")
    write_and_build(folder, "Loads", f'return engine->load_library("{good}", nullptr);')
    assert passes.load_pass_plugins().errors == []
    (loads,) = passes.get_registered_passes()
    passes.run_passes(ir.Graph("g"), [loads])
    assert registered_names() == ["CountInC", "Loads", "TanhInC"]
    passes.unregister_pass("CountInC")
    passes.unregister_pass("TanhInC")
    assert registered_names() == ["Loads"]


def test_pass_of_python_runs_on_graphs_of_python_only(folder):
    """A library that runs passes over a graph of its own is told which it cannot have."""
    body = """
  bringup_ir_graph own = 0;
  bringup_run_report report = 0;
  const char* const names[] = {"Mine"};
  bringup_run_options options{};
  options.struct_size = sizeof(options);
  options.names = names;
  options.name_count = 1;
  engine->graph_create("own", &own);
  if (engine->run_passes(own, &options, &report) == 0) return 60;
  engine->set_error(engine->last_error());
  return 61;
"""
    write_and_build(folder, "Runs", body)
    passes.load_pass_plugins()
    passes.register_custom_pass(name="Mine", stage=STAGE)(lambda graph, context: None)
    with pytest.raises(PassError, match="61: pass 'Mine' belongs to the host program"):
        passes.run_passes(ir.Graph("g"), passes.select_passes(["Runs"]))


def test_unloading_python_passes_may_leave_native_ones(folder):
    build(LIBRARIES / "good.c", folder / "good.so")
    (folder / "mine.py").write_text(
        "from bringup import passes\n"
        "@passes.register_fusion_pass(name='Mine', stage=passes.PassStage.AFTER_INFER_SHAPE)\n"
        "class Mine(passes.FusionBasePass):\n"
        "    def run(self, graph, context):\n"
        "        return None\n"
    )
    passes.load_pass_plugins()
    assert registered_names() == ["CountInC", "Mine", "TanhInC"]
    passes.unload_pass_plugins(keep_libraries=True)
    assert registered_names() == ["CountInC", "TanhInC"]
    passes.unload_pass_plugins()
    passes.unload_pass_plugins()
    assert registered_names() == []


def test_unchanged_library_stays_and_a_changed_one_is_loaded_anew(folder):
    library = write_and_build(folder, "First", "return 0;")
    passes.load_pass_plugins()
    (first,) = passes.get_registered_passes()
    os.utime(library)  # a new time, the same content
    passes.load_pass_plugins()
    assert passes.get_registered_passes()[0].pass_class is first.pass_class
    other = write_and_build(folder.parent, "Second", "return 0;")
    other.replace(library)
    passes.load_pass_plugins()
    assert registered_names() == ["Second"]
    library.unlink()
    passes.load_pass_plugins()
    assert registered_names() == []


def test_many_threads_load_a_library_once(folder):
    """Repeated and concurrent loads register once."""
    build(LIBRARIES / "good.c", folder / "good.so")
    reports = []
    threads = [
        threading.Thread(target=lambda: reports.append(passes.load_pass_plugins()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(not report.errors for report in reports)
    assert registered_names() == ["CountInC", "TanhInC"]


@pytest.mark.usefixtures("both")
def test_options_of_a_run_may_be_any_mapping(traced):
    passes.load_pass_plugins()
    module = traced(lambda x: torch.nn.functional.silu(x), X)
    options = MappingProxyType({"unknown": 1})
    compiler.apply_passes(module, options=options, passes=["SiluToSigmoid"])
    assert "aten.silu.default" not in operators(module)


@pytest.mark.usefixtures("both")
def test_a_run_takes_what_its_descriptor_says():
    passes.load_pass_plugins()
    (descriptor,) = [
        item for item in passes.get_registered_passes() if item.pass_name == "SiluToSigmoid"
    ]
    builder = ir.GraphBuilder("g")
    once = builder.op("aten::silu", builder.create_input())
    graph = builder.build_and_reset(builder.op("aten::silu", once))
    limited = dataclasses.replace(descriptor, max_rewrites=1)
    (result,) = passes.run_passes(graph, [limited]).results
    assert result.matches == 1
