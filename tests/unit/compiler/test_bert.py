"""Real fusions on a real BERT, checked against the model as it is."""

import pytest
import torch

from bringup import compiler, ir, passes

transformers = pytest.importorskip("transformers")
STAGE = passes.PassStage.AFTER_INFER_SHAPE
LAYERS = 2


class AddLayerNorm(passes.PatternFusionPass):
    """Residual addition and layer norm: the operands of the addition change places."""

    @passes.pattern
    def add_norm(self, inputs):
        builder = inputs[0].builder
        shape, eps = passes.any_value("shape"), passes.any_value("eps")
        total = inputs[0] + inputs[1]
        return builder.op("aten::native_layer_norm", total, shape, inputs[2], inputs[3], eps)[0]

    def meet_requirements(self, match_result):
        return match_result["eps"] == 1e-12

    def replacement(self, match_result):
        builder = ir.GraphBuilder()
        left, right, weight, bias = builder.create_inputs(4)
        shape, eps = match_result["shape"], match_result["eps"]
        return builder.op("aten::native_layer_norm", right + left, shape, weight, bias, eps)[0]


class LinearGelu(passes.PatternFusionPass):
    """addmm, view, gelu: the gelu moves in front of the view."""

    @passes.pattern
    def linear_gelu(self, inputs):
        builder = inputs[0].builder
        linear = builder.op("aten::addmm", *inputs[0:3])
        return builder.op("aten::gelu", builder.op("aten::view", linear, passes.any_value("size")))

    def replacement(self, match_result):
        builder = ir.GraphBuilder()
        linear = builder.op("aten::addmm", *builder.create_inputs(3))
        return builder.op("aten::view", builder.op("aten::gelu", linear), match_result["size"])


class MergeQkv(passes.FusionBasePass):
    """Linear layers that read one value become one wide one."""

    def run(self, graph, context):
        siblings = {}
        for node in graph.find("aten::addmm"):
            view = node.argument("mat1").node
            siblings.setdefault(view.inputs[0], []).append(node)
        for linears in siblings.values():
            if len(linears) == 3:
                self.merge(graph, linears)

    def merge(self, graph, linears):
        builder = graph.inserting_before(linears[0])
        weight = builder.op("aten::cat", [node.argument("mat2") for node in linears], 1)
        bias = builder.op("aten::cat", [node.argument("self") for node in linears], 0)
        wide = builder.op("aten::addmm", bias, linears[0].argument("mat1"), weight)
        widths = [node.output.desc.shape[1] for node in linears]
        for node, part in zip(
            linears, builder.op("aten::split_with_sizes", wide, widths, 1), strict=True
        ):
            graph.replace_all_uses(node.output, part)
        graph.erase_dead(*linears)


class Attention(passes.DecomposePass):
    """Fused attention, written out, where nobody needs its logarithms (training does)."""

    def meet_requirements(self, node):
        return not node.outputs[1].users

    def replacement(self, node):
        builder = ir.GraphBuilder()
        query, key, value, mask = builder.create_inputs(4)
        scale = node.inputs[0].desc.shape[-1] ** -0.5
        scores = query @ builder.op("aten::transpose", key, -1, -2) * scale + mask
        heads = builder.op("aten::softmax", scores, -1) @ value
        swapped = builder.op("aten::transpose", heads, 1, 2)
        rows = builder.op("aten::clone", swapped, memory_format=torch.contiguous_format)
        return builder.op("aten::transpose", rows, 1, 2)


def make_bert(layers):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=40,
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, 6:] = 0
    return model, {"input_ids": torch.randint(0, 50, (2, 9)), "attention_mask": mask}


@pytest.fixture(autouse=True)
def _passes():
    torch._dynamo.reset()
    passes.register_fusion_pass(name="AddLayerNorm", stage=STAGE)(AddLayerNorm)
    passes.register_fusion_pass(name="LinearGelu", stage=STAGE)(LinearGelu)
    passes.register_fusion_pass(name="MergeQkv", stage=STAGE)(MergeQkv)
    attention = "aten::_scaled_dot_product_flash_attention_for_cpu"
    passes.register_decompose_pass(name="Attention", stage=STAGE, op_types=[attention])(Attention)


@pytest.mark.parametrize(("inner", "freeze"), [("eager", False), ("inductor", True)])
def test_fusions_match_in_every_layer_and_keep_the_result(inner, freeze):
    model, inputs = make_bert(LAYERS)
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state
        options = {"inner": inner, "freeze": freeze}
        compiled = torch.compile(model, backend="bringup", options=options)
        got = compiled(**inputs).last_hidden_state
    report = compiler.last_report()
    assert report["AddLayerNorm"].matches == 2 * LAYERS + 1  # and the embeddings
    assert report["LinearGelu"].matches == LAYERS
    assert report["MergeQkv"].status is passes.PassStatus.CHANGED
    assert report["Attention"].matches == LAYERS
    assert (report.folded > 0) is freeze
    assert torch.allclose(got, expected, atol=1e-5)


def test_training_step_gives_the_gradients_of_the_model():
    model, inputs = make_bert(1)
    model(**inputs).last_hidden_state.square().mean().backward()
    expected = {name: item.grad.clone() for name, item in model.named_parameters()}
    model.zero_grad()
    compiled = torch.compile(model, backend="bringup")
    compiled(**inputs).last_hidden_state.square().mean().backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, expected[name], atol=1e-5), name


def test_new_lengths_run_without_a_new_compile_and_passes_add_no_guard():
    model, _ = make_bert(1)
    guards = []

    def counting(selected):
        def backend(module, example_inputs):
            environment = torch._guards.TracingContext.get().fake_mode.shape_env
            before = len(environment.guards)
            run = compiler.dynamo_backend(module, example_inputs, options={"passes": selected})
            guards.append((before, len(environment.guards)))
            return run

        return backend

    for selected in ([], None):
        torch._dynamo.reset()
        compiled = torch.compile(model, backend=counting(selected), dynamic=True)
        with torch.no_grad():
            for length in (7, 12, 23):
                ids = torch.randint(0, 50, (2, length))
                inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
                wanted = model(**inputs).last_hidden_state
                assert torch.allclose(compiled(**inputs).last_hidden_state, wanted, atol=1e-5)
    without, with_passes = guards  # one compile each: a new length compiled nothing
    assert without == with_passes
