// Starting a kernel of kernel_operator.h: `aclrtlaunch_<name>` as the vendor's toolkit would
// generate it. Included by the lines that bringup generates behind a kernel's source, not by
// kernels.
//
// A launch runs its blocks in the calling thread, one after the other, before it returns. When the
// thread has said bringup_ascendc_queue(driver, device) before, the launch goes into the stream of
// that driver instead, as device code over block_dim blocks, and returns at once.
#ifndef BRINGUP_ASCENDC_LAUNCH_H_
#define BRINGUP_ASCENDC_LAUNCH_H_

#include <exception>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "bringup/ascendc/kernel_operator.h"
#include "bringup/driver.h"

#define BRINGUP_ASCENDC_EXPORT extern "C" __attribute__((visibility("default")))

namespace bringup {
namespace ascendc {

constexpr uint32_t kRefused = 1;

struct Queue {
  const bringup_driver* driver = nullptr;
  int32_t device = 0;
};

// Where the thread's next launch goes.
inline Queue& queue() {
  thread_local Queue next;
  return next;
}

// Why the thread's last launch was refused.
inline char (&words())[512] {
  thread_local char text[512];
  return text;
}

// Runs one block; false when it was refused, with the reason in `reason`.
template <class... Parameters>
bool run_block(void (*kernel)(Parameters...), const std::tuple<Parameters...>& arguments,
               int64_t index, int64_t count, Misuse& reason) {
  block() = {index, count};
  try {
    std::apply(kernel, arguments);
  } catch (const Misuse& misuse) {
    reason = misuse;
  } catch (const std::exception& error) {
    std::snprintf(reason.words, sizeof reason.words, "the kernel threw: %s", error.what());
  } catch (...) {
    std::snprintf(reason.words, sizeof reason.words, "the kernel threw no std::exception");
  }
  block() = {};
  return reason.words[0] == '\0';
}

// All that one queued launch points at, until the driver releases it. The driver sees an argument
// for each parameter, a tensor where it is an address (it may have to translate that), and last one
// number: the address of this.
template <class... Parameters>
class Launch {
 public:
  using Kernel = void (*)(Parameters...);

  Launch(const char* name, Kernel kernel, int32_t device, const Parameters&... arguments)
      : kernel_(kernel), arguments_(arguments...), device_(device) {
    self_ = reinterpret_cast<int64_t>(this);
    tensors_.reserve(sizeof...(Parameters));
    (add(arguments), ...);
    args_.push_back(&self_);
    kinds_.push_back(BRINGUP_ARG_INT);
    launch_.struct_size = sizeof launch_;
    launch_.nargs = static_cast<int32_t>(args_.size());
    launch_.args = args_.data();
    launch_.kinds = kinds_.data();
    launch_.fn = &Launch::run;
    launch_.name = name;
    launch_.owner = this;
    launch_.release = [](void* owner) { delete static_cast<Launch*>(owner); };
  }

  const bringup_launch* over(int64_t blocks) {
    launch_.grid = blocks;
    return &launch_;
  }

 private:
  template <class Value>
  void add(const Value& value) {
    if constexpr (std::is_pointer_v<Value>) {
      static int64_t one = 1;
      void* address = const_cast<void*>(static_cast<const void*>(value));
      tensors_.push_back({address, {12, device_}, 1, {1, 8, 1}, &one, &one, 0});
      args_.push_back(&tensors_.back());
      kinds_.push_back(BRINGUP_ARG_TENSOR);
    } else {
      args_.push_back(nullptr);  // kept by us; here so that the driver counts as the caller does
      kinds_.push_back(BRINGUP_ARG_NONE);
    }
  }

  template <class Value>
  static Value argument(const Value& kept, void**& args) {
    const void* given = *args++;
    if constexpr (std::is_pointer_v<Value>) {
      return static_cast<Value>(static_cast<const DLTensor*>(given)->data);
    } else {
      return kept;
    }
  }

  static int32_t run(void** args, int32_t n, const bringup_ctx* ctx) {
    const auto* self = reinterpret_cast<const Launch*>(*static_cast<const int64_t*>(args[n - 1]));
    Misuse reason{};
    const bool done = std::apply(
        [&](const Parameters&... kept) {
          // Braces: arguments are taken from left to right.
          const std::tuple<Parameters...> arguments{argument(kept, args)...};
          return run_block(self->kernel_, arguments, ctx->block_index, ctx->block_count, reason);
        },
        self->arguments_);
    if (!done) ctx->set_error(ctx, reason.words);
    return done ? 0 : static_cast<int32_t>(kRefused);
  }

  Kernel kernel_;
  std::tuple<Parameters...> arguments_;
  int32_t device_;
  int64_t self_;
  std::vector<DLTensor> tensors_;
  std::vector<void*> args_;
  std::vector<uint8_t> kinds_;
  bringup_launch launch_{};
};

// What `aclrtlaunch_<name>` does. Returns 0, a bringup_status of the driver, or kRefused.
template <class... Parameters>
uint32_t launch(const char* name, void (*kernel)(Parameters...), uint32_t block_dim, void* stream,
                const Parameters&... arguments) {
  const Queue target = std::exchange(queue(), {});
  words()[0] = '\0';
  if (target.driver != nullptr) {
    auto owner = std::make_unique<Launch<Parameters...>>(name, kernel, target.device, arguments...);
    const bringup_launch* launch = owner.release()->over(block_dim);  // the driver's from here on
    const int32_t status =
        target.driver->launch(target.device, static_cast<bringup_stream>(stream), launch);
    if (status != BRINGUP_OK && target.driver->last_error != nullptr) {
      std::snprintf(words(), sizeof words(), "%s", target.driver->last_error());
    }
    return static_cast<uint32_t>(status);
  }
  const std::tuple<Parameters...> all(arguments...);
  for (uint32_t i = 0; i < block_dim; ++i) {
    Misuse reason{};
    if (run_block(kernel, all, i, block_dim, reason)) continue;
    std::snprintf(words(), sizeof words(), "block %u: %s", i, reason.words);
    return kRefused;
  }
  return 0;
}

// What a kernel's parameter is: 'p' an address, 'i' an integer, 'f' a float, 's' a struct.
struct Parameter {
  int32_t kind;
  int32_t size;
};

template <class Value>
constexpr Parameter parameter() {
  const int32_t kind = std::is_pointer_v<Value>                             ? 'p'
                       : std::is_integral_v<Value> || std::is_enum_v<Value> ? 'i'
                       : std::is_floating_point_v<Value>                    ? 'f'
                                                                            : 's';
  return {kind, static_cast<int32_t>(sizeof(Value))};
}

// Gives the parameters of a kernel, and returns how many there are.
template <class... Parameters>
int32_t parameters(void (*)(Parameters...), const Parameter** found) {
  // One more, for there are no empty arrays.
  static constexpr Parameter all[] = {parameter<Parameters>()..., {0, 0}};
  *found = all;
  return sizeof...(Parameters);
}

}  // namespace ascendc
}  // namespace bringup

// The thread's next launch goes into a stream of this driver's device. The driver has to run host
// code (bringup_device_props::runs_host_code) and to have a launch function.
BRINGUP_ASCENDC_EXPORT void bringup_ascendc_queue(const bringup_driver* driver, int32_t device) {
  bringup::ascendc::queue() = {driver, device};
}

// Why this thread's last launch returned something else than 0; "" when it is not known.
BRINGUP_ASCENDC_EXPORT const char* bringup_ascendc_words() { return bringup::ascendc::words(); }

#endif  // BRINGUP_ASCENDC_LAUNCH_H_
