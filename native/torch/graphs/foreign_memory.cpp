#include "torch/graphs/foreign_memory.h"

#include <ATen/MapAllocator.h>
#include <c10/core/Allocator.h>

#include <algorithm>

namespace bringup::torch_ext::graphs {
namespace {

// Of at::from_blob, which all bindings to others' memory end in; or a mapped file.
bool is_foreign(const c10::Storage& storage) {
  static const c10::DeleterFnPtr kFromBlob = c10::InefficientStdFunctionContext::makeDataPtr(
                                                 nullptr, [](void*) {}, c10::kCPU)
                                                 .get_deleter();
  // Without torch's check: what a replay of another graph has overwritten does not count.
  const at::DataPtr& data = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return data.get_deleter() == kFromBlob || at::MapAllocator::fromDataPtr(data) != nullptr;
}

}  // namespace

void ForeignMemory::know(const c10::Storage& storage) {
  if (!is_foreign(storage)) return;
  const auto* begin = static_cast<const char*>(storage.data());
  known_.emplace_back(begin, begin + storage.nbytes());
}

void ForeignMemory::know_buffer(PyObject* object) {
  Py_buffer view;
  if (PyObject_CheckBuffer(object) == 0) return;
  if (PyObject_GetBuffer(object, &view, PyBUF_STRIDED_RO) != 0) return PyErr_Clear();
  const auto* first = static_cast<const char*>(view.buf);
  const auto* last = first + view.len;
  if (view.strides !=
      nullptr) {  // ctypes gives none, whatever it is asked for: its memory is dense
    last = first + view.itemsize;
    for (int d = 0; d < view.ndim; ++d) {
      const Py_ssize_t reach = (view.shape[d] - 1) * view.strides[d];
      (reach < 0 ? first : last) += reach;
    }
  }
  if (view.len > 0) known_.emplace_back(first, last);
  PyBuffer_Release(&view);
}

bool ForeignMemory::is_unknown(const c10::Storage& storage) const {
  if (!is_foreign(storage)) return false;
  const auto* begin = static_cast<const char*>(storage.data());
  const auto* end = begin + storage.nbytes();
  return std::ranges::none_of(
      known_, [&](const auto& known) { return known.first < end && begin < known.second; });
}

}  // namespace bringup::torch_ext::graphs
