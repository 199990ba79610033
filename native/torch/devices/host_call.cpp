#include "torch/devices/host_call.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <optional>

#include "engine/util/forever.h"
#include "torch/common/values.h"
#include "torch/devices/allocator.h"
#include "torch/devices/copies.h"
#include "torch/devices/dtypes.h"
#include "torch/devices/host_allocator.h"
#include "torch/devices/metadata.h"

namespace bringup::torch_ext {
namespace {

// Device memory that CPU kernels were given, by its host address: how it is really freed. Most of
// it is adopted when the call ends; scratch memory of a library may stay here for longer, and is
// freed by its address from any thread.
class RedirectedMemory {
 public:
  struct Owner {
    void* context;
    at::DeleterFnPtr deleter;
  };

  void add(void* host, Owner owner) {
    Shard& shard = shard_of(host);
    std::lock_guard lock(shard.mutex);
    shard.owners[host] = owner;
  }

  std::optional<Owner> take(void* host) {
    Shard& shard = shard_of(host);
    std::lock_guard lock(shard.mutex);
    const auto entry = shard.owners.find(host);
    if (entry == shard.owners.end()) return std::nullopt;
    const Owner owner = entry->second;
    shard.owners.erase(entry);
    return owner;
  }

 private:
  struct alignas(64) Shard {
    std::mutex mutex;
    ska::flat_hash_map<void*, Owner> owners;
  };
  Shard& shard_of(const void* host) {
    return shards_[(reinterpret_cast<uintptr_t>(host) >> 9) % shards_.size()];
  }
  std::array<Shard, 16> shards_;
};

RedirectedMemory& redirected_memory() { return forever<RedirectedMemory>(); }

bool release_redirected(void* host) noexcept {
  const auto owner = redirected_memory().take(host);
  if (!owner.has_value()) return false;
  owner->deleter(owner->context);
  return true;
}

void delete_redirected(void* host) { release_redirected(host); }

at::DataPtr redirect(void* host, at::DataPtr block) {
  const at::DeleterFnPtr deleter = block.get_deleter();
  redirected_memory().add(host, {block.release_context(), deleter});
  return {host, host, &delete_redirected, c10::Device(c10::kCPU)};
}

void keep(void*) {}  // the deleter of memory that an alias does not own

void* host_address(c10::DeviceIndex device, void* address) {
  if (address == nullptr) return nullptr;
  void* host = nullptr;
  check_driver(active_driver()->host_view(device, address, &host), "asking for a host view");
  return host;
}

// Strides are those of a new tensor of these sizes; a dimension of one element may have others.
bool has_default_strides(const c10::TensorImpl& tensor) {
  int64_t expected = 1;
  for (int64_t i = tensor.dim(); i-- > 0;) {
    if (tensor.strides()[static_cast<size_t>(i)] != expected) return false;
    expected *= std::max<int64_t>(tensor.sizes()[static_cast<size_t>(i)], 1);
  }
  return true;
}

void copy_geometry(const c10::TensorImpl& from, const at::Tensor& to) {
  c10::TensorImpl* target = to.unsafeGetTensorImpl();
  if (has_default_strides(from)) {
    target->set_sizes_contiguous(from.sizes());
  } else {
    target->set_sizes_and_strides(from.sizes(), from.strides());
  }
  if (from.storage_offset() != 0) target->set_storage_offset(from.storage_offset());
  if (C10_UNLIKELY(from.is_conj())) target->_set_conj(true);
  if (C10_UNLIKELY(from.is_neg())) target->_set_neg(true);
}

at::Tensor tensor_over(c10::Storage storage, c10::DispatchKeySet keys, const at::Tensor& like) {
  if (C10_UNLIKELY(like._is_zerotensor())) keys = keys.add(c10::DispatchKey::ZeroTensor);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  copy_geometry(*like.unsafeGetTensorImpl(), tensor);
  return tensor;
}

// A view belongs to inference mode if and only if what it is a view of does: torch's
// ADInplaceOrView kernel gives it the version of the original.
at::Tensor device_view(const at::Tensor& original, const at::Tensor& like) {
  std::optional<c10::InferenceMode> mode;
  if (original.is_inference() != c10::InferenceMode::is_enabled()) {
    mode.emplace(original.is_inference());
  }
  return with_metadata_of(original, tensor_over(original.storage(), kDriverKeys, like));
}

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

// `lasting`: it keeps the device's memory, and cannot be resized.
at::Tensor alias_of(const at::Tensor& tensor, bool lasting) {
  c10::StorageImpl* storage = storage_of(tensor);
  // data() raises where the content is gone: of a captured graph's result, when another graph has
  // the memory.
  void* host = host_address(tensor.device().index(), const_cast<void*>(storage->data()));
  const auto drop = [](void* kept) { delete static_cast<c10::Storage*>(kept); };
  at::DataPtr data =
      lasting ? at::DataPtr(host, new c10::Storage(tensor.storage()), drop, c10::Device(c10::kCPU))
              : at::DataPtr(host, host, &keep, c10::Device(c10::kCPU));
  c10::Storage alias = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage->nbytes(), std::move(data),
      lasting ? nullptr : c10::GetCPUAllocator(), !lasting);
  return tensor_over(std::move(alias), kCpuKeys, tensor);
}

// Long tensor lists are not searched to the end for tensors that were met before: they are lists of
// different tensors, and no kernel looks for overlaps in them.
constexpr size_t kSearched = 16;

bool same_geometry(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.storage_offset() == b.storage_offset();
}

void take_geometry(const at::Tensor& to, const at::Tensor& from) {
  to.unsafeGetTensorImpl()->set_sizes_and_strides(from.sizes(), from.strides(),
                                                  from.storage_offset());
}

// `tensor` with one element for all that lie in one place: a copy refuses to write the others,
// which some kernels of the CPU do.
at::Tensor without_repeats(at::Tensor tensor) {
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.stride(d) == 0 && tensor.size(d) > 1) tensor = tensor.narrow(d, 0, 1);
  }
  return tensor;
}

