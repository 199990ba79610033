#include "driver_check/launches.h"

namespace bringup::driver_check {
namespace {

constexpr int32_t kExternalDevice = 12;  // DLPack's kDLExtDev
constexpr uint8_t kKinds[] = {BRINGUP_ARG_TENSOR, BRINGUP_ARG_TENSOR, BRINGUP_ARG_INT};

}  // namespace

void require_kernels(Context& context) {
  if (*context.kernels() == '\0') {
    throw Skipped{
        "there is no device code: --kernels FILE, or check_kernels of the driver's package"};
  }
}

Module::Module(Context& context) : Held(context) {
  require_kernels(context);
  context.must<&D::module_load>(0, context.kernels(), &handle_);
}

Module::Module(Context& context, const std::vector<char>& data) : Held(context) {
  context.must<&D::module_load_data>(0, data.data(), data.size(), &handle_);
}

Module::~Module() { context_.give_back<&D::module_unload>(handle_); }

bringup_kernel_fn Module::function(const char* name) {
  bringup_kernel_fn fn = nullptr;
  context_.must<&D::get_function>(handle_, name, &fn);
  return fn;
}

bringup_kernel_fn Module::find(const char* name) {
  bringup_kernel_fn fn = nullptr;
  return context_.call<&D::get_function>(handle_, name, &fn) == BRINGUP_OK ? fn : nullptr;
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
  launch_.work_items = count;
  launch_.name = "check::accumulate";
  launch_.owner = released_.get();
  launch_.release = [](void* owner) { ++*static_cast<std::atomic<int>*>(owner); };
}

ValuesWork::ValuesWork(Context& context, bringup_kernel_fn fn, uint8_t* out, uint8_t* x,
                       int64_t count, int32_t factor, int32_t added, bringup_dim3 grid,
                       bringup_dim3 block) {
  values_[0] = {BRINGUP_VALUE_ADDRESS, 8, {.address = out}};
  values_[1] = {BRINGUP_VALUE_ADDRESS, 8, {.address = x}};
  values_[2] = {BRINGUP_VALUE_INT, 8, {.integer = count}};
  values_[5] = {BRINGUP_VALUE_FLOAT, 4, {.single = 0.5F}};
  if (context.props(0).supports_float64 != 0) {
    values_[6] = {BRINGUP_VALUE_FLOAT, 8, {.number = 2.0 * added}};
  } else {
    values_[6] = {BRINGUP_VALUE_FLOAT, 4, {.single = 2.0F * static_cast<float>(added)}};
  }
  set_factor(factor);
  launch_.struct_size = sizeof launch_;
  launch_.nvalues = 7;
  launch_.values = values_;
  launch_.fn = fn;
  launch_.block = block;
  set_grid(grid);
  launch_.name = "check::values";
}

void ValuesWork::set_grid(bringup_dim3 grid) {
  launch_.grid = grid;
  const bringup_dim3& block = launch_.block;
  const int64_t blocks = int64_t{grid.x} * grid.y * grid.z;
  values_[3] = {BRINGUP_VALUE_INT, 8, {.integer = blocks * block.x * block.y * block.z}};
}

void ValuesWork::set_work_items() {
  const bringup_dim3 &grid = launch_.grid, &block = launch_.block;
  launch_.work_items = {grid.x * block.x, grid.y * block.y, grid.z * block.z};
}

Work::Work(Context& context, Module& module, uint8_t* out, uint8_t* x, int64_t count,
           int64_t factor, int64_t grid)
    : Work(context,
           module.function(context.has<&D::launch>() ? "check_accumulate" : "check_values"), out, x,
           count, factor, grid) {}

Work::Work(Context& context, bringup_kernel_fn fn, uint8_t* out, uint8_t* x, int64_t count,
           int64_t factor, int64_t grid)
    : context_(context) {
  if (context.has<&D::launch>()) {
    launched_.emplace(fn, out, x, count, factor, grid);
  } else {
    values_.emplace(context, fn, out, x, count, static_cast<int32_t>(factor), 0,
                    bringup_dim3{static_cast<uint32_t>(grid), 1, 1});
  }
}

Work Work::failing(Context& context, Module& module, uint8_t* memory, int64_t count) {
  const bringup_kernel_fn fn = module.find("check_fail");
  if (fn == nullptr) {
    throw Skipped{"the device code has no check_fail: kernels of the runtime report no failures"};
  }
  return Work(context, fn, memory, memory, count, 1, 1);
}

void Work::launch(bringup_stream stream) const {
  if (launched_) return context_.must<&D::launch>(0, stream, launched_->launch());
  context_.must<&D::launch_values>(0, stream, values_->launch());
}

void Work::add_to(bringup_graph graph) const {
  if (launched_) return context_.must<&D::graph_add_kernel>(graph, launched_->launch());
  context_.must<&D::graph_add_values>(graph, values_->launch());
}

int32_t Work::update(bringup_graph graph, int32_t kernel) const {
  if (launched_) return context_.call<&D::graph_update_kernel>(graph, kernel, launched_->launch());
  return context_.call<&D::graph_update_values>(graph, kernel, values_->launch());
}

void Work::set_factor(int64_t factor) {
  if (launched_) {
    launched_->set_factor(factor);
  } else {
    values_->set_factor(static_cast<int32_t>(factor));
  }
}

const char* Work::name() const {
  return launched_ ? launched_->launch()->name : values_->launch()->name;
}

void Work::expect_released(int times, const std::string& when) const {
  if (!launched_) return;
  const int released = launched_->released();
  expect(released == times, concat(when, " release was called ", released, " times"), times,
         released);
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
