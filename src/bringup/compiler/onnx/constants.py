"""What a constant of an ONNX graph holds: a tensor proto, dense or sparse, or data by value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import external_data_helper, numpy_helper

from bringup import ir
from bringup.compiler.onnx.types import dtype_name, dtype_number
from bringup.errors import ModelError


class ConstantTensor:
    """The payload of a constant. One object is one tensor for all readers.

    Args:
        proto: an `onnx.TensorProto` or `onnx.SparseTensorProto`; kept as it is.
        folder: where the files of external data lie; None when that is not known.
        source: the `onnx.NodeProto` that the tensor is an attribute of; None for an initializer.

    Attributes:
        desc: shape and dtype.
    """

    def __init__(self, proto: Any, folder: Path | None = None, source: Any = None) -> None:
        self.proto = proto
        self.source = source
        self._folder = folder
        self.is_sparse = isinstance(proto, onnx.SparseTensorProto)
        values = proto.values if self.is_sparse else proto
        self.desc = ir.TensorDesc(ir.Shape(tuple(proto.dims)), dtype_name(values.data_type))

    @classmethod
    def of_array(cls, array: Any) -> ConstantTensor:
        """Return a constant with the elements of `array`. `TypeError` without such a tensor."""
        return cls(numpy_helper.from_array(np.asarray(array)))

    @classmethod
    def of_data(cls, data: ir.ConstantData) -> ConstantTensor:
        """Return the same of data by value."""
        return cls.of_array(array_of(data))

    @property
    def name(self) -> str:
        """Return what the tensor is called in its model; "" when it has no name."""
        return str((self.proto.values if self.is_sparse else self.proto).name)

    @property
    def is_external(self) -> bool:
        """Return whether the elements lie in a file beside the model."""
        return not self.is_sparse and external_data_helper.uses_external_data(self.proto)

    def tensor(self) -> Any:
        """Return the dense `onnx.TensorProto` with its elements; `ModelError` without a file."""
        if self.is_sparse:
            return numpy_helper.from_array(self.numpy())
        if not self.is_external:
            return self.proto
        if self._folder is None:
            raise ModelError(
                f"the elements of {self.name!r} lie in another file of an unknown folder: load "
                "the model by its path, or give from_proto(..., folder=...)"
            )
        loaded = onnx.TensorProto()
        loaded.CopyFrom(self.proto)
        try:
            external_data_helper.load_external_data_for_tensor(loaded, str(self._folder))
        except Exception as error:
            raise ModelError(
                f"the elements of {self.name!r} cannot be read from {self._folder}: {error}"
            ) from error
        loaded.ClearField("data_location")
        loaded.ClearField("external_data")
        return loaded

    def numpy(self) -> Any:
        """Return the elements as an array of the tensor's shape."""
        if not self.is_sparse:
            return numpy_helper.to_array(self.tensor())
        values = numpy_helper.to_array(self.proto.values)
        places = numpy_helper.to_array(self.proto.indices)
        dense = np.zeros(tuple(self.proto.dims), values.dtype)
        index = tuple(places.T) if places.ndim == 2 else np.unravel_index(places, dense.shape)
        dense[index] = values
        return dense

    def data(self) -> ir.ConstantData | None:
        """Return the elements by value; None for text, sparse tensors and files not readable."""
        if self.is_sparse or self.desc.dtype == "string":
            return None
        try:
            array = self.numpy()
        except ModelError:
            return None
        return ir.ConstantData(self.desc.dtype, tuple(array.shape), array.tobytes())

    def __repr__(self) -> str:
        return f"<ConstantTensor {self.name} {self.desc}>"


def array_of(data: ir.ConstantData) -> Any:
    """Data by value as an array; `ValueError` for a dtype that ONNX does not have."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(dtype_number(data.dtype))
    return np.frombuffer(bytes(data.data), dtype).reshape(data.shape)


def as_constant(payload: object) -> ConstantTensor:
    """Return the payload of an array, data or a framework's tensor. Raises `TypeError`."""
    if isinstance(payload, ConstantTensor):
        return payload
    if isinstance(payload, ir.ConstantData):
        return ConstantTensor.of_data(payload)
    held: Any = payload
    if hasattr(payload, "detach"):
        held = held.detach().cpu().numpy()
    if isinstance(held, (np.ndarray, np.generic)):
        return ConstantTensor.of_array(held)
    raise TypeError(
        f"a constant of an ONNX graph must be a ConstantTensor or an array, got "
        f"{type(payload).__name__}"
    )
