// Memory that captured graphs take turns in: what one capture has freed, a later one hands out
// again. Knows which graph uses it now, and whose results a replay overwrites.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "torch/graphs/shared_copies.h"

namespace bringup::torch_ext::graphs {

class DeviceWork;
class Pool;

// Who asked for a block: says what its content may be before a node wrote it.
enum class Origin : uint8_t {
  kOperator,       // an operator that became a node
  kUninitialised,  // aten::empty and the like: undefined on purpose
  kHostData,       // data that came from Python: torch.tensor([...]), an index list
  kUnseen,         // code that the recorder cannot see: a generated kernel, a raw launch
  kBranch,         // what only nodes write that may not run
};

// Memory that a storage has; goes with it.
struct Block {
  char* data = nullptr;
  size_t capacity = 0;
  size_t bytes = 0;  // of the storage
  c10::Device device{c10::kCPU};
  size_t place = 0;              // among the pool's living blocks
  std::shared_ptr<Pool> holder;  // the capture that handed it out; kept alive
  Origin origin = Origin::kUnseen;
  bool written = false;           // a node fills it on every replay
  size_t writer = 0;              // which one did last, when written
  std::vector<at::Tensor> parts;  // what nodes wrote, over `alias`; all of it when empty
  c10::Storage alias;             // the same memory, see alias_storage
  SharedCopies copies;            // over `alias`
  // The storage, once the recorder has seen it.
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage;
  std::atomic<bool> overwritten{false};  // by another graph of the pool: reading the storage raises
};

// Addresses from first to behind last, ascending, apart from each other.
using Spans = std::vector<std::pair<const char*, const char*>>;

class MemoryPool {
 public:
  // `reuses_results`: what runs copy out has no owner, so that later captures get it too.
  explicit MemoryPool(bool reuses_results = false) : reuses_results_(reuses_results) {}
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // A capture allocates here from now on; returns its number. `name`: for messages.
  size_t join(std::weak_ptr<Pool> pool, const std::string& name);

  Block& take(size_t bytes, c10::Device device, c10::Allocator& base, std::shared_ptr<Pool> holder,
              Origin origin);
  // Blocks that a storage has now; of one capture.
  std::vector<std::shared_ptr<Block>> live_blocks(const Pool& pool) const;

  // The block that `storage` has, or null where it has none of any pool.
  static Block* find(const c10::Storage& storage);
  // Whether reading the storage raises, since another graph has overwritten it.
  static bool overwritten(const c10::Storage& storage);
  // For memory that is freed by address: whether it is a pool's.
  static bool release_raw(void* address, bool borrowed) noexcept;
  static void delete_address(void* address);

  // From begin to end the graph alone uses the memory. CaptureFailure where another user, or this
  // graph in another thread, is in between. end_use says whether another was refused.
  void begin_use(size_t graph);
  std::optional<std::string> end_use(size_t graph) noexcept;

  // A graph is about to write its memory: reading results of others in it raises from now on.
  void take_over(const Pool& writer);
  // It has written its results: they can be read.
  void restore(const Pool& writer) noexcept;

  // What was enqueued last in this memory, on a device, by any user.
  std::shared_ptr<const DeviceWork> work() const { return work_.lock(); }
  void set_work(const std::shared_ptr<const DeviceWork>& work) { work_ = work; }

  // One run() at a time, and the thread that is in it.
  std::mutex run_mutex;
  std::atomic<std::thread::id> runner;

  // Bytes taken from the allocators below, in use or not.
  size_t reserved_bytes() const;
  bool reuses_results() const { return reuses_results_; }
  // Gives the allocators below what no tensor has and no graph writes. While no capture is under
  // way in it.
  void trim();
  // Of these, the bytes of one capture that others use too.
  size_t shared_bytes(const Pool& pool) const;
  std::string name(size_t graph) const;
  std::vector<std::shared_ptr<Pool>> graphs() const;
  std::mutex& mutex() const { return mutex_; }

 private:
  struct Segment {
    at::DataPtr memory;
    size_t bytes;
    c10::Allocator* from;
  };
  struct Range {
    char* data;
    size_t bytes;
    const Segment* segment;
  };
  struct Live {
    std::shared_ptr<Block> block;
    const Segment* segment;
  };

  std::optional<Range> cut_free(size_t bytes, c10::Device device, const c10::Allocator& base);
  Range fresh(size_t bytes, c10::Device device, c10::Allocator& base);
  void add_free(Range range);
  static Block* take_registered(const void* address);
  void give_back(const Block& block);
  std::string at_once(size_t user, size_t refused) const;

  const bool reuses_results_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Segment>> segments_;
  std::vector<Range> free_;
  std::vector<Live> live_;  // a block knows its place
  std::vector<std::pair<std::weak_ptr<Pool>, std::string>> members_;
  size_t changes_ = 0;  // of live_
  // Of the last replay: nothing is to be done when the same graph replays again.
  std::optional<std::pair<size_t, size_t>> taken_over_;
  std::atomic<uint64_t> use_{0};  // the user's number + 1, and that of who was refused
  std::weak_ptr<const DeviceWork> work_;
};

// One capture's part of a pool: everything that the capturing thread allocates comes from here,
// stays at its address for the graph's life and knows who filled it.
class Pool : public std::enable_shared_from_this<Pool> {
 public:
  static std::shared_ptr<Pool> of(std::shared_ptr<MemoryPool> memory, const std::string& name);

  at::DataPtr allocate(size_t bytes, c10::Device device, c10::Allocator& base, Origin origin);
  // The block of this capture that `storage` has, or null when its memory is not ours.
  Block* find(const c10::Storage& storage) const;
  // Blocks that a storage has now.
  std::vector<std::shared_ptr<Block>> live_blocks() const { return memory_->live_blocks(*this); }

  // The run is over: what is allocated from here on is what replays use, and no tensor's. To be
  // called again after that.
  void seal();
  // After it: what the graph writes, and how much that is.
  const Spans& spans() const { return spans_; }
  bool writes(const void* data, size_t bytes) const;
  size_t bytes() const;

  MemoryPool& memory() const { return *memory_; }
  const std::shared_ptr<MemoryPool>& shared_memory() const { return memory_; }
  size_t number() const { return number_; }
  std::string name() const { return memory_->name(number_); }

  void begin_use() const { memory_->begin_use(number_); }
  std::optional<std::string> end_use() const noexcept { return memory_->end_use(number_); }
  // Around what a replay writes.
  void about_to_write() const { memory_->take_over(*this); }
  void wrote() noexcept {
    if (overwritten.exchange(false)) memory_->restore(*this);
  }

  std::atomic<bool> overwritten{false};  // some result is

 private:
  explicit Pool(std::shared_ptr<MemoryPool> memory) : memory_(std::move(memory)) {}

  const std::shared_ptr<MemoryPool> memory_;
  size_t number_ = 0;
  Spans spans_;  // until seal() in the order of allocation
  bool sealed_ = false;
};

// Memory of the pool that keeps the pool, and no block.
at::DataPtr memory_of(std::shared_ptr<Pool> pool, void* data, c10::Device device);

// A storage over the block's memory that does not keep the block: what nodes hold, so that a tensor
// which dies during the capture frees its block for later ones. It keeps the pool, since an
// operator's code in Python may keep what it is given beyond the graph.
const c10::Storage& alias_storage(Block& block);

// `tensor`, which lies in the block, was written by node `writer`.
void mark_written(Block& block, const at::Tensor& tensor, size_t writer);

}  // namespace bringup::torch_ext::graphs
