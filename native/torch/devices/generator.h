// Random numbers of a device: a counter-based generator (Philox4x32-10, bringup/random.h). Its
// state is a seed and an offset; a random call takes one offset, and its numbers are a function of
// seed and offset alone.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <memory>
#include <mutex>

namespace bringup::torch_ext {

// Where a random call stands: what it draws is a function of this.
struct RandomPoint {
  uint64_t seed = c10::default_rng_seed_val;
  uint64_t offset = 0;
};

// When a state was last seeded, set and read, in ticks of one clock of the process: tells a capture
// what happened to the state in between.
struct RandomHistory {
  uint64_t seeded = 0;
  uint64_t set = 0;  // seeding sets it too
  uint64_t read = 0;
};
uint64_t random_clock() noexcept;

class RandomState;

// Told which states of devices' generators its thread moves, right before.
class RandomObserver {
 public:
  virtual ~RandomObserver() = default;
  virtual void moves(const RandomState& state) = 0;
};
// This thread's, or null.
void set_random_observer(RandomObserver* observer) noexcept;

// What generators that are made by graphsafe_get_state() share. Safe from any thread.
class RandomState {
 public:
  RandomState();
  explicit RandomState(RandomPoint point);

  void seed(uint64_t seed);
  void set(RandomPoint point);
  // The same, as if nothing had happened since.
  void go_back(RandomPoint point);
  RandomPoint point() const;
  // The point, handed out to be set again.
  RandomPoint read();
  // Takes `calls` offsets; where the first of them stands.
  RandomPoint take(uint64_t calls);
  RandomHistory history() const;

 private:
  mutable std::mutex mutex_;
  RandomPoint point_;
  RandomHistory history_;
};

// As a tensor the state is 16 bytes: seed and offset, each 64 bits, in the host's byte order.
class DriverGenerator final : public c10::GeneratorImpl {
 public:
  explicit DriverGenerator(c10::DeviceIndex device);
  DriverGenerator(c10::DeviceIndex device, std::shared_ptr<RandomState> state);

  void set_current_seed(uint64_t seed) override { state()->seed(seed); }
  uint64_t current_seed() const override { return state()->point().seed; }
  uint64_t seed() override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override { return state()->point().offset; }
  void set_state(const c10::TensorImpl& bytes) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  // From now on shares the state of `other`, a generator of a device of this driver.
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override;
  // A generator that shares this one's state.
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;

  std::shared_ptr<RandomState> state() const;
  void share(std::shared_ptr<RandomState> state);

 private:
  DriverGenerator* clone_impl() const override;

  mutable std::mutex state_mutex_;  // only around the pointer
  std::shared_ptr<RandomState> state_;
};

// The generator that operators of `device` use when they are given none. It starts with the seed of
// the CPU's generator, as if torch.manual_seed had seeded both.
const at::Generator& default_generator(c10::DeviceIndex device);

// Makes this the point at which a kernel draws: its argument number `argument`, a list of two
// integers.
void put_random(void* const* arguments, int32_t argument, RandomPoint point) noexcept;

// What one call on `device` draws: from `given`, or where that is undefined from its default one.
// Of a generator with offsets it takes one (of CUDA's four), of the CPU's a seed. Raises for a
// generator of another device.
RandomPoint take_point(const at::Generator& given, c10::Device device);

// The state behind a device's generator; raises for another device's.
std::shared_ptr<RandomState> random_state(const at::Generator& generator, c10::DeviceIndex device);

// A CPU generator for the one random call at `point`, for a kernel that runs on the host.
at::Generator call_generator(RandomPoint point);

}  // namespace bringup::torch_ext
