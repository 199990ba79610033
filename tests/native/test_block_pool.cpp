// The arithmetic of blocks: random requests against a plain model, and the rules for splitting.
#include <map>
#include <random>
#include <vector>

#include "check.h"
#include "driver/block_pool.h"

namespace {

using bringup::driver::Block;
using bringup::driver::BlockPool;
using bringup::driver::BlockState;

constexpr size_t kMiB = size_t{1} << 20;

// Addresses that are only numbers: the pool touches no memory.
struct Addresses {
  size_t next = size_t{1} << 40;

  void* take(size_t bytes) {
    void* address = reinterpret_cast<void*>(next);
    next += bytes;  // neighbours in memory that are different segments
    return address;
  }
};

struct Taken {
  Block* block;
  Block* rest;
};

Taken take(BlockPool& pool, Addresses& addresses, size_t requested, int64_t stream = 0) {
  const size_t bytes = pool.round(requested);
  Block* block = pool.find(stream, bytes);
  if (block == nullptr) {
    const size_t segment = pool.segment_bytes(bytes);
    block = pool.add_segment(stream, bytes, addresses.take(segment), segment);
  }
  Block* rest = nullptr;
  block = pool.take(block, bytes, &rest);
  return {block, rest};
}

Block* put(BlockPool& pool, Block* block) {
  int absorbed = 0;
  size_t bytes = 0;
  return pool.put(block, &absorbed, &bytes);
}

// Every segment is covered by its blocks without gaps, and no two free ones are neighbours.
void check_segments(const BlockPool& pool, size_t live_blocks) {
  size_t live = 0;
  for (const auto& [address, segment] : pool.segments()) {
    const std::byte* next = segment->address;
    const Block* before = nullptr;
    for (const Block* block = segment->first; block != nullptr; block = block->behind) {
      CHECK(block->address == next);
      CHECK(block->bytes > 0 && block->bytes % pool.granularity() == 0);
      CHECK(block->segment == segment.get());
      CHECK(block->before == before);
      CHECK(before == nullptr || before->state != BlockState::kFree ||
            block->state != BlockState::kFree);
      live += block->state == BlockState::kFree ? 0 : 1;
      next += block->bytes;
      before = block;
    }
    CHECK_EQ(static_cast<size_t>(next - segment->address), segment->bytes);
  }
  CHECK_EQ(live, live_blocks);
}

size_t reserved(const BlockPool& pool) {
  size_t bytes = 0;
  for (const auto& [address, segment] : pool.segments()) bytes += segment->bytes;
  return bytes;
}

}  // namespace

