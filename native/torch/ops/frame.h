// A frame: one call's arguments on the stack of the calling thread, on their way from Python
// objects or dispatcher values to the kernel. Tensors are looked at (keys, sizes) before any data
// pointer is read.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstddef>
#include <forward_list>
#include <memory>
#include <vector>

#include "bringup/kernel.h"
#include "runtime/launch_block.h"
#include "torch/common/argument.h"
#include "torch/ops/record.h"

namespace bringup::torch_ext {

// What a kernel sees of a Scalar.
bringup_scalar scalar_of(const at::Scalar& number);

class CallFrame {
 public:
  // The arrays are left uninitialised: a frame is made for every call, and only filled entries are
  // read.
  explicit CallFrame(const KernelOp& op);  // NOLINT
  CallFrame& operator=(CallFrame&&) = delete;

  // --- Filling. Tensors and strings stay the caller's, the tensors of a list are shared.
  void set_none(int i) {
    args_[i] = nullptr;
    tensors_[i] = nullptr;
  }
  void set_tensor(int i, const at::Tensor& tensor) {
    args_[i] = &values_[i];
    tensors_[i] = &tensor;
  }
  void set_int(int i, int64_t value) {
    values_[i].integer = value;
    args_[i] = &values_[i];
  }
  void set_float(int i, double value) {
    values_[i].real = value;
    args_[i] = &values_[i];
  }
  void set_scalar(int i, const at::Scalar& value) {
    *set_list<bringup_scalar>(i, 1) = scalar_of(value);
  }
  void set_device(int i, c10::Device device);
  // Undefined: the default one of the device that the operator runs on.
  void set_generator(int i, const at::Generator& generator) {
    generator_ = generator;
    std::fill_n(set_list<int64_t>(i, 2), 2, 0);
  }
  // Ends at its first NUL.
  void set_string(int i, const char* text) { args_[i] = const_cast<char*>(text); }
  // Room for `size` elements, to be filled by the caller.
  template <class T>
  T* set_list(int i, int64_t size) {
    auto* data = static_cast<T*>(take(static_cast<size_t>(size) * sizeof(T)));
    values_[i].list = {data, size};
    args_[i] = &values_[i];
    return data;
  }
  // Undefined tensors, to be replaced by the caller: a Python list may lose its tensors while the
  // kernel is compiled or runs.
  at::Tensor* set_tensor_list(int i, int64_t size);
  // One of them is None.
  void set_none_of(int i, int64_t element) { elements_[i][element] = nullptr; }
  // Input number `i`, or all of them in schema order. What they borrow from has to stay.
  void load(int i, const c10::IValue& value);
  void load(c10::ArrayRef<c10::IValue> inputs);

  // --- Looking.
  const KernelOp& op() const { return op_; }
  bool is_none(int i) const { return args_[i] == nullptr; }
  const at::Tensor& tensor(int i) const { return *tensors_[i]; }
  // Of a list; null for None.
  const at::Tensor* element(int i, int64_t k) const { return elements_[i][k]; }
  int64_t integer(int i) const { return values_[i].integer; }
  double real(int i) const { return values_[i].real; }
  at::Scalar scalar(int i) const;
  const char* string(int i) const { return static_cast<const char*>(args_[i]); }
  c10::ArrayRef<int64_t> int_list(int i) const;
  int64_t list_size(int i) const { return values_[i].list.size; }
  // Calls visit(argument index, tensor) for every tensor that is there.
  template <class Visit>
  void for_each_tensor(int i, Visit visit) const {
    if (is_none(i)) return;
    if (elements_[i] == nullptr) {
      visit(i, *tensors_[i]);
      return;
    }
    for (int64_t k = 0; k < values_[i].list.size; ++k) {
      if (C10_LIKELY(elements_[i][k] != nullptr)) visit(i, *elements_[i][k]);
    }
  }
  template <class Visit>
  void for_each_tensor(Visit visit) const {
    for (const int32_t i : op_.tensor_arguments) for_each_tensor(i, visit);
  }
  // Reads dtype, device, sizes and strides of all inputs into their descriptors. Only for tensors
  // that have them: the dispatcher was asked before.
  void look();
  // Once the frame has looked, as for_each_tensor: visit(descriptor).
  template <class Visit>
  void for_each_descriptor(int i, Visit visit) const {
    if (is_none(i)) return;
    if (C10_LIKELY(elements_[i] == nullptr)) {
      visit(values_[i].tensor);
      return;
    }
    const auto* items = static_cast<const DLTensor* const*>(values_[i].list.data);
    for (int64_t k = 0; k < values_[i].list.size; ++k) {
      if (C10_LIKELY(items[k] != nullptr)) visit(*items[k]);
    }
  }
  // The device on which the operator runs.
  c10::Device device() const { return tensors_[op_.device_argument]->device(); }
  // An input as a dispatcher value.
  c10::IValue value(int i) const;

