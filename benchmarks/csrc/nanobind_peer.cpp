// Functions over nb::ndarray, as nanobind's documentation writes them: one that gives new memory
// away in a capsule, and one that writes into an array it is given. Built by
// benchmarks/_op_peers.py with the nanobind that is installed, whose own library is part of it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <nb_combined.cpp>

namespace nb = nanobind;

namespace {

using Input = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NewTensor = nb::ndarray<nb::pytorch, float, nb::ndim<1>>;

void add_into(const Input& x, const Input& y, float* out) {
  if (x.shape(0) != y.shape(0)) throw nb::value_error("expected two vectors of one size");
  for (size_t i = 0; i < x.shape(0); ++i) out[i] = x.data()[i] + y.data()[i];
}

NewTensor add(const Input& x, const Input& y) {
  auto* out = new float[x.shape(0)];
  nb::capsule owner(out, [](void* data) noexcept { delete[] static_cast<float*>(data); });
  add_into(x, y, out);
  return NewTensor(out, {x.shape(0)}, owner);
}

void add_out(const Input& x, const Input& y, const Output& out) {
  if (out.shape(0) != x.shape(0)) throw nb::value_error("expected an output of the inputs' size");
  add_into(x, y, out.data());
}

}  // namespace

NB_MODULE(bringup_benchmark_nanobind, module) {
  module.def("add", &add);
  module.def("add_out", &add_out);
}
