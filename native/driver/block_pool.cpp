#include "driver/block_pool.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace bringup::driver {
namespace {

struct BySize {
  struct Key {
    size_t bytes;
  };
  using is_transparent = void;
  bool operator()(const Block* a, const Block* b) const {
    return a->bytes != b->bytes ? a->bytes < b->bytes : a->address < b->address;
  }
  bool operator()(const Block* a, Key b) const { return a->bytes < b.bytes; }
  bool operator()(Key a, const Block* b) const { return a.bytes < b->bytes; }
};

size_t rounded_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

}  // namespace

// The free blocks of one stream and pool. Small ones lie in a list for each size, with a bit for
// each list that is not empty: an operator's temporaries cost a few loads.
struct StreamBlocks {
  StreamBlocks(std::pair<int64_t, uint64_t> of, size_t sizes)
      : key(of),
        lists(sizes, nullptr),
        words((sizes + 63) / 64, 0),
        full((sizes + 4095) / 4096, 0) {}

  const std::pair<int64_t, uint64_t> key;
  std::vector<Block*> lists;
  std::vector<uint64_t> words;
  std::vector<uint64_t> full;  // a bit for each word that is not 0
  std::set<Block*, BySize> large;

  void add(size_t size, Block* block) {
    block->former_free = nullptr;
    block->next_free = lists[size];
    if (block->next_free != nullptr) block->next_free->former_free = block;
    lists[size] = block;
    words[size / 64] |= bit(size);
    full[size / 4096] |= bit(size / 64);
  }

  void remove(size_t size, Block* block) {
    if (block->next_free != nullptr) block->next_free->former_free = block->former_free;
    if (block->former_free != nullptr) {
      block->former_free->next_free = block->next_free;
    } else {
      lists[size] = block->next_free;
      if (lists[size] != nullptr) return;
      words[size / 64] &= ~bit(size);
      if (words[size / 64] == 0) full[size / 4096] &= ~bit(size / 64);
    }
  }

  Block* smallest_from(size_t size) const {
    if (size >= lists.size()) return nullptr;
    size_t word = size / 64;
    uint64_t bits = words[word] & (~uint64_t{0} << (size % 64));
    if (bits == 0) {
      word = next_word(word + 1);
      if (word == words.size()) return nullptr;
      bits = words[word];
    }
    return lists[word * 64 + static_cast<size_t>(std::countr_zero(bits))];
  }

 private:
  static uint64_t bit(size_t at) { return uint64_t{1} << (at % 64); }

  // The first word from `from` that is not 0, or words.size().
  size_t next_word(size_t from) const {
    size_t group = from / 64;
    if (group >= full.size()) return words.size();
    uint64_t bits = full[group] & (~uint64_t{0} << (from % 64));
    while (bits == 0) {
      if (++group == full.size()) return words.size();
      bits = full[group];
    }
    return group * 64 + static_cast<size_t>(std::countr_zero(bits));
  }
};

BlockPool::BlockPool(int32_t device, size_t granularity)
    : device_(device), granularity_(granularity), shift_(std::countr_zero(granularity)) {}

BlockPool::~BlockPool() = default;

size_t BlockPool::round(size_t requested) const {
  // Room for every rounding that follows.
  if (requested > std::numeric_limits<size_t>::max() - 2 * std::max(granularity_, kLargeStep)) {
    return 0;
  }
  return (std::max<size_t>(requested, 1) + granularity_ - 1) >> shift_ << shift_;
}

size_t BlockPool::segment_bytes(size_t bytes) const {
  size_t segment = rounded_up(bytes, kLargeStep);
  if (bytes <= kSmallRequest) segment = kSmallSegment;
  if (bytes > kSmallRequest && bytes < kMediumRequest) segment = kMediumSegment;
  return rounded_up(segment, granularity_);
}

StreamBlocks& BlockPool::blocks_of(int64_t stream, uint64_t pool) {
  const std::pair key(stream, pool);
  if (last_used_ != nullptr && last_used_->key == key) return *last_used_;
  auto& blocks = streams_[key];
  if (blocks == nullptr) {
    const size_t largest = rounded_up(kSmallSegment, granularity_);
    blocks = std::make_unique<StreamBlocks>(key, largest / granularity_ + 1);
  }
  last_used_ = blocks.get();
  return *blocks;
}

Block* BlockPool::find(int64_t stream, size_t bytes, uint64_t pool) {
  StreamBlocks& blocks = blocks_of(stream, pool);
  if (bytes > kSmallRequest) {
    const auto best = blocks.large.lower_bound(BySize::Key{bytes});
    if (best != blocks.large.end()) return *best;
  }
  // A large request that fits into an unused segment of small blocks takes it before new memory.
  return blocks.smallest_from(bytes >> shift_);
}

