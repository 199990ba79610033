// Weights whose content was folded into something: noticing that it is no longer theirs.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "torch/graphs/tensor_placement.h"

namespace bringup::torch_ext::graphs {

// A hash of the tensor's elements. Reads all of them.
uint64_t content_hash(const at::Tensor& tensor);

// The content of one tensor at one moment: its version counter and a hash.
class Fingerprint {
 public:
  explicit Fingerprint(const at::Tensor& tensor);

  // Whether a writer counted itself.
  bool was_counted(const c10::TensorImpl& tensor) const noexcept;
  // Whether any element differs. Reads all of them.
  bool same_content(const at::Tensor& tensor) const { return content_hash(tensor) == hash_; }
  // Takes the tensor's version as it is now for the one of this content.
  void accept(const at::Tensor& tensor);

 private:
  std::optional<uint32_t> version_;  // none for inference tensors
  uint64_t hash_;
};

// The frozen weights of one compiled graph. Needs no GIL; one caller at a time.
class FrozenWeights {
 public:
  // `argument`: its position among what change() is given.
  void add(std::string name, const at::Tensor& weight, size_t argument);

  // The call's argument at a position; an undefined tensor when it is none.
  using Given = std::function<const at::Tensor&(size_t argument)>;

  // Which weight changed and how, "the weight 'w' was frozen into the compiled graph and was
  // written"; none when none did. Without `given` it looks at the memory that was frozen: that a
  // tensor has other memory now is then another's to see.
  std::optional<std::string> change(const Given* given);

  // Reads every element: what has the content that was folded counts as unchanged from now on.
  // Returns what has not.
  std::optional<std::string> refresh();

  // Calls fn(argument, memory) for every weight: its position, and a tensor over its memory.
  template <class Fn>
  void for_each(Fn&& fn) const {
    for (const Weight& weight : weights_) fn(weight.argument, weight.memory);
  }

  // What was folded from the weights. Nothing but the compiled graph has it.
  void set_constants(std::vector<at::Tensor> constants) { constants_ = std::move(constants); }
  const std::vector<at::Tensor>& constants() const { return constants_; }

 private:
  struct Weight {
    std::string name;
    size_t argument;
    const c10::TensorImpl* tensor;  // compared only: torch.utils.swap_tensors allows no owner
    at::Tensor memory;              // the same memory and version counter, kept
    Placement placement;
    Fingerprint content;
  };
  // One element of a weight, as it was folded.
  struct Sample {
    const uint8_t* address;
    uint64_t low, high;
    uint32_t size;
    uint32_t weight;
  };

  std::string_view difference(Weight& weight, const at::Tensor& now);

  static constexpr size_t kSampleGroups = 16;

  void add_samples(const at::Tensor& weight);
  static std::string changed_message(const Weight& weight, std::string_view how);

  std::vector<Weight> weights_;
  std::vector<at::Tensor> constants_;
  std::array<std::vector<Sample>, kSampleGroups> samples_;  // a call looks at one group
  size_t next_group_ = 0;
};

}  // namespace bringup::torch_ext::graphs
