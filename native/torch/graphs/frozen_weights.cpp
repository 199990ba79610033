#include "torch/graphs/frozen_weights.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "torch/graphs/outside_capture.h"

namespace bringup::torch_ext::graphs {
namespace {

struct Element {
  uint64_t low = 0;
  uint64_t high = 0;
};

Element read(const uint8_t* address, size_t size) {
  Element element;
  if (size == 4) {  // by far the most common: no call of memcpy
    std::memcpy(&element.low, address, 4);
    return element;
  }
  std::memcpy(&element.low, address, std::min<size_t>(size, 8));
  if (size > 8) std::memcpy(&element.high, address + 8, std::min<size_t>(size - 8, 8));
  return element;
}

// Where element `index`, counted in the order of the dimensions, lies behind the first.
int64_t offset_of(const at::Tensor& tensor, int64_t index) {
  int64_t offset = 0;
  for (int64_t d = tensor.dim() - 1; d >= 0; --d) {
    offset += index % tensor.size(d) * tensor.stride(d);
    index /= tensor.size(d);
  }
  return offset;
}

std::optional<uint32_t> version_of(const c10::TensorImpl& tensor) {
  if (!tensor.version_counter().enabled()) return std::nullopt;
  return tensor.version_counter().current_version();
}

// Four lanes, because one chain of multiplications would be slower than memory.
uint64_t hash_bytes(const uint8_t* data, size_t size) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
  uint64_t lanes[4] = {size, kOdd, ~size, 1};
  const auto mix = [&](uint64_t& lane, uint64_t word) {
    lane = std::rotl((lane ^ word) * kOdd, 29);
  };
  for (; size >= 32; size -= 32, data += 32) {
    for (int i = 0; i < 4; ++i) mix(lanes[i], read(data + 8 * i, 8).low);
  }
  for (; size > 0;) {
    const size_t part = std::min<size_t>(size, 8);
    mix(lanes[0], read(data, part).low);
    data += part;
    size -= part;
  }
  uint64_t hash = 0;
  for (const uint64_t lane : lanes) mix(hash, lane);
  return hash ^ (hash >> 32);
}

}  // namespace

uint64_t content_hash(const at::Tensor& tensor) {
  const OutsideCapture outside;
  const at::Tensor host = tensor.resolve_conj().resolve_neg().cpu().contiguous();
  return hash_bytes(static_cast<const uint8_t*>(host.const_data_ptr()), host.nbytes());
}

Fingerprint::Fingerprint(const at::Tensor& tensor)
    : version_(version_of(*tensor.unsafeGetTensorImpl())), hash_(content_hash(tensor)) {}

bool Fingerprint::was_counted(const c10::TensorImpl& tensor) const noexcept {
  return version_ && tensor.version_counter().current_version() != *version_;
}

void Fingerprint::accept(const at::Tensor& tensor) {
  version_ = version_of(*tensor.unsafeGetTensorImpl());
}

void FrozenWeights::add(std::string name, const at::Tensor& weight, size_t argument) {
  add_samples(weight);
  weights_.push_back({std::move(name), argument, weight.unsafeGetTensorImpl(), weight.tensor_data(),
                      Placement(weight), Fingerprint(weight)});
}

void FrozenWeights::add_samples(const at::Tensor& weight) {
  const auto* memory = static_cast<const uint8_t*>(host_address(weight.storage()));
  if (memory == nullptr || weight.numel() == 0) return;
  const auto size = weight.element_size();
  const int64_t count = std::min<int64_t>(kSampleGroups, weight.numel());
  const int64_t part = weight.numel() / count;
  for (size_t group = 0; group < kSampleGroups; ++group) {
    // One in each of as many equal parts, not always at the same place within it.
    const auto i = static_cast<int64_t>(group) % count;
    const int64_t place = weight.storage_offset() + offset_of(weight, i * part + (i * 7919) % part);
    const uint8_t* address = memory + static_cast<size_t>(place) * size;
    const Element element = read(address, size);
    samples_[group].push_back({address, element.low, element.high, static_cast<uint32_t>(size),
                               static_cast<uint32_t>(weights_.size())});
  }
}

std::string_view FrozenWeights::difference(Weight& weight, const at::Tensor& now) {
  if (!now.defined() || !now.has_storage()) return "is no tensor now";
  const auto moved = weight.placement.difference(*now.unsafeGetTensorImpl());
  if (now.unsafeGetTensorImpl() != weight.tensor) {
    if (!moved.empty() || !weight.content.same_content(now)) return "is another tensor now";
    // Another tensor over the same memory: it is the one to watch.
    weight.tensor = now.unsafeGetTensorImpl();
    weight.memory = now.tensor_data();
    weight.content.accept(now);
    return {};
  }
  if (!moved.empty()) return moved;
  return weight.content.was_counted(*now.unsafeGetTensorImpl()) ? "was written" : "";
}

std::optional<std::string> FrozenWeights::change(const Given* given) {
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (i + Placement::kAhead < weights_.size()) {
      const Weight& later = weights_[i + Placement::kAhead];
      later.placement.prefetch(given != nullptr ? later.tensor
                                                : later.memory.unsafeGetTensorImpl());
    }
    Weight& weight = weights_[i];
    if (given != nullptr) {
      const auto how = difference(weight, (*given)(weight.argument));
      if (!how.empty()) return changed_message(weight, how);
    } else if (weight.content.was_counted(*weight.memory.unsafeGetTensorImpl())) {
      return changed_message(weight, "was written");
    }
  }
  // The memory is where it was: the addresses hold.
  for (const Sample& sample : samples_[next_group_++ % kSampleGroups]) {
    const Element now = read(sample.address, sample.size);
    if (now.low != sample.low || now.high != sample.high) {
      return changed_message(weights_[sample.weight], "was written");
    }
  }
  return std::nullopt;
}

std::optional<std::string> FrozenWeights::refresh() {
  for (Weight& weight : weights_) {
    if (!weight.content.same_content(weight.memory)) return changed_message(weight, "was written");
  }
  for (Weight& weight : weights_) weight.content.accept(weight.memory);
  return std::nullopt;
}

std::string FrozenWeights::changed_message(const Weight& weight, std::string_view how) {
  return "the weight '" + weight.name + "' was frozen into the compiled graph and " +
         std::string(how);
}

}  // namespace bringup::torch_ext::graphs