bool BlockPool::is_oversized(const Block& block, size_t bytes) const {
  constexpr size_t kTimes = 4;
  return block.segment->kind == PoolKind::kLarge && block.is_whole_segment() &&
         block.bytes / kTimes >= segment_bytes(bytes);
}

Block* BlockPool::take(Block* block, size_t bytes, Block** remainder) {
  unlink(block);
  block->state = BlockState::kLive;
  *remainder = nullptr;
  const size_t rest = block->bytes - bytes;
  // What is left of a large block has to serve a large request.
  const size_t least = block->segment->kind == PoolKind::kSmall ? granularity_ : kSmallRequest + 1;
  if (rest < least) return block;
  Block* behind = new_block();
  behind->segment = block->segment;
  behind->address = block->address + bytes;
  behind->bytes = rest;
  behind->before = block;
  behind->behind = block->behind;
  if (behind->behind != nullptr) behind->behind->before = behind;
  block->behind = behind;
  block->bytes = bytes;
  link(behind);
  *remainder = behind;
  return block;
}

Block* BlockPool::put(Block* block, int* absorbed, size_t* absorbed_bytes) {
  *absorbed = 0;
  *absorbed_bytes = 0;
  // The first of two neighbours stays, with the bytes of both.
  const auto join = [&](Block* first, Block* second) {
    first->bytes += second->bytes;
    first->behind = second->behind;
    if (first->behind != nullptr) first->behind->before = first;
    spare_.push_back(second);
    ++*absorbed;
  };
  if (block->behind != nullptr && block->behind->state == BlockState::kFree) {
    unlink(block->behind);
    *absorbed_bytes += block->behind->bytes;
    join(block, block->behind);
  }
  if (block->before != nullptr && block->before->state == BlockState::kFree) {
    Block* before = block->before;
    unlink(before);
    *absorbed_bytes += before->bytes;
    join(before, block);
    block = before;
  }
  block->state = BlockState::kFree;
  block->requested = 0;
  link(block);
  return block;
}

Block* BlockPool::add_segment(int64_t stream, size_t bytes, void* address, size_t segment_bytes,
                              uint64_t pool) {
  auto segment = std::make_unique<Segment>();
  segment->device = device_;
  segment->stream = stream;
  segment->pool = pool;
  segment->kind = bytes <= kSmallRequest ? PoolKind::kSmall : PoolKind::kLarge;
  segment->address = static_cast<std::byte*>(address);
  segment->bytes = segment_bytes;
  segment->owner = &blocks_of(stream, pool);
  return restore_segment(std::move(segment));
}

void BlockPool::release(uint64_t pool) {
  for (const auto& [address, segment] : segments_) {
    if (segment->pool != pool) continue;
    const auto each_free = [&](auto&& visit) {
      for (Block* block = segment->first; block != nullptr; block = block->behind) {
        if (block->state == BlockState::kFree) visit(block);
      }
    };
    each_free([&](Block* block) { unlink(block); });
    segment->pool = 0;
    segment->owner = &blocks_of(segment->stream, 0);
    each_free([&](Block* block) { link(block); });
  }
  last_used_ = nullptr;
  std::erase_if(streams_, [&](const auto& blocks) { return blocks.first.second == pool; });
}

Block* BlockPool::restore_segment(std::unique_ptr<Segment> segment) {
  Block* block = new_block();
  block->segment = segment.get();
  block->address = segment->address;
  block->bytes = segment->bytes;
  segment->first = block;
  segments_.emplace(segment->address, std::move(segment));
  link(block);
  return block;
}

std::unique_ptr<Segment> BlockPool::remove_segment(Segment* segment) {
  unlink(segment->first);
  spare_.push_back(segment->first);
  return std::move(segments_.extract(segment->address).mapped());
}

const std::byte* BlockPool::segment_of(const void* address) const {
  const auto* byte = static_cast<const std::byte*>(address);
  auto segment = segments_.upper_bound(byte);
  if (segment == segments_.begin()) return nullptr;
  --segment;
  return byte < segment->first + segment->second->bytes ? segment->first : nullptr;
}

void BlockPool::link(Block* block) {
  StreamBlocks& blocks = *block->segment->owner;
  if (block->segment->kind == PoolKind::kSmall) {
    blocks.add(block->bytes >> shift_, block);
  } else {
    blocks.large.insert(block);
  }
}

void BlockPool::unlink(Block* block) {
  StreamBlocks& blocks = *block->segment->owner;
  if (block->segment->kind == PoolKind::kSmall) {
    blocks.remove(block->bytes >> shift_, block);
  } else {
    blocks.large.erase(block);
  }
}

Block* BlockPool::new_block() {
  if (spare_.empty()) return &storage_.emplace_back();
  Block* block = spare_.back();
  spare_.pop_back();
  *block = Block{};
  return block;
}

}  // namespace bringup::driver
