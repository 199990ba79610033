// Sparse tensors of a host call: what stands for one is made of what stands for its indices and
// values, and a result is made of the device's tensors for them. No kernel is needed for that.
#include <ATen/Functions.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors.h>

#include "torch/devices/host_call.h"

namespace bringup::torch_ext {
namespace {

at::Tensor with_parts(const at::Tensor& like, const at::Tensor& indices, const at::Tensor& values) {
  return at::_sparse_coo_tensor_with_dims_and_tensors(
      like.sparse_dim(), like.dense_dim(), like.sizes(), indices, values,
      values.options().layout(c10::kSparse), like.is_coalesced());
}

at::SparseTensorImpl* sparse_impl(const at::Tensor& tensor) {
  return static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

}  // namespace

at::Tensor HostCall::sparse_stand_in(const at::Tensor& tensor, bool written) {
  refuse_other_layouts(tensor.layout());
  for (Pair& pair : sparse_pairs_) {
    if (pair.original.is_same(tensor)) {
      pair.written |= written;
      return pair.host;
    }
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  // Kernels that write to a sparse tensor may do so in its parts.
  const at::Tensor indices = stand_in(tensor._indices(), written);
  const at::Tensor values = stand_in(tensor._values(), written);
  sparse_pairs_.push_back({tensor, with_parts(tensor, indices, values), written});
  return sparse_pairs_.back().host;
}

at::Tensor HostCall::adopt_sparse(const at::Tensor& result) {
  for (const Pair& pair : sparse_pairs_) {
    if (pair.host.is_same(result)) return pair.original;
  }
  refuse_other_layouts(result.layout());
  return with_parts(result, adopt(result._indices()), adopt(result._values()));
}

void HostCall::write_sparse_back(const Pair& pair) {
  at::SparseTensorImpl* original = sparse_impl(pair.original);
  const at::SparseTensorImpl* host = sparse_impl(pair.host);
  original->raw_resize_(host->sparse_dim(), host->dense_dim(), pair.host.sizes());
  original->set_indices_and_values_unsafe(adopt(host->indices()), adopt(host->values()));
  original->set_coalesced(host->coalesced());
}

}  // namespace bringup::torch_ext
