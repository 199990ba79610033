// What an epilogue is made of beside the sums: tensors that are broadcast to the result, and
// functions of vectors.
#pragma once

#include "../activations.h"
#include "elements.h"

namespace bringup_kernels {

template <class Vector>
inline Vector none(Vector v) {
  return v;
}

template <class Vector>
inline Vector quotient(Vector a, Vector b) {
  return a / b;
}

// A tensor of up to three dimensions, the last ones of [items, rows, columns]; one that is None has
// the type void.
template <class Element>
struct Broadcast {
  const Element* data;
  int64_t stride[3];  // 0 along what it is the same for

  // False for sizes that do not fit. `along_rows`: its one dimension is that of rows.
  bool read(const void* arg, bool along_rows, int64_t items, int64_t rows, int64_t columns) {
    const DLTensor& t = bringup::tensor(arg);
    const int64_t sizes[3] = {items, rows, columns};
    const int32_t skipped = 3 - t.ndim - (along_rows ? 1 : 0);
    data = static_cast<const Element*>(t.data);
    if (skipped < 0) return false;
    for (int32_t d = 0; d < t.ndim; ++d) {
      if (t.shape[d] != 1 && t.shape[d] != sizes[skipped + d]) return false;
      if (t.shape[d] != 1) stride[skipped + d] = t.strides[d];
    }
    return true;
  }

  template <class T>
  Vec<T> at(int64_t item, int64_t row, int64_t column, int64_t lanes, double) const {
    const Element* from = data + item * stride[0] + row * stride[1] + column * stride[2];
    if (stride[2] == 0) return splat(static_cast<T>(*from));
    return load_some<T>(from, stride[2], lanes);
  }
};

template <>
struct Broadcast<void> {
  bool read(const void*, bool, int64_t, int64_t, int64_t) { return true; }
  template <class T>
  Vec<T> at(int64_t, int64_t, int64_t, int64_t, double otherwise) const {
    return splat(static_cast<T>(otherwise));
  }
};

}  // namespace bringup_kernels