// Memory of the host as large as `storage`. Never pinned: it may be far larger than what a call has
// of it, and pages that nothing touches cost nothing.
c10::Storage room_like(const c10::StorageImpl& storage) {
  const InterceptorScope outside(nullptr);
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
      c10::GetCPUAllocator()->allocate(storage.nbytes()), c10::GetCPUAllocator(), true);
}

// Where `host`, a copy of `original` alone, lies in a whole storage, its content with it.
void move_into(const c10::Storage& whole, const at::Tensor& original, const at::Tensor& host) {
  const size_t bytes = host.storage().nbytes();
  if (bytes > 0) {
    const size_t skipped = static_cast<size_t>(original.storage_offset()) * original.element_size();
    std::memcpy(static_cast<char*>(whole.mutable_data()) + skipped, host.storage().data(), bytes);
  }
  host.unsafeGetTensorImpl()->set_storage_keep_dtype(whole);
  take_geometry(host, original);
}

// A capture records what host code allocates in copy mode, so its interceptor stays.
bool intercepts(HostCall::Mode mode, const AllocationInterceptor* former) {
  return mode == HostCall::Mode::kAlias || (mode == HostCall::Mode::kStage && former == nullptr);
}

}  // namespace

bool is_borrowed(const c10::Storage& storage) {
  // Without torch's check of content that is gone.
  return storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get_deleter() == &keep;
}

at::Tensor host_alias(const at::Tensor& device_tensor, bool lasting) {
  TORCH_CHECK(device_tensor.device().type() == kDriverDevice,
              "a host alias needs a tensor of the driver's device, not of ",
              device_tensor.device());
  TORCH_CHECK(driver_facts().host_visible, "the memory of device '", driver_facts().device_name,
              "' is not visible to the host: copy the tensor instead");
  return alias_of(device_tensor, lasting);
}

HostCall::HostCall(c10::DeviceIndex device, Mode mode)
    : device_(device),
      mode_(mode),
      copies_(device),
      former_interceptor_(current_interceptor()),
      scope_(intercepts(mode, former_interceptor_) ? this : former_interceptor_) {
  [[maybe_unused]] static const bool known = (add_raw_release(&release_redirected), true);
  if (mode == Mode::kAlias) synchronize_current_stream(device);
}

