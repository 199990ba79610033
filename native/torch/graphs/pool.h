// The memory of one captured graph: everything that the capturing thread allocates comes from here,
// stays at its address for the graph's life and knows who filled it. Also the interceptors that
// lead allocations to these addresses.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <memory>
#include <mutex>
#include <vector>

#include "torch/common/allocation.h"

namespace bringup::torch_ext::graphs {

class Pool;

// Who asked for a block: says what its content may be before a node wrote it.
enum class Origin : uint8_t {
  kOperator,       // an operator that became a node
  kUninitialised,  // aten::empty and the like: undefined on purpose
  kHostData,       // data that came from Python: torch.tensor([...]), an index list
  kUnseen,         // code that the recorder cannot see: a generated kernel, a raw launch
};

// A piece of memory that is handed out again when its storage has died during the capture.
struct Block {
  void* data = nullptr;
  size_t capacity = 0;
  size_t bytes = 0;  // of the storage that has it now
  c10::Device device{c10::kCPU};
  at::DataPtr memory;
  Pool* pool = nullptr;
  std::shared_ptr<Pool> holder;  // set while a storage has the block: keeps the pool alive
  Origin origin = Origin::kUnseen;
  bool written = false;           // a node fills it on every replay
  size_t writer = 0;              // which one did last, when written
  std::vector<at::Tensor> parts;  // what nodes wrote, over `alias`; all of it when empty
  c10::Storage alias;             // the same memory without ownership, made when first asked for
};

class Pool : public std::enable_shared_from_this<Pool> {
 public:
  Pool();
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  at::DataPtr allocate(size_t bytes, c10::Device device, c10::Allocator& base, Origin origin);

  // The block of this pool that `storage` has, or null when its memory is not ours.
  Block* find(const c10::Storage& storage) const;

  // Blocks that a storage has now. Only valid while no other thread frees tensors of this pool.
  std::vector<Block*> live_blocks() const;

  // Bytes taken from the allocators below, in use or not.
  size_t reserved_bytes() const;

 private:
  static void give_back(Block& block);
  static void delete_address(void* address);
  static bool release_raw(void* address) noexcept;

  Block& fresh_block(size_t bytes, c10::Device device, c10::Allocator& base);

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Block*> free_;
};

// A storage over the block's memory that does not keep it: what nodes hold, so that a tensor which
// dies during the capture frees its block for later ones.
const c10::Storage& alias_storage(Block& block);

// `tensor`, which lies in the block, was written by node `writer`.
void mark_written(Block& block, const at::Tensor& tensor, size_t writer);

// One allocation of an operator, as it must be answered on replay.
struct Allocation {
  void* address;
  size_t bytes;
  c10::Device device;
};

// Sends the capturing thread's allocations to the pool, and lists those of the operator that runs.
class RecordingInterceptor final : public AllocationInterceptor {
 public:
  explicit RecordingInterceptor(std::shared_ptr<Pool> pool) : pool_(std::move(pool)) {}

  at::DataPtr allocate(size_t bytes, c10::Device device, c10::Allocator& base) override;

  void begin_operator(std::vector<Allocation>* list, Origin origin) {
    list_ = list;
    origin_ = origin;
    in_operator_ = true;
  }
  void end_operator() {
    list_ = nullptr;
    in_operator_ = false;
  }
  void set_paused(bool paused) { paused_ = paused; }

 private:
  std::shared_ptr<Pool> pool_;
  std::vector<Allocation>* list_ = nullptr;
  Origin origin_ = Origin::kUnseen;
  bool in_operator_ = false;
  bool paused_ = false;
};

// Answers an operator's allocations with the recorded addresses in the recorded order; what does
// not fit goes to the allocator below and counts as a miss.
class ReplayInterceptor final : public AllocationInterceptor {
 public:
  at::DataPtr allocate(size_t bytes, c10::Device device, c10::Allocator& base) override;

  void begin_operator(const std::vector<Allocation>& list) {
    next_ = list.data();
    end_ = next_ + list.size();
    missed_ = false;
  }
  void end_operator() { next_ = end_ = nullptr; }
  // Whether the operator allocated exactly what it did when it was recorded. Ask before
  // end_operator().
  bool exact() const { return !missed_ && next_ == end_; }

 private:
  const Allocation* next_ = nullptr;
  const Allocation* end_ = nullptr;
  bool missed_ = false;
};

}  // namespace bringup::torch_ext::graphs