  // --- Going to the kernel.
  // Replaces inputs that the kernel does not take as they lie in memory by contiguous copies.
  // Raises ContractError for one that is written.
  void copy_refused_layouts();
  void add_output(at::Tensor output) { outputs_.push_back(std::move(output)); }
  // The tensors of all outputs, those of lists one after the other; until the kernel has run also
  // the counts, where the operator has some.
  c10::SmallVectorImpl<at::Tensor>& outputs() { return outputs_; }
  // How many of these tensors are output number `output`: those of a list, or 1.
  int64_t output_size(int output) const;
  // Takes what the kernel draws from its generator, where it has one.
  void draw();
  // Reads data pointers into the descriptors, after looking. Nothing may be changed afterwards.
  void describe();
  void** args() { return args_; }
  void* const* args() const { return args_; }
  int32_t size() const { return num_inputs_ + num_outputs(); }
  // The described arguments as a block of their own.
  runtime::LaunchBlock pack();

 private:
  union Value {
    DLTensor tensor;
    int64_t integer;
    double real;
    bringup_list list;
    struct {
      DLDevice given;  // what the kernel sees
      c10::DeviceType type;
      c10::DeviceIndex index;
    } device;
  };

  void load_list(int i, const c10::IValue& value);
  void load_tensor(int i, const at::Tensor& tensor);
  void load_string(int i, const std::string& text);
  // Outputs as the kernel counts them: a list is one, and so are the counts.
  int32_t num_outputs() const;
  // `i` is an input, or past them an output.
  void read_data(const at::Tensor& tensor, bool written, int i, DLTensor& descriptor);
  void describe_outputs();
  // Points argument number `i` at a list of `size` looked-at tensors.
  template <class At>
  DLTensor** look_at_list(int i, int64_t size, At tensor_at);
  void pack_argument(ArgumentKind kind, int i, runtime::LaunchBlock& block);
  void* take(size_t bytes);

  const KernelOp& op_;
  const int32_t num_inputs_;
  void* args_[kMaxArguments];
  const at::Tensor* tensors_[kMaxArguments];
  const at::Tensor**
      elements_[kMaxArguments];  // of a Tensor[]; null for every other argument that is given
  Value values_[kMaxArguments];
  c10::SmallVector<at::Tensor, 4> outputs_;
  at::Generator generator_;
  std::forward_list<at::Tensor> held_;  // contiguous copies
  std::forward_list<std::vector<at::Tensor>> lists_;
  size_t used_ = 0;
  alignas(16) std::byte memory_[512];  // of lists; longer ones go to overflow_
  std::forward_list<std::unique_ptr<std::byte[]>> overflow_;
};

// "torch.float32 is not a dtype that kernels know" is left to the caller: lanes is 0 for such a
// dtype.
DLDataType dlpack_dtype(at::ScalarType dtype);
DLDevice dlpack_device(c10::Device device);

}  // namespace bringup::torch_ext