at::Tensor HostCall::stand_in(const at::Tensor& tensor, bool written, bool resized) {
  if (!tensor.defined() || tensor.device().type() != kDriverDevice) return tensor;
  if (C10_UNLIKELY(tensor.layout() != c10::kStrided)) return sparse_stand_in(tensor, written);
  const size_t last = mode_ == Mode::kAlias ? std::min(pairs_.size(), kSearched) : pairs_.size();
  for (size_t i = 0; i < last; ++i) {
    if (!pairs_[i].original.is_same(tensor)) continue;
    pairs_[i].written |= written;
    pairs_[i].resized |= resized;
    if (mode_ != Mode::kAlias) share_if_written(tensor);
    return pairs_[i].host;
  }
  if (mode_ == Mode::kAlias) {
    pairs_.push_back({tensor, new_alias(tensor), written, resized});
    return pairs_.back().host;
  }
  bytes_to_host_ += tensor.nbytes();
  const bool pinned = mode_ == Mode::kStage && former_interceptor_ == nullptr;
  pairs_.push_back({tensor, copies_.start(tensor, pinned), written, resized});
  share_if_written(tensor);
  return pairs_.back().host;
}

// What a kernel writes it may read in another of its tensors, or refuse to write because another
// partly covers it, or would once it is resized. Copies of each could do neither, so they move into
// memory like that of the whole storage.
void HostCall::share_if_written(const at::Tensor& tensor) {
  const c10::StorageImpl* storage = storage_of(tensor);
  const auto clash = [&](const Pair& one, const Pair& other) {
    return &one != &other && (one.written || other.written) &&
           storage_of(other.original) == storage &&
           (one.resized || other.resized || overlap(one.original, other.original));
  };
  const auto mine =
      std::ranges::find_if(pairs_, [&](const Pair& pair) { return pair.original.is_same(tensor); });
  // Some kernels take every result that they are given for a dense one, and write beyond its end.
  const bool loose = mine->resized && !tensor.is_non_overlapping_and_dense();
  if (!loose && std::ranges::none_of(pairs_, [&](const Pair& pair) { return clash(*mine, pair); }))
    return;
  copies_.wait();  // what they bring moves
  std::optional<c10::Storage> whole;
  for (const Pair& pair : pairs_) {
    if (pair.in_whole && storage_of(pair.original) == storage) whole = pair.host.storage();
  }
  if (!whole) whole = room_like(*storage);
  for (Pair& pair : pairs_) {
    if (pair.in_whole || storage_of(pair.original) != storage) continue;
    move_into(*whole, pair.original, pair.host);
    pair.in_whole = true;
  }
}

// Kernels check whether their tensors overlap, so what is one storage on the device has to be one
// for them.
at::Tensor HostCall::new_alias(const at::Tensor& tensor) const {
  const size_t last = std::min(pairs_.size(), kSearched);
  for (size_t i = 0; i < last; ++i) {
    if (storage_of(pairs_[i].original) == storage_of(tensor)) {
      return tensor_over(pairs_[i].host.storage(), kCpuKeys, tensor);
    }
  }
  return alias_of(tensor, false);
}

// Memory of the CPU comes from the pinned cache, so that a result goes up without a wait: its event
// keeps the memory. Where the cache has none left ordinary memory does.
at::DataPtr HostCall::allocate_staged(size_t bytes, c10::Device device, c10::Allocator& base) {
  const InterceptorScope outside(nullptr);
  if (!device.is_cpu() || bytes == 0) return base.allocate(bytes);
  at::DataPtr block = pinned_or_nothing(bytes);
  void* host = block.get();
  return host == nullptr ? base.allocate(bytes) : redirect(host, std::move(block));
}

at::DataPtr HostCall::allocate(size_t bytes, c10::Device device, c10::Allocator& base) {
  if (mode_ == Mode::kStage) return allocate_staged(bytes, device, base);
  const InterceptorScope outside(former_interceptor_);
  at::DataPtr block = allocate_intercepted(bytes, device_);
  if (device.type() == kDriverDevice) return block;
  void* address = block.get();
  void* host = host_address(device_, address);
  if (host == nullptr) return {nullptr, c10::Device(c10::kCPU)};
  redirected_.push_back({host, address});
  return redirect(host, std::move(block));
}

const HostCall::Redirected* HostCall::find_redirected(const void* host) const {
  for (const Redirected& redirected : redirected_) {
    if (redirected.host == host) return &redirected;
  }
  return nullptr;
}

at::DataPtr HostCall::to_device(at::DataPtr&& data, size_t bytes) {
  const Redirected* redirected = find_redirected(data.get());
  if (C10_UNLIKELY(data.get() != nullptr && redirected == nullptr)) {
    // Not allocated through us, so other code put an allocator before ours: the values have to
    // move.
    at::DataPtr block = allocate_block(bytes, device_);
    std::memcpy(host_address(device_, block.get()), data.get(), bytes);
    bytes_to_device_ += bytes;
    return block;
  }
  const c10::Device device(kDriverDevice, device_);
  if (redirected == nullptr) return {nullptr, device};
  const auto owner = redirected_memory().take(data.release_context());
  return {redirected->device, owner->context, owner->deleter, device};
}

