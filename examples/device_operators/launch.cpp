#include "launch.h"

#include <memory>
#include <stdexcept>
#include <utility>

extern "C" const bringup_driver* bringup_driver_get(uint32_t abi_version);

namespace vendor {

Launch& Launch::add(void* argument, bringup_arg_kind kind) {
  arguments_.push_back(argument);
  kinds_.push_back(static_cast<uint8_t>(kind));
  return *this;
}

Launch& Launch::tensor(void* data, DLDataType dtype, std::vector<int64_t> sizes,
                       std::vector<int64_t> strides) {
  Dims& dims = dims_.emplace_back(Dims{std::move(sizes), std::move(strides)});
  const DLDevice device{12, 0};  // kDLExtDev; start() knows which
  DLTensor& tensor =
      tensors_.emplace_back(DLTensor{data, device, static_cast<int32_t>(dims.sizes.size()), dtype,
                                     dims.sizes.data(), dims.strides.data(), 0});
  return add(&tensor, BRINGUP_ARG_TENSOR);
}

Launch& Launch::number(double value) {
  return add(&numbers_.emplace_back(value), BRINGUP_ARG_FLOAT);
}

Launch& Launch::integer(int64_t value) {
  return add(&integers_.emplace_back(value), BRINGUP_ARG_INT);
}

void Launch::start(bringup_kernel_fn kernel, int32_t device, void* stream) && {
  static const bringup_driver* const driver = bringup_driver_get(BRINGUP_DRIVER_ABI);
  auto owner = std::make_unique<Launch>(std::move(*this));
  for (DLTensor& tensor : owner->tensors_) tensor.device.device_id = device;
  bringup_launch launch{};
  launch.struct_size = sizeof launch;
  launch.nargs = static_cast<int32_t>(owner->arguments_.size());
  launch.args = owner->arguments_.data();
  launch.kinds = owner->kinds_.data();
  launch.fn = kernel;
  launch.grid = 1;
  launch.name = owner->name_.c_str();
  launch.owner = owner.get();
  launch.release = [](void* launched) { delete static_cast<Launch*>(launched); };
  owner.release();  // the driver's from here on, also when it refuses
  if (driver->launch(device, static_cast<bringup_stream>(stream), &launch) != BRINGUP_OK) {
    throw std::runtime_error(driver->last_error());
  }
}

}  // namespace vendor
