// Weights whose content was folded into something: noticing that it is no longer theirs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "torch/graphs/placement.h"

namespace bringup::torch_ext::graphs {

// A hash of the tensor's elements. Reads all of them.
uint64_t content_hash(const at::Tensor& tensor);

// The content of one tensor at one moment: its version counter, a few of its elements, and a hash.
class Fingerprint {
 public:
  explicit Fingerprint(const at::Tensor& tensor);

  // Whether a writer counted itself, or the sampled element `turn` (taken in rotation) differs.
  bool changed(const c10::TensorImpl& tensor, size_t turn) const noexcept;
  // Whether any element differs. Reads all of them.
  bool same_content(const at::Tensor& tensor) const { return content_hash(tensor) == hash_; }
  // Takes the tensor's version as it is now for the one of this content.
  void accept(const at::Tensor& tensor);

 private:
  struct Sample {
    const uint8_t* address;
    uint64_t low, high;
  };

  std::vector<Sample> samples_;  // none where the host cannot read the memory
  size_t element_size_;
  std::optional<uint32_t> version_;  // none for inference tensors
  uint64_t hash_;
};

// The frozen weights of one compiled graph. Needs no GIL; one caller at a time.
class FrozenWeights {
 public:
  // `argument`: its position among what change() is given.
  void add(std::string name, const at::Tensor& weight, size_t argument);

  // What the call's argument at a position is; an undefined tensor when it is none.
  using Given = std::function<at::Tensor(size_t argument)>;

  // Which weight changed and how, "the weight 'w' was frozen into the compiled graph and was
  // written"; none when none did. Without `given` it looks at the tensors that were frozen.
  std::optional<std::string> change(const Given* given);

  // Reads every element: what has the content that was folded counts as unchanged from now on.
  // Returns what has not.
  std::optional<std::string> refresh();

  // Calls fn(storage) for the memory of every weight.
  template <class Fn>
  void for_each_storage(Fn&& fn) const {
    for (const Weight& weight : weights_) fn(weight.placement.storage());
  }

 private:
  struct Weight {
    std::string name;
    size_t argument;
    at::Tensor tensor;
    Placement placement;
    Fingerprint content;
  };

  std::string_view difference(Weight& weight, const at::Tensor& now);

  std::vector<Weight> weights_;
  size_t turn_ = 0;
};

}  // namespace bringup::torch_ext::graphs
