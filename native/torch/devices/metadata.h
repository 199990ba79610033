// What a package attaches to tensors of the device: torch's own slot for it, c10::BackendMeta,
// which views and copies keep, also where another library put it there.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace bringup::torch_ext {

// `result` with the metadata of `source`, if that has any and both are the device's.
at::Tensor with_metadata_of(const at::Tensor& source, at::Tensor result);

// What devices.set_metadata put there, as JSON; "" where there is nothing of it.
std::string metadata_of(const at::Tensor& tensor);
// "" takes it away. Raises for a tensor with the BackendMeta of another library.
void set_metadata(const at::Tensor& tensor, std::string json);

}  // namespace bringup::torch_ext
