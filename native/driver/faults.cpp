#include "driver/faults.h"

#include <algorithm>

#include "driver/call.h"
#include "runtime/fault_rules.h"

namespace bringup::driver {

int32_t fault_word(int32_t device, const char* name, const std::vector<std::string>& rules,
                   void** address) {
  const Call call("the fault words of a device", device, nullptr, name);
  return state().faults.word(device, name, rules, address);
}

int32_t Faults::word(int32_t device, const char* name, const std::vector<std::string>& rules,
                     void** address) {
  *address = nullptr;
  if (device < 0 || device >= kDevices) {
    return fail(BRINGUP_INVALID, "fault words are for devices 0 to ", kDevices - 1);
  }
  Words& words = words_[static_cast<size_t>(device)];
  if (words.device_address.load(std::memory_order_acquire) == nullptr) {
    if (const int32_t status = make(device); status != BRINGUP_OK) return status;
  }
  const std::lock_guard lock(mutex_);
  std::vector<Site>& sites = words.sites;
  const auto found = std::ranges::find_if(
      sites, [&](const Site& site) { return site.name == name && site.rules == rules; });
  const auto number = static_cast<size_t>(found - sites.begin());
  if (number == kWordsOfDevice) {
    return fail(BRINGUP_ERROR, "more than ", kWordsOfDevice,
                " operators have kernels with fault()");
  }
  if (found == sites.end()) sites.push_back({name, rules});
  *address = words.device_address.load() + number;
  return BRINGUP_OK;
}

int32_t Faults::make(int32_t device) {
  const std::lock_guard alone(reading_);
  Words& words = words_[static_cast<size_t>(device)];
  if (words.device_address.load() != nullptr) return BRINGUP_OK;  // another thread was first
  constexpr size_t kBytes = kWordsOfDevice * sizeof(FaultWord);
  if (words.reader == nullptr) {
    const int32_t status = known("stream_create", real().stream_create(device, 0, &words.reader));
    if (status != BRINGUP_OK) return status;
    state().streams.add(words.reader, device);
  }
  void* address = nullptr;
  int32_t status = known("mem_alloc", real().mem_alloc(device, kBytes, &address));
  if (status != BRINGUP_OK) return status;
  state().segments.add(device, address, kBytes);
  void* view = nullptr;
  const bool is_visible =
      real().host_view != nullptr && real().host_view(device, address, &view) == BRINGUP_OK;
  words.view = is_visible ? static_cast<FaultWord*>(view) : nullptr;
  words.copies.resize(kWordsOfDevice);
  status = known("fill_async", real().fill_async(device, address, 0, kBytes, words.reader));
  if (status == BRINGUP_OK) {
    status = known("stream_synchronize", real().stream_synchronize(device, words.reader));
  }
  if (status != BRINGUP_OK) return status;  // the memory stays: work on it may be pending
  words.device_address.store(static_cast<FaultWord*>(address), std::memory_order_release);
  return BRINGUP_OK;
}

// --- who may have written

bool Faults::names_word(int32_t device, const bringup_launch_values_args& launch) const {
  if (device < 0 || device >= kDevices) return false;
  const FaultWord* const first =
      words_[static_cast<size_t>(device)].device_address.load(std::memory_order_acquire);
  if (first == nullptr) return false;
  return std::any_of(
      launch.values, launch.values + launch.nvalues, [&](const bringup_value& value) {
        const auto* const address = static_cast<const FaultWord*>(value.value.address);
        return value.kind == BRINGUP_VALUE_ADDRESS && address >= first &&
               address < first + kWordsOfDevice;
      });
}

void Faults::mark(int32_t device, bringup_stream stream) {
  const std::lock_guard lock(mutex_);
  marks_.emplace(device, stream);
  marked_.store(marks_.size(), std::memory_order_release);
}

void Faults::launched(int32_t device, bringup_stream stream,
                      const bringup_launch_values_args& launch) {
  if (names_word(device, launch)) mark(device, stream);
}

void Faults::graph_launched(bringup_graph graph, int32_t device, bringup_stream stream) {
  {
    const std::lock_guard lock(mutex_);
    if (!graphs_.contains(graph)) return;
  }
  mark(device, stream);
}

void Faults::added(bringup_graph graph, int32_t device, const bringup_launch_values_args& launch) {
  if (!names_word(device, launch)) return;
  const std::lock_guard lock(mutex_);
  graphs_.insert(graph);
}

void Faults::captured(bringup_graph graph, int32_t device, bringup_stream stream) {
  const std::lock_guard lock(mutex_);
  if (marks_.contains({device, stream})) graphs_.insert(graph);
}

void Faults::destroyed(bringup_graph graph) {
  const std::lock_guard lock(mutex_);
  graphs_.erase(graph);
  std::erase_if(wholes_, [graph](const auto& entry) { return entry.second == graph; });
}

void Faults::made_for(bringup_graph part, bringup_graph graph) {
  const bringup_graph whole = whole_of(graph);
  const std::lock_guard lock(mutex_);
  wholes_[part] = whole;
}

bringup_graph Faults::whole_of(bringup_graph graph) {
  const std::lock_guard lock(mutex_);
  const auto found = wholes_.find(graph);
  return found == wholes_.end() ? graph : found->second;
}

// --- looking

// What a stream computes may depend on what another one was given, so a wait for any looks at all
// words of its device; it ends the marks of what it waits for alone.
Faults::Look Faults::begin(int32_t device, bringup_stream stream, bool whole) {
  Look look;
  const std::lock_guard lock(mutex_);
  for (const Mark& mark : marks_) {
    if (device >= 0 && mark.first != device) continue;
    if (look.devices.empty() || look.devices.back() != mark.first) {
      look.devices.push_back(mark.first);
    }
    const bool ends = device >= 0 && (whole || mark.second == stream);
    if (ends) look.taken.push_back(mark);
  }
  for (const Mark& mark : look.taken) marks_.erase(mark);
  marked_.store(marks_.size(), std::memory_order_release);
  return look;
}

int32_t Faults::end(const Look& look, int32_t status) {
  for (size_t i = 0; status == BRINGUP_OK && i < look.devices.size(); ++i) {
    status = read(look.devices[i]);
  }
  if (status != BRINGUP_OK) {  // the next wait looks again
    for (const auto& [device, stream] : look.taken) mark(device, stream);
  }
  return status;
}

int32_t Faults::copy_words(int32_t device, size_t count) {
  Words& words = words_[static_cast<size_t>(device)];
  FaultWord* const first = words.device_address.load();
  if (words.view != nullptr) {
    for (size_t i = 0; i < count; ++i) {
      FaultWord& word = words.view[i];
      words.copies[i].number = std::atomic_ref(word.number).load(std::memory_order_acquire);
      words.copies[i].claimed = std::atomic_ref(word.claimed).load(std::memory_order_relaxed);
      words.copies[i].value = std::atomic_ref(word.value).load(std::memory_order_relaxed);
    }
    return BRINGUP_OK;
  }
  const int32_t status = give_work("copy_async", device, words.reader, [&] {
    return real().copy_async(BRINGUP_DEVICE_TO_HOST, 0, words.copies.data(), device, first,
                             count * sizeof(FaultWord), words.reader);
  });
  if (status != BRINGUP_OK) return status;
  return known("stream_synchronize", real().stream_synchronize(device, words.reader));
}

int32_t Faults::clear(int32_t device, size_t first, size_t count) {
  Words& words = words_[static_cast<size_t>(device)];
  FaultWord* const address = words.device_address.load() + first;
  const int32_t status = give_work("fill_async", device, words.reader, [&] {
    return real().fill_async(device, address, 0, count * sizeof(FaultWord), words.reader);
  });
  if (status != BRINGUP_OK) return status;
  return known("stream_synchronize", real().stream_synchronize(device, words.reader));
}

int32_t Faults::read(int32_t device) {
  const std::lock_guard alone(reading_);
  const Words& words = words_[static_cast<size_t>(device)];
  std::vector<Site> sites;
  {
    const std::lock_guard lock(mutex_);
    sites = words.sites;
  }
  int32_t status = copy_words(device, sites.size());
  if (status != BRINGUP_OK) return status;
  std::string text;
  for (size_t i = 0; i < sites.size(); ++i) {
    const FaultWord& word = words.copies[i];
    if (word.number == 0) continue;
    const int64_t* const value = word.claimed == 0 ? nullptr : &word.value;
    text += (text.empty() ? "operator '" : "; operator '") + sites[i].name + "' failed on device " +
            std::to_string(device) + ": " +
            runtime::broken_rule(sites[i].rules, word.number, value);
    // No other word: kernels in other streams may be writing theirs.
    if (const int32_t cleared = clear(device, i, 1); cleared != BRINGUP_OK) status = cleared;
  }
  if (text.empty() || status != BRINGUP_OK) return status;
  return fail(BRINGUP_KERNEL_FAILED, text);
}

int32_t Faults::reset(int32_t device) {
  if (device < 0 || device >= kDevices) return BRINGUP_OK;
  const Words& words = words_[static_cast<size_t>(device)];
  if (words.device_address.load() == nullptr) return BRINGUP_OK;
  const std::lock_guard alone(reading_);
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(marks_, [&](const Mark& mark) { return mark.first == device; });
    marked_.store(marks_.size(), std::memory_order_release);
  }
  return clear(device, 0, kWordsOfDevice);
}

}  // namespace bringup::driver