at::Tensor HostCall::copy_to_device(const at::Tensor& tensor) {
  bytes_to_device_ += tensor.nbytes();
  return tensor.to(c10::Device(kDriverDevice, device_), tensor.scalar_type(),
                   /*non_blocking=*/mode_ == Mode::kStage);
}

at::Tensor HostCall::adopt(const at::Tensor& result) {
  if (!result.defined() || result.device().type() == kDriverDevice) return result;
  for (const Pair& pair : pairs_) {
    if (pair.host.is_same(result)) return pair.original;
  }
  const Placement place = torch_ext::place(result.scalar_type(), device_);
  if (C10_UNLIKELY(place.on_host)) {
    const InterceptorScope outside(former_interceptor_);  // the device's memory may end before it
    return result.clone();
  }
  if (C10_UNLIKELY(place.dtype != result.scalar_type())) return adopt(result.to(place.dtype));
  if (C10_UNLIKELY(result.layout() != c10::kStrided)) return adopt_sparse(result);
  if (!result.has_storage()) return copy_to_device(result);
  c10::StorageImpl* storage = storage_of(result);
  for (const Pair& pair : pairs_) {
    if (storage_of(pair.host) != storage) continue;
    at::Tensor view = device_view(pair.original, result);
    if (mode_ != Mode::kAlias &&
        !pair.in_whole) {  // the copy begins at the first element of the original
      const auto skipped = static_cast<size_t>(pair.original.storage_offset()) *
                           pair.original.element_size() / result.element_size();
      view.unsafeGetTensorImpl()->set_storage_offset(static_cast<int64_t>(skipped) +
                                                     result.storage_offset());
    }
    return view;
  }
  if (storage->device_type() == c10::DeviceType::CPU) {
    at::DataPtr& data = storage->_mutable_data_ptr_no_checks();
    // Not allocated through us, and others may hold it: a constant, or another thread's.
    const bool foreign = data.get() != nullptr && find_redirected(data.get()) == nullptr;
    if (foreign || mode_ != Mode::kAlias) return copy_to_device(result);
    storage->set_data_ptr_noswap(to_device(std::move(data), storage->nbytes()));
    storage->set_allocator(&device_allocator());
  }
  return tensor_over(result.storage(), kDriverKeys, result);
}

void HostCall::write_back() {
  for (const Pair& pair : pairs_) {
    if (!pair.written) continue;
    if (mode_ == Mode::kAlias) {
      write_alias_back(pair);
    } else {
      write_copy_back(pair);
    }
  }
  for (const Pair& pair : sparse_pairs_) {
    if (pair.written) write_sparse_back(pair);
  }
}

void HostCall::write_alias_back(const Pair& pair) {
  c10::StorageImpl* alias = storage_of(pair.host);
  if (alias->data_ptr().get_deleter() != &keep) {  // the kernel gave it other memory
    c10::StorageImpl* original = storage_of(pair.original);
    original->set_data_ptr_noswap(
        to_device(std::move(alias->_mutable_data_ptr_no_checks()), alias->nbytes()));
    original->set_nbytes(alias->nbytes());
    void* host = host_address(device_, original->_mutable_data_ptr_no_checks().get());
    alias->set_data_ptr_noswap(at::DataPtr(host, host, &keep, c10::Device(c10::kCPU)));
  }
  if (!same_geometry(pair.original, pair.host)) take_geometry(pair.original, pair.host);
}

// A result that was resized stays where it begins: its storage may be that of others, too.
void HostCall::write_copy_back(const Pair& pair) {
  const at::Tensor& host = pair.host;
  const int64_t first =
      host.storage_offset() + (pair.in_whole ? 0 : pair.original.storage_offset());
  if (host.sizes() != pair.original.sizes() || host.strides() != pair.original.strides() ||
      first != pair.original.storage_offset()) {
    if (host.numel() > 0) {
      grow(pair.original.storage(),
           at::detail::computeStorageNbytes(host.sizes(), host.strides(), host.element_size(),
                                            static_cast<size_t>(first)));
    }
    pair.original.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), first);
  }
  bytes_to_device_ += host.nbytes();
  without_repeats(pair.original).copy_(without_repeats(host), mode_ == Mode::kStage);
}

}  // namespace bringup::torch_ext
