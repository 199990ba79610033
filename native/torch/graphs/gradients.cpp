#include "torch/graphs/gradients.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <unordered_map>

#include "torch/graphs/outside_capture.h"
#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {
namespace {

const torch::autograd::AutogradMeta* meta_of(const c10::TensorImpl* parameter) {
  return static_cast<const torch::autograd::AutogradMeta*>(parameter->autograd_meta());
}

bool same_kind(const at::Tensor& left, const at::Tensor& right) {
  return right.has_storage() && left.sizes() == right.sizes() && left.device() == right.device() &&
         left.scalar_type() == right.scalar_type();
}

// Copies that autograd's version counters see and nothing else does.
struct Unseen {
  c10::impl::ExcludeDispatchKeyGuard no_modes{kUnseenKeys};
  c10::AutoGradMode no_gradients{false};
};

}  // namespace

void Gradients::add(const at::Tensor& parameter, std::string name, at::Tensor before,
                    at::Tensor after, Former former, bool writes, bool needs_flag) {
  if (former != Former::kNeeds && former != Former::kAddsTo) before.reset();
  const at::Tensor& placed = before.defined() ? before : after;
  std::optional<Placement> placement;
  if (placed.defined()) placement.emplace(placed);
  rows_.push_back({c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr()),
                   std::move(name), std::move(before), std::move(after), std::move(placement),
                   former, writes, needs_flag, parameter.requires_grad()});
  steady_.push_back(steady_of(rows_.back()));
}

Gradients::Steady Gradients::steady_of(const Row& row) {
  const bool stays = !row.before.defined() || row.before.is_same(row.after);
  return {row.parameter._unsafe_get_target(),
          stays ? row.after.unsafeGetTensorImpl() : nullptr,
          row.former == Former::kIgnores,
          row.needs_flag,
          row.requires_grad,
          !row.before.defined() && row.placement.has_value()};
}

// Without a call for each question. Of a parameter that is gone it says no.
bool Gradients::Steady::holds() const noexcept {
  const auto* meta = meta_of(parameter);
  if (meta == nullptr || (needs_flag && meta->requires_grad_ != requires_grad)) return false;
  return ignores_gradient || meta->grad_.unsafeGetTensorImpl() == gradient;
}

void Gradients::Steady::prefetch() const noexcept {
  const auto* meta = meta_of(parameter);
  if (meta == nullptr) return;
  __builtin_prefetch(&meta->grad_);
  __builtin_prefetch(&meta->requires_grad_);
}

std::optional<std::string> Gradients::change(const Known& known, Moved& moved) {
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (i + Placement::kAhead < rows_.size()) steady_[i + Placement::kAhead].prefetch();
    Row& row = rows_[i];
    const bool elsewhere =
        steady_[i].compares_memory && !row.placement->holds(*row.after.unsafeGetTensorImpl());
    if (C10_LIKELY(steady_[i].holds() && !elsewhere)) continue;
    if (row.parameter.expired()) continue;
    const c10::TensorImpl& parameter = *row.parameter._unsafe_get_target();
    if (row.needs_flag && parameter.requires_grad() != row.requires_grad) {
      return row.name + (row.requires_grad ? " requires no gradient now, and did"
                                           : " requires a gradient now, and did not");
    }
    if (row.former == Former::kIgnores) continue;
    const at::Tensor& now = parameter.grad();
    const std::string how = difference(row, now, known);
    steady_[i] = steady_of(row);
    if (!how.empty()) return "the gradient of " + row.name + " " + how;
    if (!now.is_same(row.after) || (row.before.defined() && !now.is_same(row.before))) {
      moved.emplace_back(i, now);
    }
  }
  return overlap(moved);
}

