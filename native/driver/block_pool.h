// Device memory cut into blocks: which free block serves a request, how blocks are split, and how
// free neighbours become one again. Arithmetic only: no driver, no lock, and no address is touched.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

namespace bringup::driver {

struct Block;
struct StreamBlocks;

// The handle of a stream, which may be that of another device.
struct StreamOfDevice {
  int32_t device = 0;
  int64_t stream = 0;
  bool operator==(const StreamOfDevice&) const = default;
};

// Small requests are cut from segments of their own, so that they do not break up large memory.
enum class PoolKind : uint8_t { kSmall, kLarge };

// One allocation of the driver. All of its blocks belong to one stream, and to one pool: 0 or one
// that a program has made.
struct Segment {
  int32_t device = 0;
  int64_t stream = 0;
  uint64_t pool = 0;
  PoolKind kind = PoolKind::kSmall;
  std::byte* address = nullptr;
  size_t bytes = 0;
  Block* first = nullptr;
  uint64_t freed_at = 0;  // when a block of it was given back last, on its owner's clock
  StreamBlocks* owner = nullptr;
};

enum class BlockState : uint8_t {
  kFree,
  kLive,
  kPending,  // freed, but other streams may still use it
};

struct Block {
  Segment* segment = nullptr;
  std::byte* address = nullptr;
  size_t bytes = 0;
  size_t requested = 0;
  BlockState state = BlockState::kFree;
  int pending_events = 0;
  Block* before = nullptr;  // neighbours in the segment
  Block* behind = nullptr;
  Block* next_free = nullptr;  // in a list of free blocks of one size
  Block* former_free = nullptr;
  std::vector<StreamOfDevice> used_by;  // other streams

  bool is_whole_segment() const { return before == nullptr && behind == nullptr; }
};

// The memory of one device.
class BlockPool {
 public:
  static constexpr size_t kSmallRequest = size_t{1} << 20;    // larger ones are large
  static constexpr size_t kMediumRequest = size_t{10} << 20;  // larger ones have own segments
  static constexpr size_t kSmallSegment = size_t{2} << 20;
  static constexpr size_t kMediumSegment = size_t{20} << 20;
  static constexpr size_t kLargeStep = size_t{2} << 20;

  // Sizes and addresses of blocks are multiples of `granularity`, a power of two.
  BlockPool(int32_t device, size_t granularity);
  ~BlockPool();
  BlockPool& operator=(BlockPool&&) = delete;

  size_t granularity() const { return granularity_; }
  // Bytes of the smallest block that serves a request. 0 when they cannot be counted.
  size_t round(size_t requested) const;
  // Bytes to ask the driver for when no block is free that has `bytes`, a result of round().
  size_t segment_bytes(size_t bytes) const;

  // The smallest free block of the stream and pool with at least `bytes`, or null. It stays free.
  Block* find(int64_t stream, size_t bytes, uint64_t pool = 0);
  // True when the block should not be broken up for `bytes`, because it is a whole segment of many
  // times their size: what needs all of it would have to ask for new memory later.
  bool is_oversized(const Block& block, size_t bytes) const;
  // Takes the first `bytes` of a free block; the rest stays free, or is part of the block where it
  // would be too small to be of use. `remainder` is set to the free rest, or null.
  Block* take(Block* block, size_t bytes, Block** remainder);
  // Makes a block free, one with its free neighbours, and returns what it is a part of now.
  // `absorbed` counts the neighbours that there are no more, `absorbed_bytes` theirs.
  Block* put(Block* block, int* absorbed, size_t* absorbed_bytes);

  // New memory of the driver: one free block.
  Block* add_segment(int64_t stream, size_t bytes, void* address, size_t segment_bytes,
                     uint64_t pool = 0);
  // What is of a pool is of pool 0 from now on.
  void release(uint64_t pool);
  // Takes out a segment whose one block is free; restore_segment() puts it in again.
  std::unique_ptr<Segment> remove_segment(Segment* segment);
  Block* restore_segment(std::unique_ptr<Segment> segment);

  // By address.
  const std::map<const std::byte*, std::unique_ptr<Segment>>& segments() const { return segments_; }
  // Where the segment that holds an address begins; null: none does.
  const std::byte* segment_of(const void* address) const;

 private:
  StreamBlocks& blocks_of(int64_t stream, uint64_t pool);
  void link(Block* block);
  void unlink(Block* block);
  Block* new_block();

  const int32_t device_;
  const size_t granularity_;
  const int shift_;  // log2 of it
  std::map<const std::byte*, std::unique_ptr<Segment>> segments_;
  std::map<std::pair<int64_t, uint64_t>, std::unique_ptr<StreamBlocks>> streams_;  // and pools
  StreamBlocks* last_used_ = nullptr;
  std::deque<Block> storage_;
  std::vector<Block*> spare_;
};

}  // namespace bringup::driver
