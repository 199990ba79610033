#include "torch/graphs/frozen.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "torch/graphs/outside_capture.h"

namespace bringup::torch_ext::graphs {
namespace {

constexpr int64_t kSamples = 16;

struct Element {
  uint64_t low = 0;
  uint64_t high = 0;
};

Element read(const uint8_t* address, size_t size) {
  Element element;
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
    : element_size_(tensor.element_size()),
      version_(version_of(*tensor.unsafeGetTensorImpl())),
      hash_(content_hash(tensor)) {
  const auto* memory = static_cast<const uint8_t*>(host_address(tensor.storage()));
  if (memory == nullptr) return;
  const int64_t count = std::min<int64_t>(kSamples, tensor.numel());
  for (int64_t i = 0; i < count; ++i) {
    // One in each of as many equal parts, not always at the same place within it.
    const int64_t part = tensor.numel() / count;
    const int64_t index = i * part + (i * 7919) % part;
    const auto place = tensor.storage_offset() + offset_of(tensor, index);
    const uint8_t* address = memory + static_cast<size_t>(place) * element_size_;
    const Element element = read(address, element_size_);
    samples_.push_back({address, element.low, element.high});
  }
}

bool Fingerprint::changed(const c10::TensorImpl& tensor, size_t turn) const noexcept {
  if (version_ && tensor.version_counter().current_version() != *version_) return true;
  if (samples_.empty()) return false;
  const Sample& sample = samples_[turn % samples_.size()];
  const Element now = read(sample.address, element_size_);
  return now.low != sample.low || now.high != sample.high;
}

void Fingerprint::accept(const at::Tensor& tensor) {
  version_ = version_of(*tensor.unsafeGetTensorImpl());
}

void FrozenWeights::add(std::string name, const at::Tensor& weight, size_t argument) {
  weights_.push_back({std::move(name), argument, weight, Placement(weight), Fingerprint(weight)});
}

std::string_view FrozenWeights::difference(Weight& weight, const at::Tensor& now) {
  if (!now.defined() || !now.has_storage()) return "is no tensor now";
  const auto moved = weight.placement.difference(*now.unsafeGetTensorImpl());
  if (!now.is_same(weight.tensor)) {
    if (!moved.empty() || !weight.content.same_content(now)) return "is another tensor now";
    // Another tensor over the same memory: it is the one to watch.
    weight.tensor = now;
    weight.content.accept(now);
    return {};
  }
  if (!moved.empty()) return moved;
  return weight.content.changed(*now.unsafeGetTensorImpl(), turn_) ? "was written" : "";
}

std::optional<std::string> FrozenWeights::change(const Given* given) {
  ++turn_;
  for (Weight& weight : weights_) {
    const auto how =
        difference(weight, given != nullptr ? (*given)(weight.argument) : weight.tensor);
    if (!how.empty()) {
      return "the weight '" + weight.name + "' was frozen into the compiled graph and " +
             std::string(how);
    }
  }
  return std::nullopt;
}

std::optional<std::string> FrozenWeights::refresh() {
  for (Weight& weight : weights_) {
    auto how = weight.placement.difference(*weight.tensor.unsafeGetTensorImpl());
    if (how.empty() && !weight.content.same_content(weight.tensor)) how = "was written";
    if (!how.empty()) {
      return "the weight '" + weight.name + "' was frozen into the compiled graph and " +
             std::string(how);
    }
  }
  for (Weight& weight : weights_) weight.content.accept(weight.tensor);
  return std::nullopt;
}

}  // namespace bringup::torch_ext::graphs