// What the graph cannot do with; empty when it can.
std::string Gradients::difference(Row& row, const at::Tensor& now, const Known& known) {
  if (row.before.defined()) {
    if (now.is_same(row.before)) return {};  // its memory is among what the graph reads
    if (!now.defined()) {
      const bool adds = row.former == Former::kAddsTo;
      return adds ? "" : "is None now, and the graph reads it before any backward makes one";
    }
    if (!same_kind(row.before, now)) return "is of another kind now (" + describe(now) + ")";
    if (row.placement->difference(*now.unsafeGetTensorImpl()).empty()) {
      const bool stays = row.after.is_same(row.before);
      row.before = now;  // another object over the same memory
      if (stays) row.after = now;
      return {};
    }
    return known(now) ? "lies in memory that the graph itself works in" : "";
  }
  if (row.after.defined()) {
    const auto moved = row.placement->difference(*row.after.unsafeGetTensorImpl());
    if (!moved.empty()) return std::string(moved) + " (.data was set)";
  }
  const bool fits = row.former == Former::kDrops || !now.defined() || now.is_same(row.after);
  return fits ? ""
              : "was None when the graph was captured, and is a tensor now: set it to None "
                "(zero_grad()), or capture with a gradient";
}

// Two gradients in one place, of which the graph would write one back over the other.
std::optional<std::string> Gradients::overlap(const Moved& moved) const {
  std::vector<std::pair<const at::Tensor*, size_t>> written;
  for (const auto& [i, now] : moved) {
    if (rows_[i].before.defined() && rows_[i].writes && now.defined() && now.numel() > 0) {
      written.emplace_back(&now, i);
    }
  }
  const auto begin = [](const auto& entry) {
    return static_cast<const char*>(entry.first->const_data_ptr());
  };
  std::ranges::sort(written, {}, begin);
  for (size_t i = 1; i < written.size(); ++i) {
    const at::Tensor& former = *written[i - 1].first;
    int64_t last = 0;
    for (int64_t d = 0; d < former.dim(); ++d) last += (former.size(d) - 1) * former.stride(d);
    if (begin(written[i - 1]) + (last + 1) * former.element_size() <= begin(written[i])) continue;
    return "the gradient of " + rows_[written[i].second].name + " shares memory with that of " +
           rows_[written[i - 1].second].name;
  }
  return std::nullopt;
}

void Gradients::bring(const Moved& moved) const {
  if (moved.empty()) return;
  const Unseen unseen;
  for (const auto& [i, now] : moved) {
    const at::Tensor& place = rows_[i].before;
    if (!place.defined() || now.is_same(place)) continue;
    if (now.defined()) {
      place.copy_(now);
    } else {
      place.fill_(-0.0);  // to which every number is added without a change, -0.0 too
    }
  }
}

void Gradients::leave(const Moved& moved) const {
  if (moved.empty()) return;
  const Unseen unseen;
  for (const auto& [i, now] : moved) {
    const Row& row = rows_[i];
    const auto parameter = row.parameter.lock();
    if (!parameter) continue;
    const bool copied = row.before.defined() && now.defined() && !now.is_same(row.before);
    if (copied && row.writes) now.copy_(row.before);
    const bool stays = copied && row.after.is_same(row.before);
    if (!stays) parameter->mutable_grad() = row.after;
  }
}

std::vector<std::pair<std::optional<size_t>, bool>> uses_of(
    const std::vector<at::Tensor>& tensors, const std::vector<std::unique_ptr<Node>>& nodes) {
  std::unordered_map<const void*, std::pair<std::optional<size_t>, bool>> uses;
  for (const at::Tensor& tensor : tensors) uses.try_emplace(address_of(tensor.storage()));
  for (size_t i = 0; i < nodes.size() && !uses.empty(); ++i) {
    const std::string& op = nodes[i]->op();
    const bool zeroes = op == "aten::zero_" || op == "aten::_foreach_zero_";
    nodes[i]->visit_accesses([&](const at::Tensor& accessed, bool writes) {
      const auto use = uses.find(address_of(accessed.storage()));
      if (use == uses.end()) return;
      auto& [first, written] = use->second;
      if (!zeroes && !first) first = i;
      written |= writes;
    });
  }
  std::vector<std::pair<std::optional<size_t>, bool>> found;
  for (const at::Tensor& tensor : tensors) found.push_back(uses[address_of(tensor.storage())]);
  return found;
}

}  // namespace bringup::torch_ext::graphs
