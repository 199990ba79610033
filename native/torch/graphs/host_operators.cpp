#include "torch/graphs/host_operators.h"

#include "torch/devices/driver.h"
#include "torch/graphs/errors.h"
#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {
OperatorNode::Call HostSide::translate(const std::string& name, OperatorNode::Call call) {
  if (!call.op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) {
    throw CaptureFailure(name + " has no kernel on the device, and none on cpu to run instead");
  }
  const auto failure = failure_of([&] {
    for (c10::IValue& value : call.args) {
      if (value.isDevice()) {
        if (value.toDevice().is_privateuseone()) value = c10::Device(c10::kCPU);
      } else {
        value = map_tensors(value, [this](const at::Tensor& tensor) { return view(tensor); });
      }
    }
    for (OperatorNode::Output& output : call.outputs) {
      output.tensor = view(output.tensor);
      output.address = output.tensor.storage().mutable_data();
    }
  });
  if (failure) {
    throw CaptureFailure(
        name +
        " has no kernel on the device and cannot run on the host inside a graph: " + *failure);
  }
  if (call.keys.has_backend(c10::BackendComponent::PrivateUse1Bit)) {
    call.keys = call.keys.remove_backend(c10::BackendComponent::PrivateUse1Bit) |
                c10::DispatchKeySet(c10::DispatchKey::CPU);
  }
  call.learn = true;
  return call;
}

at::Tensor HostSide::view(const at::Tensor& tensor) {
  if (!tensor.is_privateuseone()) return tensor;
  const c10::Storage& storage = tensor.storage();
  Pair& pair = storages_[storage.unsafeGetStorageImpl()];
  if (!pair.host) pair = {storage, host_alias(bytes_of(storage), lasting_).storage()};
  at::Tensor host = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(pair.host), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  c10::TensorImpl* impl = host.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) impl->_set_conj(true);
  if (tensor.is_neg()) impl->_set_neg(true);
  return host;
}

}  // namespace bringup::torch_ext::graphs
