// Between the structs of the C API and those of the engine.
#pragma once

#include <algorithm>
#include <cstring>

#include "bringup/engine.h"
#include "engine/capi/handles.h"
#include "engine/graph/argument.h"
#include "engine/graph/tensor_desc.h"
#include "engine/run/pass.h"

namespace bringup::engine {

template <class... Parts>
[[noreturn]] void refuse_argument(const Parts&... parts) {
  throw_error(ErrorCode::kInvalid, parts...);
}

// All throw EngineError(kInvalid) for what is no argument, and copy what they are given.

// `pieces`: those of the graph that the arguments are for.
void put(ArgumentList& list, const Pieces& pieces, const bringup_argument& argument);
ArgumentList list_of(const Pieces& pieces, const bringup_argument* arguments, uint32_t count);
OptionValue option_of(const bringup_argument& argument);
TensorDesc desc_of(const bringup_tensor_desc& desc);
ConstantData constant_of(const bringup_constant& constant);

// Arrays that these return live as long as the entry.
bringup_argument argument_of(GraphEntry& entry, ArgumentSpan item);
bringup_argument argument_of(const OptionValue& option);
void fill(GraphEntry& entry, const TensorDesc& desc, bringup_tensor_desc& out);
void fill(GraphEntry& entry, const ConstantData& data, bringup_constant& out);

// A copy of a size-prefixed struct, zero where it ends.
template <class Struct>
Struct whole(const Struct* given_struct, const char* what) {
  const uint32_t size = given(given_struct, what).struct_size;
  if (size < sizeof(uint32_t)) throw_error(ErrorCode::kInvalid, what, " has no struct_size");
  Struct copy{};
  std::memcpy(static_cast<void*>(&copy), given_struct, std::min<size_t>(size, sizeof(Struct)));
  return copy;
}

// Writes no further than the struct of the caller reaches.
template <class Struct>
void hand_out(Struct filled, Struct* out) {
  const uint32_t size = out->struct_size;
  filled.struct_size = size;
  std::memcpy(static_cast<void*>(out), &filled, std::min<size_t>(size, sizeof(Struct)));
}

}  // namespace bringup::engine
