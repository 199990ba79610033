#include "torch/devices/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <vector>

#include "bringup/kernel.h"
#include "bringup/random.h"
#include "torch/common/allocation.h"
#include "torch/devices/state.h"

namespace bringup::torch_ext {
namespace {

std::atomic<uint64_t> g_clock{1};
thread_local RandomObserver* t_random_observer = nullptr;

uint64_t tick() noexcept { return g_clock.fetch_add(1) + 1; }

constexpr size_t kStateBytes = 2 * sizeof(uint64_t);

void tell(const RandomState& state) {
  if (t_random_observer != nullptr) t_random_observer->moves(state);
}

}  // namespace

uint64_t random_clock() noexcept { return g_clock.load(); }

void set_random_observer(RandomObserver* observer) noexcept { t_random_observer = observer; }

RandomState::RandomState() : RandomState(RandomPoint()) { history_.seeded = history_.set; }

RandomState::RandomState(RandomPoint point) : point_(point) { history_.set = tick(); }

void RandomState::seed(uint64_t seed) {
  tell(*this);
  const std::lock_guard lock(mutex_);
  point_ = {seed, 0};
  history_.seeded = history_.set = tick();
}

void RandomState::set(RandomPoint point) {
  tell(*this);
  const std::lock_guard lock(mutex_);
  point_ = point;
  history_.set = tick();
}

void RandomState::go_back(RandomPoint point) {
  const std::lock_guard lock(mutex_);
  point_ = point;
}

RandomPoint RandomState::point() const {
  const std::lock_guard lock(mutex_);
  return point_;
}

RandomPoint RandomState::read() {
  const std::lock_guard lock(mutex_);
  history_.read = tick();
  return point_;
}

RandomPoint RandomState::take(uint64_t calls) {
  tell(*this);
  const std::lock_guard lock(mutex_);
  const RandomPoint first = point_;
  point_.offset += calls;
  return first;
}

RandomHistory RandomState::history() const {
  const std::lock_guard lock(mutex_);
  return history_;
}

DriverGenerator::DriverGenerator(c10::DeviceIndex device)
    : DriverGenerator(device, std::make_shared<RandomState>()) {}

DriverGenerator::DriverGenerator(c10::DeviceIndex device, std::shared_ptr<RandomState> state)
    : c10::GeneratorImpl(c10::Device(kDriverDevice, device), kDriverKeys),
      state_(std::move(state)) {}

uint64_t DriverGenerator::seed() {
  const uint64_t seed = c10::detail::getNonDeterministicRandom();
  set_current_seed(seed);
  return seed;
}

void DriverGenerator::set_offset(uint64_t offset) { state()->set({current_seed(), offset}); }

void DriverGenerator::set_state(const c10::TensorImpl& bytes) {
  at::detail::check_rng_state(bytes);
  TORCH_CHECK(static_cast<size_t>(bytes.numel()) == kStateBytes,
              "expected a random state of device '", driver_facts().device_name, "', ", kStateBytes,
              " bytes of seed and offset, but got ", bytes.numel(),
              " bytes: a state of another device? Use one that its get_rng_state gave");
  RandomPoint point;
  const auto* data = static_cast<const char*>(bytes.data());
  std::memcpy(&point.seed, data, sizeof(point.seed));
  std::memcpy(&point.offset, data + sizeof(point.seed), sizeof(point.offset));
  state()->set(point);
}

c10::intrusive_ptr<c10::TensorImpl> DriverGenerator::get_state() const {
  const RandomPoint point = state()->read();
  const InterceptorScope no_interceptor{nullptr};  // no result of a capture: no operator fills it
  // Not at::empty, which gives a fake tensor where torch.compile asks for the state.
  const at::Tensor bytes = at::detail::empty_cpu({kStateBytes}, at::TensorOptions(at::kByte));
  auto* data = static_cast<char*>(bytes.mutable_data_ptr());
  std::memcpy(data, &point.seed, sizeof(point.seed));
  std::memcpy(data + sizeof(point.seed), &point.offset, sizeof(point.offset));
  return bytes.getIntrusivePtr();
}

void DriverGenerator::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) {
  const auto* generator = dynamic_cast<const DriverGenerator*>(other.get());
  TORCH_CHECK(generator != nullptr, "expected a generator of device '", driver_facts().device_name,
              "' to share the state of, but got ",
              other ? "one of '" + other->device().str() + "'" : "none");
  tell(*state());
  share(generator->state());
}

