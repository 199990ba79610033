// Random numbers for host code that runs in a device's place. What it draws without naming a
// generator would come from the CPU's default generator; here it comes from the device's instead,
// on this thread and nowhere else.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <utility>

#include "torch/devices/generator.h"

namespace bringup::torch_ext {

// Gives every random call a CPU generator of its own.
class DrawSource {
 public:
  virtual ~DrawSource() = default;
  virtual at::Generator next() = 0;
};

// Takes an offset of a device's generator for each call.
class DeviceDraws final : public DrawSource {
 public:
  explicit DeviceDraws(std::shared_ptr<RandomState> state) : state_(std::move(state)) {}
  at::Generator next() override { return call_generator(state_->take(1)); }

 private:
  std::shared_ptr<RandomState> state_;
};

// While this lives, random operators that this thread calls on CPU tensors without a generator draw
// from `source`. It stands above the dispatcher's CPU kernels, so code that asks for the CPU's
// default generator itself is not reached.
class DrawScope {
 public:
  explicit DrawScope(DrawSource& source);
  ~DrawScope();
  DrawScope& operator=(DrawScope&&) = delete;

 private:
  DrawSource* former_;
  bool was_excluded_;
};

// What an operator's schema says about random numbers.
class RandomTraits {
 public:
  RandomTraits() = default;
  explicit RandomTraits(const c10::OperatorHandle& op);

  // Puts a generator of `source` where the operator takes one, unless this call draws nothing.
  void give_generator(c10::IValue* arguments, DrawSource& source) const;
  // Whether a call that may draw does with these arguments.
  bool draws(const c10::IValue* arguments) const;
  // Position of the generator among the arguments, or -1.
  int generator() const noexcept { return generator_; }
  // May draw without being given a generator: needs a DrawScope.
  bool draws_inside() const noexcept { return draws_inside_; }
  bool any() const noexcept { return generator_ >= 0 || draws_inside_; }

 private:
  int generator_ = -1;
  int training_ = -1;  // draws only if this argument is true
  bool draws_inside_ = false;
};

void register_host_random();

}  // namespace bringup::torch_ext
