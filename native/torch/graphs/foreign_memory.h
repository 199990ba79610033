// Memory that torch did not allocate: an array of NumPy, a buffer, a mapped file. What of it was
// there before a capture, so that a write of it lasts as it does in eager code.
#pragma once

#include <Python.h>
#include <c10/core/Storage.h>

#include <utility>
#include <vector>

namespace bringup::torch_ext::graphs {

class ForeignMemory {
 public:
  // What has this memory was there before the capture. An object without a buffer is none.
  void know(const c10::Storage& storage);
  void know_buffer(PyObject* object);

  // Whether torch did not allocate it, and nothing known has it.
  bool is_unknown(const c10::Storage& storage) const;

 private:
  std::vector<std::pair<const char*, const char*>> known_;
};

}  // namespace bringup::torch_ext::graphs