c10::intrusive_ptr<c10::GeneratorImpl> DriverGenerator::graphsafe_get_state() const {
  return c10::make_intrusive<DriverGenerator>(device().index(), state());
}

std::shared_ptr<RandomState> DriverGenerator::state() const {
  const std::lock_guard lock(state_mutex_);
  return state_;
}

void DriverGenerator::share(std::shared_ptr<RandomState> state) {
  const std::lock_guard lock(state_mutex_);
  state_ = std::move(state);
}

DriverGenerator* DriverGenerator::clone_impl() const {
  return new DriverGenerator(device().index(), std::make_shared<RandomState>(state()->point()));
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static const auto* generators = [] {
    auto* all = new std::vector<at::Generator>;
    const RandomPoint start{at::detail::getDefaultCPUGenerator().current_seed(), 0};
    for (int32_t index = 0; index < driver_facts().device_count; ++index) {
      all->push_back(at::make_generator<DriverGenerator>(static_cast<c10::DeviceIndex>(index),
                                                         std::make_shared<RandomState>(start)));
    }
    return all;
  }();
  return (*generators)[static_cast<size_t>(checked_device(device))];
}

void put_random(void* const* arguments, int32_t argument, RandomPoint point) noexcept {
  const auto& list = *static_cast<const bringup_list*>(arguments[argument]);
  auto* numbers = static_cast<int64_t*>(const_cast<void*>(list.data));
  numbers[0] = static_cast<int64_t>(point.seed);
  numbers[1] = static_cast<int64_t>(point.offset);
}

std::shared_ptr<RandomState> random_state(const at::Generator& generator, c10::DeviceIndex device) {
  TORCH_CHECK(generator.device().type() == kDriverDevice && generator.device().index() == device,
              "expected a generator of device '", driver_facts().device_name, ":",
              static_cast<int>(device), "' but got one of '", generator.device(), "'");
  return static_cast<DriverGenerator*>(generator.unsafeGetGeneratorImpl())->state();
}

RandomPoint take_point(const at::Generator& given, c10::Device device) {
  if (device.type() == kDriverDevice) {
    const at::Generator& used = given.defined() ? given : default_generator(device.index());
    return random_state(used, device.index())->take(1);
  }
  at::Generator used = given.defined() ? given : at::globalContext().defaultGenerator(device);
  TORCH_CHECK(used.device().type() == device.type(), "expected a generator of device '",
              device.str(), "' but got one of '", used.device(), "'");
  const std::lock_guard lock(used.mutex());
  if (device.is_cpu()) {  // a seed that is an int64 in every form in which a kernel gets it
    return {used.get<at::CPUGeneratorImpl>()->random64() & INT64_MAX, 0};
  }
  const RandomPoint point{used.current_seed(), used.get_offset()};
  used.set_offset(point.offset + 4);
  return point;
}

// A CPU kernel takes a Mersenne twister and nothing else, and seeding one keeps 32 bits of a seed:
// two of 65,000 calls would draw the same. So its whole state is filled with Philox numbers.
at::Generator call_generator(RandomPoint point) {
  at::mt19937_data_pod data{};
  data.seed_ = point.seed;
  data.seeded_ = true;
  data.next_ = 1;
  data.left_ = at::MERSENNE_STATE_N;
  static_assert(at::MERSENNE_STATE_N % 4 == 0);
  for (uint32_t block = 0; block < at::MERSENNE_STATE_N / 4; ++block) {
    const bringup_random random = bringup_random_at(point.seed, point.offset, block);
    std::copy(std::begin(random.word), std::end(random.word), &data.state_[4 * block]);
  }
  at::mt19937 engine;
  engine.set_data(data);
  auto generator = c10::make_intrusive<at::CPUGeneratorImpl>();
  generator->set_engine(engine);
  return at::Generator(std::move(generator));
}

}  // namespace bringup::torch_ext
