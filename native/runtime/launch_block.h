// The launch block: one kernel call's arguments in memory of its own. Tensors are described
// (address, sizes, strides), not owned; scalars, lists and strings are copied. Asynchronous
// launches, graph nodes and parameter versions all use it, never the caller's memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "bringup/kernel.h"
#include "runtime/export.h"

namespace bringup::runtime {

// The numbers are driver.h's bringup_arg_kind.
enum class ArgKind : uint8_t {
  kNone,
  kTensor,
  kInt,
  kFloat,
  kString,
  kIntList,
  kFloatList,
  kTensorList
};

// A tensor as a kernel sees it; sizes and strides are the caller's until the block copies them.
struct TensorDesc {
  void* data = nullptr;
  DLDevice device{1, 0};
  DLDataType dtype{2, 32, 1};
  std::span<const int64_t> sizes;
  std::span<const int64_t> strides;
};

class BRINGUP_API LaunchBlock {
 public:
  LaunchBlock();
  ~LaunchBlock();
  LaunchBlock(LaunchBlock&&) noexcept;
  LaunchBlock& operator=(LaunchBlock&&) noexcept;

  // Arguments are appended in ABI order; each is copied at once.
  void add_none();
  void add_tensor(const TensorDesc& tensor);
  void add_int(int64_t value);
  void add_float(double value);
  void add_string(std::string_view value);
  void add_int_list(std::span<const int64_t> values);
  void add_float_list(std::span<const double> values);
  void add_tensor_list(std::span<const std::optional<TensorDesc>> tensors);
  // All arguments of another block, whose memory this one keeps.
  void add_all(LaunchBlock other);

  // What `run(args, n, ctx)` takes. Stable addresses: moving the block or appending does not move
  // arguments already added, so DLTensor and scalar pointers stay valid as long as the block lives.
  // The arrays that args() and kinds() return are valid until the next argument is appended.
  void** args() const noexcept;
  const uint8_t* kinds() const noexcept;  // size() entries of bringup_arg_kind
  int32_t size() const noexcept;

  // What the block holds, for free_detached once a launch is over; the block is then spent.
  void* detach() noexcept;
  static void free_detached(void* detached) noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bringup::runtime
