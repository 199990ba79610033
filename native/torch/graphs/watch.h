// What one captured graph takes as given, besides the content of the memory that it reads: where
// that memory is, what the modules hold that it was reached through, and weights that were frozen.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "torch/graphs/frozen_weights.h"
#include "torch/graphs/tensor_placement.h"
#include "torch/graphs/version_counters.h"

namespace bringup::torch_ext::graphs {

class Watch {
 public:
  Watch() = default;
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // A tensor from before the capture that a node of the operator `reader` reads, or a view of it
  // (""). It is not kept alive. While recording; needs no GIL.
  void add_tensor(const at::Tensor& tensor, const std::string& reader = "");
  // A tensor made in the capture over memory from before: it is no assumption.
  void ignore_tensor(const at::Tensor& tensor);
  // From now on the versions of what nodes read are kept.
  std::shared_ptr<ReadVersions> keep_versions();
  // Calls the tensor by the name that the user's code has for it.
  void name_tensor(const c10::TensorImpl* tensor, const std::string& name);
  // With the GIL: no node reads tensors over this storage any more.
  void forget(const c10::Storage& storage);
  // At the end of the capture: what it did itself to the tensors that it read, in words; none when
  // nothing. Forgets tensors that are gone.
  std::optional<std::string> seal();

  // The functions below need the GIL.

  // What a module holds under `key` of one of its dictionaries, as it is now: `name` says it.
  // Without `compares_memory` holders alone are counted.
  void add_slot(nanobind::dict dict, nanobind::object key, std::string name,
                bool compares_memory = true);
  // A list and what is in it, as it is now.
  void add_list(nanobind::list list, std::string name);
  // `attributes` has, from now on and whenever it is looked at, what the attributes of `owner` are
  // that it names: for an object without a dictionary of its own, a TorchScript module.
  void mirror(nanobind::object owner, nanobind::dict attributes);
  // Whether nodes of the graph read the memory of this tensor, or what was folded from it.
  bool reads(const at::Tensor& tensor) const;
  // Whether nodes of the graph read the memory of `former`, and `now` is elsewhere or read
  // otherwise.
  bool is_replaced(const at::Tensor& former, const at::Tensor& now) const;
  // Weights that a compiled function folded, and that was captured when it was given `given`.
  void add_frozen(std::shared_ptr<FrozenWeights> weights, const FrozenWeights::Given& given);

  // What is different from the capture, in words; none when nothing is.
  std::optional<std::string> change();
  // See FrozenWeights::refresh. Returns what cannot be taken for given.
  std::optional<std::string> refresh();

  // The garbage collector's: slots refer to what may refer to the graph.
  int traverse(visitproc visit, void* arg) const;
  void clear() noexcept;

 private:
  struct Held {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    Placement placement;
    std::string what;
  };
  // A dictionary and its slots, a stretch of slots_.
  struct Dictionary {
    nanobind::dict dict;
    uint64_t version;  // of the dictionary where its slots held what they should, or kUnknown
    size_t begin, end;
  };
  struct DictionarySlot {
    nanobind::object key;
    Py_ssize_t position;  // of the key in the dictionary, where it was last
    nanobind::object value;
    std::optional<Placement> placement;  // of a tensor
    const c10::TensorImpl* tensor;       // the same one's
    std::string name;
  };

  struct List {
    nanobind::list list;
    std::vector<nanobind::object> items;
    std::string name;
  };

  struct Mirror {
    nanobind::object owner;
    nanobind::dict attributes;
  };

  static void reread(const Mirror& mirror);
  static void prefetch(const DictionarySlot& slot);
  static PyObject* find(const Dictionary& dictionary, DictionarySlot& slot);
  std::optional<std::string> change_of(Dictionary& dictionary);
  std::string difference(DictionarySlot& slot, PyObject* now);

  void drop_slotted();

  std::unordered_set<const c10::TensorImpl*> known_;    // while recording
  std::unordered_set<const c10::TensorImpl*> slotted_;  // until drop_slotted()
  std::shared_ptr<ReadVersions> versions_;              // null when nothing asks
  std::vector<Held> tensors_;
  std::vector<Dictionary> dictionaries_;
  std::vector<DictionarySlot> slots_;
  std::vector<size_t> placed_;  // the slots that hold tensors
  std::vector<Mirror> mirrors_;
  std::vector<List> lists_;
  std::vector<std::shared_ptr<FrozenWeights>> frozen_;
  std::unordered_set<const c10::StorageImpl*> storages_;  // compared only
  std::unordered_set<const c10::StorageImpl*> frozen_storages_;
};

}  // namespace bringup::torch_ext::graphs
