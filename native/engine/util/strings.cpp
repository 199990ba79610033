#include "engine/util/strings.h"

#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "engine/util/forever.h"

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

// Ids by the hash of their text: open addressing, at most half full, nothing is ever taken out.
class Index {
 public:
  template <class TextOf>
  StringId find(uint32_t hash, std::string_view text, TextOf&& text_of) const {
    if (slots_.empty()) return kNoString;
    for (size_t i = hash & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].id == kNoString) return kNoString;
      if (slots_[i].hash == hash && text_of(slots_[i].id) == text) return slots_[i].id;
    }
  }

  void add(uint32_t hash, StringId id) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    put({hash, id});
    ++size_;
  }

 private:
  struct Slot {
    uint32_t hash = 0;
    StringId id = kNoString;
  };

  void put(Slot slot) {
    size_t i = slot.hash & (slots_.size() - 1);
    while (slots_[i].id != kNoString) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = slot;
  }

  void grow() {
    const std::vector<Slot> former =
        std::exchange(slots_, std::vector<Slot>(slots_.empty() ? 4096 : 2 * slots_.size()));
    for (const Slot& slot : former) {
      if (slot.id != kNoString) put(slot);
    }
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

uint32_t hash_of(std::string_view text) {
  const uint64_t hash = std::hash<std::string_view>()(text);
  return static_cast<uint32_t>(hash ^ (hash >> 32));
}

struct Table {
  std::shared_mutex mutex;
  Index index;
  std::array<std::atomic<std::string_view*>, kChunks> chunks{};
  std::vector<std::unique_ptr<char[]>> blocks;
  size_t free = 0;
  StringId next = 0;

  Table() { add(hash_of(""), ""); }

  std::string_view text(StringId id) const {
    const Place place = place_of(id);
    return chunks[place.chunk].load(std::memory_order_acquire)[place.offset];
  }

  StringId find(uint32_t hash, std::string_view wanted) const {
    return index.find(hash, wanted, [this](StringId id) { return text(id); });
  }

  StringId add(uint32_t hash, std::string_view text) {
    const Place place = place_of(next);
    if (place.chunk >= kChunks) throw std::length_error("too many strings");
    if (chunks[place.chunk].load(std::memory_order_relaxed) == nullptr) {
      chunks[place.chunk].store(new std::string_view[size_t{kFirstChunk} << place.chunk],
                                std::memory_order_release);
    }
    const std::string_view kept = keep(text);
    chunks[place.chunk].load(std::memory_order_relaxed)[place.offset] = kept;
    index.add(hash, next);
    return next++;
  }

  std::string_view keep(std::string_view text) {
    const size_t needed = text.size() + 1;  // with a NUL, for the C API
    if (needed > free) {
      const size_t size = needed > kBlock ? needed : kBlock;
      blocks.push_back(std::make_unique_for_overwrite<char[]>(size));
      free = size;
      end = blocks.back().get() + size;
    }
    char* start = end - free;
    if (!text.empty()) std::memcpy(start, text.data(), text.size());
    start[text.size()] = '\0';
    free -= needed;
    return {start, text.size()};
  }

  char* end = nullptr;
};

Table& table() { return forever<Table>(); }

}  // namespace

StringId Strings::intern(std::string_view text) {
  Table& all = table();
  const uint32_t hash = hash_of(text);
  {
    const std::shared_lock lock(all.mutex);
    const StringId found = all.find(hash, text);
    if (found != kNoString) return found;
  }
  const std::unique_lock lock(all.mutex);
  const StringId found = all.find(hash, text);
  return found != kNoString ? found : all.add(hash, text);
}

std::optional<StringId> Strings::find(std::string_view text) {
  Table& all = table();
  const std::shared_lock lock(all.mutex);
  const StringId found = all.find(hash_of(text), text);
  return found == kNoString ? std::nullopt : std::optional(found);
}

std::string_view Strings::text(StringId id) noexcept {
  return id == kNoString ? std::string_view("") : table().text(id);
}

}  // namespace bringup::engine
