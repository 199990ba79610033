// Random numbers of kernels that devices.kernel registered: a call takes one offset of the device's
// generator, and its kernel gets seed and offset as a list of two integers.
#pragma once

#include <ATen/core/ivalue.h>

#include "torch/devices/generator.h"
#include "torch/operators/operator_kernel.h"

namespace bringup::torch_ext {

// Appends the list, which put_random fills, and notes where it is.
void add_random(OperatorLaunch& launch);

// Where a call draws from: takes its offset. Evaluation (`training=False`) takes none and gets the
// beginning of all sequences. Raises for a generator of another device.
RandomPoint take_random(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments,
                        c10::DeviceIndex device);

// The arguments with None for a generator, which only take_random looks at.
std::vector<c10::IValue> without_generator(const OperatorKernel& kernel,
                                           c10::ArrayRef<c10::IValue> arguments);

// Whether the CPU takes a call with these numbers (a probability between 0 and 1): asked once for
// each choice of them, on tensors of one element; raises what it says where nothing may fall back.
// Of a raw kernel only where it fills a tensor: what others take depends on data.
bool takes_numbers(const OperatorKernel& kernel, c10::ArrayRef<c10::IValue> arguments);

}  // namespace bringup::torch_ext
