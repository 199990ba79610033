#include "driver_check/launches.h"

namespace bringup::driver_check {
namespace {

constexpr int32_t kExternalDevice = 12;  // DLPack's kDLExtDev
constexpr uint8_t kKinds[] = {BRINGUP_ARG_TENSOR, BRINGUP_ARG_TENSOR, BRINGUP_ARG_INT};

}  // namespace

void require_kernels(Context& context) {
  if (context.props(0).runs_host_code == 0) {
    throw Skipped{"runs_host_code is 0: there is no compiler here for the device's code"};
  }
  if (*context.kernels() == '\0') throw Skipped{"no device code was given (--kernels=FILE)"};
}

Module::Module(Context& context) : Held(context) {
  require_kernels(context);
  context.must<&D::module_load>(0, context.kernels(), &handle_);
}

Module::~Module() { context_.give_back<&D::module_unload>(handle_); }

bringup_kernel_fn Module::function(const char* name) {
  bringup_kernel_fn fn = nullptr;
  context_.must<&D::get_function>(handle_, name, &fn);
  return fn;
}

Accumulate::Accumulate(bringup_kernel_fn fn, uint8_t* out, const uint8_t* x, int64_t count,
                       int64_t factor, int64_t grid)
    : count_(count), factor_(factor) {
  const auto tensor = [&](const uint8_t* data) {
    DLTensor made{};
    made.data = const_cast<uint8_t*>(data);
    made.device = {kExternalDevice, 0};
    made.ndim = 1;
    made.dtype = {0, 32, 1};
    made.shape = &count_;
    made.strides = &stride_;
    return made;
  };
  out_ = tensor(out);
  x_ = tensor(x);
  args_[0] = &out_;
  args_[1] = &x_;
  args_[2] = &factor_;
  launch_.struct_size = sizeof launch_;
  launch_.nargs = 3;
  launch_.args = args_;
  launch_.kinds = kKinds;
  launch_.fn = fn;
  launch_.grid = grid;
  launch_.name = "check::accumulate";
  launch_.owner = released_.get();
  launch_.release = [](void* owner) { ++*static_cast<std::atomic<int>*>(owner); };
}

Arrays::Arrays(Context& of, const Bytes& sums, const Bytes& values)
    : context(of), out(of, 0, sums.size()), x(of, 0, values.size()), stream(of) {
  context.upload(0, out.data(), sums, stream);
  context.upload(0, x.data(), values, stream);
}

Bytes integers(size_t count, int32_t first, int32_t step) {
  Bytes bytes(count * sizeof(int32_t));
  for (size_t i = 0; i < count; ++i) {
    const int32_t value = first + step * static_cast<int32_t>(i);
    std::memcpy(&bytes[i * sizeof value], &value, sizeof value);
  }
  return bytes;
}

Bytes accumulated(const Bytes& out, const Bytes& x, int32_t factor) {
  Bytes result = out;
  for (size_t at = 0; at < out.size(); at += sizeof(int32_t)) {
    int32_t sum = 0;
    int32_t value = 0;
    std::memcpy(&sum, &out[at], sizeof sum);
    std::memcpy(&value, &x[at], sizeof value);
    sum += value * factor;
    std::memcpy(&result[at], &sum, sizeof sum);
  }
  return result;
}

}  // namespace bringup::driver_check
