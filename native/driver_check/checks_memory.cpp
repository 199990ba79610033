// Allocation: addresses, overlap, use of every byte, what happens when there is no more, leaks.
#include <algorithm>
#include <deque>
#include <iterator>
#include <list>

#include "driver_check/suite.h"

namespace bringup::driver_check {
namespace {

constexpr size_t kMiB = 1 << 20;

void require_aligned(const void* address, size_t alignment) {
  expect(reinterpret_cast<uintptr_t>(address) % alignment == 0,
         concat("mem_alloc gave ", hex(address), ", which is not aligned to ", alignment, " bytes"),
         "the alignment of the properties", hex(address));
}

void addresses(Context& context) {
  const int32_t devices = context.device_count();
  for (int32_t device = 0; device < devices; ++device) {
    const size_t alignment = context.alignment(device);
    std::list<Memory> kept;
    for (const size_t bytes : {1, 63, 64, 65, 4096, 1000, 1, 65536}) {
      kept.emplace_back(context, device, bytes);
      require_aligned(kept.back().data(), alignment);
    }
    kept.erase(std::next(kept.begin(), 2), std::next(kept.begin(), 5));  // and into the holes
    // The kit's table sees what overlaps.
    for (const size_t bytes : {64, 4096, 65, 128}) kept.emplace_back(context, device, bytes);
  }
}

// Two allocations that share memory under different addresses are found here.
void every_byte(Context& context) {
  std::deque<Memory> kept;
  std::deque<Bytes> expected;
  for (size_t i = 0; i < 24; ++i) {
    const size_t bytes = 1 + (i * 977) % 9000;
    kept.emplace_back(context, 0, bytes);
    expected.push_back(pattern(bytes, i));
    kept.back().upload(expected.back());
  }
  for (size_t i = 0; i < kept.size(); ++i) {
    kept[i].expect(expected[i], concat("allocation ", i, " of ", kept.size(),
                                       " does not hold what was copied into it"));
  }
}

struct Info {
  size_t free_bytes = 0;
  size_t total = 0;
};
Info info(Context& context) {
  Info found;
  context.must<&D::mem_info>(0, &found.free_bytes, &found.total);
  return found;
}

void memory_info(Context& context) {
  const Info found = info(context);  // the kit's table sees more free memory than there is
  const uint64_t total = context.props(0).total_memory;
  expect(found.total > 0 && found.total <= total,
         concat("mem_info says that there are ", found.total, " bytes, device_props says ", total),
         "no more than total_memory", found.total);
}

void memory_in_use(Context& context) {
  const Info before = info(context);
  const size_t bytes = std::min<size_t>(before.free_bytes / 4, 256 * kMiB);
  if (bytes == 0) throw Skipped{"no memory is free"};
  const Memory memory(context, 0, bytes);
  const Info after = info(context);
  expect(after.free_bytes + bytes <= before.free_bytes + kMiB,
         concat("mem_info does not count an allocation of ", bytes, " bytes"),
         concat("at most ", before.free_bytes - bytes + kMiB, " bytes are free"), after.free_bytes);
}

void require_usable(Context& context) {
  const Memory memory(context, 0, 4096);
  const Bytes content = pattern(4096, 5);
  memory.upload(content);
  memory.expect(content, "memory after a refusal");
}

void too_much(Context& context) {
  void* address = nullptr;
  const uint64_t total = context.props(0).total_memory;
  for (const uint64_t bytes : {total + 1, uint64_t{1} << 46}) {
    if (bytes < total) continue;
    context.must_give<&D::mem_alloc>(BRINGUP_OUT_OF_MEMORY, 0, static_cast<size_t>(bytes),
                                     &address);
  }
  require_usable(context);
}

// Until it is refused. Memory that is not touched costs nothing on most systems.
std::vector<void*> take_all(Context& context, size_t chunk, size_t limit) {
  std::vector<void*> taken;
  while (true) {
    void* address = nullptr;
    const int32_t status = context.call<&D::mem_alloc>(0, chunk, &address);
    if (status == BRINGUP_OK) {
      taken.push_back(address);
      expect(taken.size() * chunk <= limit,
             concat("mem_alloc gave ", taken.size() * chunk, " bytes of a device that has ", limit,
                    " bytes"),
             "BRINGUP_OUT_OF_MEMORY", "BRINGUP_OK");
      continue;
    }
    if (status != BRINGUP_OUT_OF_MEMORY) {
      context.must_give<&D::mem_alloc>(BRINGUP_OUT_OF_MEMORY, 0, chunk, &address);
    }
    return taken;
  }
}

void used_up(Context& context) {
  const uint64_t total = context.props(0).total_memory;
  const size_t chunk = std::max<size_t>(static_cast<size_t>(total / 16), 64);
  const std::vector<void*> taken = take_all(context, chunk, total + chunk);
  expect(!taken.empty(), "mem_alloc refuses a sixteenth of total_memory", "BRINGUP_OK",
         "BRINGUP_OUT_OF_MEMORY");
  for (void* address : taken) context.must<&D::mem_free>(0, address);
  require_usable(context);
  const std::vector<void*> again = take_all(context, chunk, total + chunk);
  for (void* address : again) context.must<&D::mem_free>(0, address);
  expect(again.size() == taken.size(),
         "after mem_free of everything less memory can be had than before",
         concat(taken.size(), " allocations"), again.size());
}

void leaks(Context& context) {
  const uint64_t total = context.props(0).total_memory;
  const size_t bytes = std::max<size_t>(static_cast<size_t>(total / 40), 64);
  const auto cycles = [&](int count) {
    for (int i = 1; i <= count; ++i) {
      void* address = nullptr;
      const int32_t status = context.call<&D::mem_alloc>(0, bytes, &address);
      expect(status == BRINGUP_OK,
             concat("mem_free gives nothing back: mem_alloc of ", bytes, " bytes returned ",
                    status_name(status), " the ", i, ". time"),
             "BRINGUP_OK", status_name(status));
      context.must<&D::mem_free>(0, address);
    }
  };
  cycles(1);
  if (context.has<&D::mem_info>()) {
    const Info before = info(context);
    cycles(20);
    const Info after = info(context);
    expect(after.free_bytes + bytes / 2 >= before.free_bytes,
           concat("mem_free gives nothing back: after 20 times mem_alloc and mem_free of ", bytes,
                  " bytes ", before.free_bytes - std::min(after.free_bytes, before.free_bytes),
                  " bytes less are free"),
           concat(before.free_bytes, " bytes free"), after.free_bytes);
  }
  cycles(200);  // five times total_memory
}

}  // namespace

std::vector<Check> memory_checks() {
  return {
      {"memory.addresses", "mem_alloc",
       "Addresses are aligned as the properties say, at least to 64 bytes; an address overlaps no "
       "live one of its device.",
       addresses},
      {"memory.every_byte", "mem_alloc", "An address is the driver's until mem_free.", every_byte},
      {"memory.info", "mem_info", "No more is free than there is, nor than total_memory.",
       memory_info, "mem_info"},
      {"memory.in_use", "mem_info", "Memory that is allocated is not free.", memory_in_use,
       "mem_info"},
      {"memory.too_much", "mem_alloc",
       "What there is no memory for returns BRINGUP_OUT_OF_MEMORY; the kit empties its caches and "
       "tries once more.",
       too_much},
      {"memory.used_up", "mem_alloc",
       "total_memory is what can be had; after mem_free it can be had again.", used_up},
      {"memory.leaks", "mem_free", "mem_free gives back what mem_alloc took.", leaks},
  };
}

}  // namespace bringup::driver_check
