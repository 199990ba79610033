// The only file that reaches into torch's private members. Pinned to torch 2.13; a move to
// another minor starts here.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/version.h>

static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 13,
              "native/torch is written for torch 2.13: check torch_private.h before building "
              "against another");

namespace bringup::torch_ext {

// The dispatcher's entry of an operator: its computed dispatch table.
const c10::impl::OperatorEntry& operator_entry(const c10::OperatorHandle& op);

// Whether the kernel of a call takes arguments as C++ functions do: a boxed one may be in Python.
bool is_unboxed(const c10::OperatorHandle& op, c10::DispatchKeySet keys);

// Which runtime keys have no fallthrough kernel for this operator.
c10::DispatchKeySet non_fallthrough_keys(const c10::OperatorHandle& op);

// The key set by which the dispatcher picks a kernel for tensors with the keys `tensors`:
// thread-local includes and excludes applied, keys with a fallthrough kernel removed.
// DispatchKeyExtractor offers this for stacks only.
c10::DispatchKeySet effective_keys(const c10::impl::OperatorEntry& entry,
                                   c10::DispatchKeySet tensors);

// The same for every copy of one version counter, and for no other while a copy exists.
const void* version_identity(const c10::VariableVersion& version);

// Whether PrivateUse1 has a function that chooses the implementation of attention.
bool has_attention_choice();

// The autograd engine counts devices once, at its first backward. The first of these raises when it
// already has threads for fewer than `count` devices, of another backend; the second gives it
// threads for `count` devices when it started without any. Call that one without the GIL: the
// threads take it.
void require_autograd_devices(c10::DeviceIndex count);
// True when it did.
bool start_autograd_device_threads(c10::DeviceIndex count);

}  // namespace bringup::torch_ext
