#include "engine/strings.h"

#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <unordered_map>
#include <vector>

namespace bringup::engine {
namespace {

constexpr uint32_t kFirstChunk = 1024;
constexpr int kChunks = 22;  // each twice as long as the one before: four thousand million strings
constexpr size_t kBlock = size_t{1} << 16;

struct Place {
  uint32_t chunk;
  uint32_t offset;
};

Place place_of(StringId id) {
  const uint32_t chunk = std::bit_width(id / kFirstChunk + 1) - 1;
  return {chunk, id - kFirstChunk * ((1u << chunk) - 1)};
}

struct Table {
  std::shared_mutex mutex;
  std::unordered_map<std::string_view, StringId> ids;
  std::array<std::atomic<std::string_view*>, kChunks> chunks{};
  std::vector<std::unique_ptr<char[]>> blocks;
  size_t free = 0;
  StringId next = 0;

  Table() { add(""); }

  StringId add(std::string_view text) {
    const Place place = place_of(next);
    if (place.chunk >= kChunks) throw std::length_error("too many strings");
    if (chunks[place.chunk].load(std::memory_order_relaxed) == nullptr) {
      chunks[place.chunk].store(new std::string_view[size_t{kFirstChunk} << place.chunk],
                                std::memory_order_release);
    }
    const std::string_view kept = keep(text);
    ids.emplace(kept, next);
    chunks[place.chunk].load(std::memory_order_relaxed)[place.offset] = kept;
    return next++;
  }

  std::string_view keep(std::string_view text) {
    if (text.empty()) return {};
    if (text.size() > free) {
      const size_t size = text.size() > kBlock ? text.size() : kBlock;
      blocks.push_back(std::make_unique_for_overwrite<char[]>(size));
      free = size;
      end = blocks.back().get() + size;
    }
    char* start = end - free;
    std::memcpy(start, text.data(), text.size());
    free -= text.size();
    return {start, text.size()};
  }

  char* end = nullptr;
};

// Never destroyed: other objects that are not may hold ids.
Table& table() {
  static auto* table = new Table;
  return *table;
}

}  // namespace

StringId Strings::intern(std::string_view text) {
  Table& all = table();
  {
    const std::shared_lock lock(all.mutex);
    const auto found = all.ids.find(text);
    if (found != all.ids.end()) return found->second;
  }
  const std::unique_lock lock(all.mutex);
  const auto found = all.ids.find(text);
  return found != all.ids.end() ? found->second : all.add(text);
}

std::optional<StringId> Strings::find(std::string_view text) {
  Table& all = table();
  const std::shared_lock lock(all.mutex);
  const auto found = all.ids.find(text);
  if (found == all.ids.end()) return std::nullopt;
  return found->second;
}

std::string_view Strings::text(StringId id) noexcept {
  if (id == kNoString) return {};
  const Place place = place_of(id);
  return table().chunks[place.chunk].load(std::memory_order_acquire)[place.offset];
}

}  // namespace bringup::engine