TEST(random_requests_never_overlap_and_leave_whole_segments) {
  for (const size_t granularity : {512, 4096, 1 << 16}) {
    std::mt19937_64 random(granularity);
    BlockPool pool(0, granularity);
    Addresses addresses;
    std::map<const std::byte*, Block*> live;
    for (int step = 0; step < 20'000; ++step) {
      const bool grows = live.empty() || random() % (step / 5'000 % 2 == 0 ? 5 : 2) != 0;
      if (grows) {
        const size_t requested = size_t{1} + random() % (size_t{1} << (random() % 25));
        const int64_t stream = static_cast<int64_t>(random() % 3);
        Block* block = take(pool, addresses, requested, stream).block;
        CHECK(block->bytes >= requested);
        CHECK_EQ(block->segment->stream, stream);
        const auto next = live.lower_bound(block->address);
        CHECK(next == live.end() || block->address + block->bytes <= next->first);
        CHECK(next == live.begin() ||
              std::prev(next)->first + std::prev(next)->second->bytes <= block->address);
        live.emplace(block->address, block);
      } else {
        auto victim = live.lower_bound(
            std::next(live.begin(), static_cast<long>(random() % live.size()))->first);
        put(pool, victim->second);
        live.erase(victim);
      }
      if (step % 1'000 == 0) check_segments(pool, live.size());
    }
    for (const auto& [address, block] : live) put(pool, block);
    check_segments(pool, 0);
    for (const auto& [address, segment] : pool.segments()) {
      CHECK(segment->first->is_whole_segment());
    }
    while (!pool.segments().empty()) pool.remove_segment(pool.segments().begin()->second.get());
    CHECK(pool.find(0, granularity) == nullptr);
  }
}

TEST(the_smallest_block_that_fits_is_taken) {
  BlockPool pool(0, 512);
  Addresses addresses;
  std::vector<Block*> blocks;
  std::vector<Block*> between;
  for (const size_t bytes : {4096, 1024, 8192, 2048}) {
    blocks.push_back(take(pool, addresses, bytes).block);
    between.push_back(take(pool, addresses, 512).block);
  }
  const std::byte* wanted = blocks[3]->address;
  for (Block* block : blocks) put(pool, block);
  CHECK(take(pool, addresses, 1'500).block->address == wanted);
}

TEST(free_neighbours_become_one_whatever_the_order) {
  for (const std::vector<size_t>& order :
       {std::vector<size_t>{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}}) {
    BlockPool pool(0, 512);
    Addresses addresses;
    std::vector<Block*> blocks;
    for (int i = 0; i < 3; ++i) blocks.push_back(take(pool, addresses, 3 * kMiB).block);
    Block* merged = nullptr;
    for (const size_t i : order) merged = put(pool, blocks[i]);
    CHECK_EQ(merged->bytes, BlockPool::kMediumSegment);
    CHECK(merged->is_whole_segment());
    CHECK_EQ(pool.segments().size(), 1);
  }
}

TEST(put_tells_which_free_blocks_there_are_no_more) {
  BlockPool pool(0, 512);
  Addresses addresses;
  Block* first = take(pool, addresses, 1'024).block;
  Block* second = take(pool, addresses, 2'048).block;
  take(pool, addresses, 512);
  put(pool, first);
  int absorbed = 0;
  size_t bytes = 0;
  CHECK_EQ(pool.put(second, &absorbed, &bytes)->bytes, 3'072);
  CHECK_EQ(absorbed, 1);
  CHECK_EQ(bytes, 1'024);
}

TEST(a_stream_gets_no_block_of_another) {
  BlockPool pool(0, 512);
  Addresses addresses;
  put(pool, take(pool, addresses, 1'024, 1).block);
  CHECK(pool.find(2, 1'024) == nullptr);
  CHECK(pool.find(1, 1'024) != nullptr);
  CHECK(pool.find(1, 1'024, 7) == nullptr);
}

TEST(what_a_released_pool_has_serves_everybody) {
  BlockPool pool(0, 512);
  Addresses addresses;
  Block* rest = nullptr;
  Block* first = pool.take(pool.add_segment(1, 1'024, addresses.take(kMiB), kMiB, 7), 512, &rest);
  Block* second = pool.take(pool.find(1, 2'048, 7), 2'048, &rest);
  put(pool, first);
  pool.release(7);
  CHECK_EQ(pool.find(1, 512), first);
  CHECK(pool.find(1, 512, 7) == nullptr);
  put(pool, second);
  CHECK_EQ(pool.find(1, kMiB)->bytes, kMiB);
}

TEST(large_blocks_keep_a_rest_that_serves_nothing) {
  BlockPool pool(0, 512);
  Addresses addresses;
  const Taken exact = take(pool, addresses, 39 * kMiB);  // of a segment of 40
  CHECK_EQ(exact.block->bytes, 40 * kMiB);
  CHECK(exact.rest == nullptr);
  const Taken split = take(pool, addresses, 2 * kMiB);  // of a segment of 20
  CHECK_EQ(split.block->bytes, 2 * kMiB);
  CHECK_EQ(split.rest->bytes, 18 * kMiB);
}

TEST(the_rest_of_a_small_segment_serves_small_requests) {
  BlockPool pool(0, 512);
  Addresses addresses;
  const Taken first = take(pool, addresses, 2 * kMiB / 2 - 512);
  CHECK_EQ(first.rest->bytes, kMiB + 512);
  take(pool, addresses, kMiB);
  take(pool, addresses, 1);
  CHECK_EQ(reserved(pool), 2 * kMiB);
}

TEST(a_large_request_takes_an_unused_small_segment_before_new_memory) {
  BlockPool pool(0, 512);
  Addresses addresses;
  put(pool, take(pool, addresses, 512).block);
  CHECK_EQ(take(pool, addresses, kMiB + 1).block->bytes, kMiB + 512);
  CHECK_EQ(reserved(pool), 2 * kMiB);
}

TEST(only_a_whole_segment_of_many_times_the_size_is_oversized) {
  BlockPool pool(0, 512);
  Addresses addresses;
  Block* big = take(pool, addresses, 100 * kMiB).block;
  Block* medium = take(pool, addresses, 2 * kMiB).block;
  put(pool, big);
  CHECK(pool.is_oversized(*big, pool.round(2 * kMiB)));            // 20 MiB would do
  CHECK(pool.is_oversized(*big, pool.round(25 * kMiB)) == false);  // 26 of 100
  CHECK(pool.is_oversized(*put(pool, medium), 2 * kMiB) == false);
  const Taken part = take(pool, addresses, 30 * kMiB);
  CHECK(pool.is_oversized(*part.rest, 2 * kMiB) == false);
}

TEST(sizes_that_no_address_can_have_are_refused) {
  const BlockPool pool(0, 512);
  CHECK_EQ(pool.round(~size_t{0}), 0);
  CHECK_EQ(pool.round(0), 512);
  CHECK_EQ(pool.round(513), 1'024);
}

TEST(an_address_inside_a_segment_is_found) {
  BlockPool pool(0, 512);
  Addresses addresses;
  const Block* block = take(pool, addresses, 512).block;
  CHECK(pool.segment_of(block->address + 5) == block->address);
  CHECK(pool.segment_of(block->address + BlockPool::kSmallSegment - 1) == block->address);
  CHECK(pool.segment_of(block->address + BlockPool::kSmallSegment) == nullptr);
  CHECK(pool.segment_of(block->address - 1) == nullptr);
}
