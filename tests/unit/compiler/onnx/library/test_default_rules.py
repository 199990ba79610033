"""Every rule of onnxscript's default rewriter has a pass here (where onnxscript is installed)."""

import pytest

from bringup.compiler.onnx.library import LIBRARY, OPT_IN

PASSES = {  # by the rule's name; by its operators where it has none
    "Mul": "DropNoOps",
    "Add": "DropNoOps",
    "Sub": "DropNoOps",
    "Div": "DropNoOps",
    "Dropout": "DropNoOps",
    "Reshape Reshape MatMul Reshape": "MatMulWithoutReshapes",
    "Reshape MatMul Reshape": "MatMulWithoutReshapes",
    "ConstantOfShape Cast": "MergeCasts",
    "Slice": "MergeSlices",
    "MaterializeReshapeShape": "MergeReshapes",
    "FuseSuccessiveMin": "MergeClips",
    "FuseSuccessiveMax": "MergeClips",
    "FuseMinMaxToClip": "MergeClips",
    "FuseMaxMinToClip": "MergeClips",
    "FuseSuccessiveClipRelu": "MergeClips",
    "FuseSuccessiveReluClip": "MergeClips",
    "FuseSuccessiveRelu": "MergeClips",
    "FuseSuccessiveClip": "MergeClips",
    "CastCast": "MergeCasts",
    "CastIdentity": "MergeCasts",
    "ExpandIdentity": "MergeReshapes",
    "Flatten2Reshape": "MergeReshapes",
    "ReshapeReshape": "MergeReshapes",
    "SqueezeReshape1d": "MergeReshapes",
    "SlicesSplit": "SlicesToSplit",
    "TransposeIdentity": "MergeTransposes",
    "TransposeTranspose": "MergeTransposes",
    "UnsqueezeUnsqueeze": "MergeUnsqueezes",
    "ScatterAllDynamic": "DropScatters",
    "ScatterAllStatic": "DropScatters",
    "NormalizePadFormatConv": "ExplicitPads",
    "NormalizePadFormatConvInteger": "ExplicitPads",
    "FuseConvPad": "PadIntoConv",
    "FuseConvIntegerPad": "PadIntoConv",
    "FuseBatchNormIntoConv": "BatchNormIntoWeights",
    "FuseBatchNormIntoConvTranspose": "BatchNormIntoWeights",
    "FuseBatchNormIntoGemm": "BatchNormIntoWeights",
    "RemoveOptionalBiasFromConv": "DropZeroBiases",
    "RemoveOptionalBiasFromConvTranspose": "DropZeroBiases",
    "RemoveOptionalBiasFromQLinearConv": "DropZeroBiases",
    "RemoveOptionalBiasFromGemm": "DropZeroBiases",
}


def test_every_rule_has_a_pass_that_runs_by_default():
    assert set(PASSES.values()) == {item.__name__ for item in LIBRARY if item not in OPT_IN}


def test_every_rule_of_the_installed_onnxscript_is_known():
    rewriter = pytest.importorskip("onnxscript.rewriter")
    rules = rewriter._DEFAULT_REWRITE_RULES
    names = [rule.name or " ".join(str(node.op) for node in rule._target_pattern) for rule in rules]
    assert set(names) <= PASSES.keys()
