// Which arguments a call writes.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace bringup::torch_ext {

// Whether the schema says that the argument is written.
bool writes(const c10::Argument& argument);

// One of c10d that writes.
bool is_collective(const c10::FunctionSchema& schema);
// What it writes and does not read.
bool is_received(const c10::FunctionSchema& schema, const c10::Argument& argument);

// Whether calls may write the argument although the schema does not say so: the running statistics
// of torch's batch norms, and what a collective receives.
bool writes_undeclared(const c10::FunctionSchema& schema, const c10::Argument& argument);

// Whether calls may write the argument, declared or not.
bool may_write(const c10::FunctionSchema& schema, const c10::Argument& argument);

// Whether it is a running statistic of torch's batch norms, which calls for inference do not write,
// whatever the schema says; whether a call with these arguments is one.
bool is_statistic(const c10::FunctionSchema& schema, const c10::Argument& argument);
bool evaluates(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> args);
// Whether a call with these arguments writes one of them, declared or not.
bool call_writes(const c10::FunctionSchema& schema, size_t index, c10::ArrayRef<c10::IValue> args);

}  // namespace bringup::torch_ext
