"""Running the ONNX library over a model, and both models in onnxruntime."""

import numpy as np
import onnx
import onnxruntime
from tests.unit.compiler.onnx.support import model_of

from bringup import compiler
from bringup.compiler.onnx.library import register_library


def run_in_onnxruntime(proto, feeds):
    """What onnxruntime computes, with its own rewriting switched off."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)


def feeds_of(proto, size=3, seed=0):
    """Random inputs of a model; sizes without a number are `size`."""
    generator = np.random.default_rng(seed)
    feeds = {}
    for info in proto.graph.input:
        tensor = info.type.tensor_type
        shape = [dim.dim_value if dim.HasField("dim_value") else size for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        feeds[info.name] = np.asarray(generator.standard_normal(shape) * 3).astype(dtype)
    return feeds


def compiled(proto, *names):
    """A copy that the library (or the passes of these class names) ran over, and the report."""
    registered = register_library(names or None)
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    report = compiler.apply_passes(copy, list(registered))
    onnx.checker.check_model(copy, full_check=True)
    return copy, report


def kinds(proto):
    return [node.op_type for node in proto.graph.node if node.op_type != "Constant"]


def check(text, expected, *names, opset=17, size=3, feeds=None, tolerance=1e-5):
    """The library makes these operators of a model, and onnxruntime computes the same."""
    before = model_of(text, opset=opset, ir_version=8)
    after, report = compiled(before, *names)
    assert kinds(after) == expected, f"{kinds(after)}\n{report}"
    assert_agree(before, after, size=size, feeds=feeds, tolerance=tolerance)
    return after, report


def assert_agree(before, after, *, size=3, feeds=None, tolerance=1e-5):
    """Both compute results of the same shapes, dtypes, names and numbers."""
    assert [item.name for item in after.graph.output] == [item.name for item in before.graph.output]
    given = feeds_of(before, size) if feeds is None else feeds
    expected, got = run_in_onnxruntime(before, given), run_in_onnxruntime(after, given)
    assert_same_numbers(expected, got, tolerance)


def assert_same_numbers(expected, got, tolerance):
    """The results are of the same shapes and dtypes, and close."""
    for one, other in zip(expected, got, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
