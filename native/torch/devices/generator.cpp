#include "torch/devices/generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <vector>

#include "torch/devices/state.h"

namespace bringup::torch_ext {
namespace {

// Exchanges where two CPU generators are in their sequences; their seeds and owners stay.
void swap_sequences(const at::Generator& a, const at::Generator& b) {
  auto* first = at::check_generator<at::CPUGeneratorImpl>(a);
  auto* second = at::check_generator<at::CPUGeneratorImpl>(b);
  const std::scoped_lock lock(first->mutex_, second->mutex_);
  const at::mt19937 engine = first->engine();
  const auto next_float = first->next_float_normal_sample();
  const auto next_double = first->next_double_normal_sample();
  first->set_engine(second->engine());
  first->set_next_float_normal_sample(second->next_float_normal_sample());
  first->set_next_double_normal_sample(second->next_double_normal_sample());
  second->set_engine(engine);
  second->set_next_float_normal_sample(next_float);
  second->set_next_double_normal_sample(next_double);
}

std::mutex& borrow_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

}  // namespace

DriverGenerator::DriverGenerator(c10::DeviceIndex device)
    : DriverGenerator(device, at::detail::createCPUGenerator()) {}

DriverGenerator::DriverGenerator(c10::DeviceIndex device, at::Generator host)
    : c10::GeneratorImpl(c10::Device(kDriverDevice, device), kDriverKeys), host_(std::move(host)) {}

void DriverGenerator::set_state(const c10::TensorImpl& state) {
  host_.unsafeGetGeneratorImpl()->set_state(state);
}

c10::intrusive_ptr<c10::TensorImpl> DriverGenerator::get_state() const {
  return host_.unsafeGetGeneratorImpl()->get_state();
}

DriverGenerator* DriverGenerator::clone_impl() const {
  return new DriverGenerator(device().index(), host_.clone());
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static const auto* generators = [] {
    auto* all = new std::vector<at::Generator>;
    for (int32_t index = 0; index < driver_facts().device_count; ++index) {
      all->push_back(at::make_generator<DriverGenerator>(static_cast<c10::DeviceIndex>(index)));
    }
    return all;
  }();
  return (*generators)[static_cast<size_t>(checked_device(device))];
}

at::Generator host_generator(const at::Generator& generator, c10::DeviceIndex device) {
  TORCH_CHECK(generator.device().type() == kDriverDevice && generator.device().index() == device,
              "expected a generator of device '", driver_facts().device_name, ":",
              static_cast<int>(device), "' but got one of '", generator.device(), "'");
  return static_cast<DriverGenerator*>(generator.unsafeGetGeneratorImpl())->host();
}

BorrowedCpuGenerator::BorrowedCpuGenerator(c10::DeviceIndex device)
    : device_(host_generator(default_generator(device), device)), lock_(borrow_mutex()) {
  swap_sequences(at::detail::getDefaultCPUGenerator(), device_);
}

BorrowedCpuGenerator::~BorrowedCpuGenerator() {
  swap_sequences(at::detail::getDefaultCPUGenerator(), device_);
}

}  // namespace bringup::torch_ext
