#include "torch/graphs/saved_content.h"

#include <algorithm>
#include <cstring>

namespace bringup::torch_ext::graphs {
namespace {

constexpr int64_t kPiece = 64;    // bytes
constexpr int64_t kWhole = 4096;  // a sample has all of so many
constexpr int64_t kPieces = 32;

char* element(const at::Tensor& tensor, int64_t number) {
  int64_t offset = 0;
  for (int64_t dim = tensor.dim(); dim-- > 0; number /= tensor.size(dim)) {
    offset += number % tensor.size(dim) * tensor.stride(dim);
  }
  return static_cast<char*>(tensor.mutable_data_ptr()) + offset * tensor.itemsize();
}

}  // namespace

SavedContent::SavedContent(c10::ArrayRef<at::Tensor> tensors, Part part) {
  for (const at::Tensor& tensor : tensors) add(tensor, part);
}

void SavedContent::add(const at::Tensor& tensor, Part part) {
  if (tensor.numel() == 0) return;
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  const bool whole = part == Part::kAll || bytes <= kWhole;
  const bool dense = tensor.is_non_overlapping_and_dense();
  if (whole && dense) return add({static_cast<char*>(tensor.mutable_data_ptr()), tensor.nbytes()});
  const int64_t count = dense ? bytes / kPiece : tensor.numel();
  const int64_t step = whole ? 1 : std::max<int64_t>(count / kPieces, 1);
  const auto add_piece = [&](int64_t number) {
    if (!dense) return add({element(tensor, number), tensor.itemsize()});
    add({static_cast<char*>(tensor.mutable_data_ptr()) + number * kPiece, kPiece});
  };
  for (int64_t i = 0; i < count; i += step) add_piece(i);
  if (whole) return;
  add_piece(count - 1);
  const int64_t rest = dense ? bytes % kPiece : 0;
  if (rest != 0) {
    add({static_cast<char*>(tensor.mutable_data_ptr()) + bytes - rest, static_cast<size_t>(rest)});
  }
}

void SavedContent::add(Span span) {
  spans_.push_back(span);
  bytes_.append(span.data, span.data + span.bytes);
}

template <class Visit>
void SavedContent::for_each(Visit&& visit) const {
  const char* saved = bytes_.data();
  for (const Span& span : spans_) {
    visit(span, saved);
    saved += span.bytes;
  }
}

bool SavedContent::is_there() const {
  bool same = true;
  for_each([&](const Span& span, const char* saved) {
    same = same && std::memcmp(span.data, saved, span.bytes) == 0;
  });
  return same;
}

void SavedContent::put_back() const {
  for_each([](const Span& span, const char* saved) { std::memcpy(span.data, saved, span.bytes); });
}

void SavedContent::spoil() const {
  for_each([](const Span& span, const char* saved) {
    std::transform(saved, saved + span.bytes, span.data,
                   [](char byte) { return static_cast<char>(~byte); });
  });
}

}  // namespace bringup::torch_ext::graphs
