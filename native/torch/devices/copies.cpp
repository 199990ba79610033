// _copy_from and its relatives. Layout and dtype are the host's work; the driver only ever copies
// linear ranges and rows.
#include "torch/devices/copies.h"

#include <ATen/Dispatch_v2.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "torch/devices/host_allocator.h"
#include "torch/devices/host_call.h"
#include "torch/devices/profiler.h"
#include "torch/devices/registration.h"
#include "torch/devices/row_layout.h"
#include "torch/devices/state.h"
#include "torch/operators/operator_kernel.h"

namespace bringup::torch_ext {
namespace {

bool on_device(const at::Tensor& tensor) { return tensor.device().type() == kDriverDevice; }

// What the driver can copy from one to the other as it is: one linear range, or rows.
std::optional<RowLayout> driver_layout(const at::Tensor& source, const at::Tensor& target) {
  if (source.layout() != c10::kStrided || target.layout() != c10::kStrided) return std::nullopt;
  const auto layout = RowLayout::of(source, target);
  const bool rows = layout.has_value() && layout->height > 1;
  return rows && active_driver()->copy_2d_async == nullptr ? std::nullopt : layout;
}

// Bytes from the first to the last element, with the holes between them.
size_t span_bytes(const at::Tensor& tensor) {
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size());
}

struct End {
  c10::DeviceIndex device;
  void* address;
};

void copy_in_stream(bringup_copy_kind kind, End to, End from, const RowLayout& rows,
                    const c10::Stream& stream) {
  const bringup_driver& driver = *active_driver();
  const ProfiledWork work(kind, rows.bytes(), stream);
  if (rows.height == 1) {
    check_driver(driver.copy_async(kind, to.device, to.address, from.device, from.address,
                                   rows.width, native_stream(stream)),
                 "copying memory");
  } else {
    check_driver(driver.copy_2d_async(kind, to.device, to.address, rows.target_pitch, from.device,
                                      from.address, rows.source_pitch, rows.width, rows.height,
                                      native_stream(stream)),
                 "copying rows of memory");
  }
}

// Waits for copies, and says what failed in their stream; "" for nothing. The host's side of a copy
// may end only when the copy did. Where the wait for it fails the copy may still run: the memory
// stays then, for good if nothing tells of the end.
std::string failure_of_copies(const c10::Stream& stream, c10::ArrayRef<at::Storage> hosts) {
  const c10::DeviceIndex device = stream.device_index();
  const int32_t status = wait_for_stream(device, native_stream(stream));
  if (status == BRINGUP_OK) return take_host_failure(device);
  std::string text = driver_failure_text(status, "waiting for a copy");
  if (status == BRINGUP_KERNEL_FAILED) return text;
  const int32_t device_status = wait_for_device(device);
  if (device_status == BRINGUP_KERNEL_FAILED) {
    report_host_failure(device, driver_error_text(device_status));
  } else if (device_status != BRINGUP_OK) {
    for (const at::Storage& host : hosts) new at::Storage(host);  // on purpose never deleted
  }
  return text;
}

void wait_for_copies(const c10::Stream& stream, c10::ArrayRef<at::Storage> hosts) {
  const std::string failure = failure_of_copies(stream, hosts);
  TORCH_CHECK(failure.empty(), failure);
}

// Up or down in this stream.
void start_copy(bringup_copy_kind kind, void* device_address, void* host_address,
                const RowLayout& rows, const c10::Stream& stream) {
  const End on_device{stream.device_index(), device_address};
  const End on_host{0, host_address};
  const bool up = kind == BRINGUP_HOST_TO_DEVICE;
  copy_in_stream(kind, up ? on_device : on_host, up ? on_host : on_device, rows, stream);
}

// Host to device or back in the current stream. Pinned memory is left to the stream with
// non_blocking; ordinary memory may be gone when this returns, so it is waited for.
void copy_host_range(bringup_copy_kind kind, void* device_address, c10::DeviceIndex device,
                     void* host_address, const RowLayout& rows, const at::Storage& host,
                     bool left_to_stream) {
  const c10::Stream stream = current_stream(device);
  start_copy(kind, device_address, host_address, rows, stream);
  const bool kept = left_to_stream && record_host_use(host_address, host, stream);
  if (!kept) wait_for_copies(stream, host);
}

// Between two devices the copy runs in the source's current stream, ordered after and before the
// target's work.
void copy_between_devices(const at::Tensor& source, const at::Tensor& target,
                          const RowLayout& rows) {
  const c10::Stream from = current_stream(source.device().index());
  const c10::Stream to = current_stream(target.device().index());
  c10::Event ready(kDriverDevice);
  ready.record(to);
  ready.block(from);
  copy_in_stream(BRINGUP_DEVICE_TO_DEVICE, {target.device().index(), target.data_ptr()},
                 {source.device().index(), source.data_ptr()}, rows, from);
  c10::Event done(kDriverDevice);
  done.record(from);
  done.block(to);
}

void copy_by_driver(const at::Tensor& source, const at::Tensor& target, const RowLayout& rows,
                    bool non_blocking) {
  if (on_device(source) && on_device(target)) {
    if (source.device() != target.device()) return copy_between_devices(source, target, rows);
    at::assert_no_partial_overlap(target, source);
    if (target.data_ptr() == source.data_ptr()) return;  // the same memory in the same layout
    const c10::DeviceIndex device = target.device().index();
    return copy_in_stream(BRINGUP_DEVICE_TO_DEVICE, {device, target.data_ptr()},
                          {device, source.data_ptr()}, rows, current_stream(device));
  }
  const bool up = on_device(target);
  const at::Tensor& host = up ? source : target;
  const at::Tensor& device = up ? target : source;
  const bool left_to_stream = non_blocking && is_pinned_address(host.data_ptr());
  copy_host_range(up ? BRINGUP_HOST_TO_DEVICE : BRINGUP_DEVICE_TO_HOST, device.data_ptr(),
                  device.device().index(), host.data_ptr(), rows, host.storage(), left_to_stream);
}

// False: nothing was done.
bool copy_by_kernel(const at::Tensor& source, const at::Tensor& target) {
  const auto call = native_copy(source, target);
  if (!call) return false;
  auto launch = prepare_launch(*call->kernel, call->arguments);
  if (!launch) return false;
  if (!launch->empty) {
    launch_kernel(launch->entry(), std::move(launch->block), launch->grid, launch->device);
  }
  return true;
}

// What can be moved in place: the same bytes in the same order, between visible memory and the
// host's.
bool is_in_place(const at::Tensor& source, const at::Tensor& target,
                 const std::optional<RowLayout>& rows) {
  return driver_facts().host_visible && rows.has_value() && rows->height == 1 &&
         (on_device(source) ? target : source).is_cpu();
}

// The stream comes to its end first.
void copy_in_place(const at::Tensor& source, const at::Tensor& target, size_t bytes) {
  const bool up = on_device(target);
  const c10::DeviceIndex device = (up ? target : source).device().index();
  synchronize_current_stream(device);
  void* to = target.mutable_data_ptr();
  const void* from = source.const_data_ptr();
  void* view = nullptr;
  check_driver(active_driver()->host_view(device, up ? to : from, &view), "asking for a host view");
  // The host's end may be an alias of the same memory.
  std::memmove(up ? view : to, up ? from : view, bytes);
}

// The host's copy_ over aliases: any layout, any dtype, nothing staged.
void copy_through_aliases(const at::Tensor& source, const at::Tensor& target) {
  const c10::DeviceIndex device = (on_device(target) ? target : source).device().index();
  if (on_device(source) && source.device().index() != device) {
    synchronize_current_stream(source.device().index());
  }
  HostCall call(device, HostCall::Mode::kAlias);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  call.stand_in(target, true).copy_(call.stand_in(source, false));
}

// The same without a view of device memory: spans are staged on the host, laid out as on the
// device.
void copy_through_staging(const at::Tensor& source, const at::Tensor& target) {
  const at::Tensor values = on_device(source) ? copy_to_host(source) : source;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (!on_device(target)) {
    target.copy_(values);
    return;
  }
  // What lies in the holes of the target is kept, so it has to be fetched where there are holes.
  at::Tensor staged =
      target.is_non_overlapping_and_dense()
          ? at::empty_strided(target.sizes(), target.strides(), target.options().device(c10::kCPU))
          : copy_to_host(target);
  if (staged.is_conj() != target.is_conj()) staged._set_conj(target.is_conj());
  if (staged.is_neg() != target.is_neg()) staged._set_neg(target.is_neg());
  staged.copy_(values);
  copy_host_range(BRINGUP_HOST_TO_DEVICE, target.data_ptr(), target.device().index(),
                  staged.data_ptr(), RowLayout::linear(span_bytes(target)), staged.storage(),
                  false);
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  if (target.numel() == 0 || source.is_same(target)) return target;
  const c10::OptionalDeviceGuard guard(on_device(target) ? target.device() : source.device());
  const bool host_end = !on_device(source) || !on_device(target);
  const bool by_driver = !driver_facts().host_visible || !host_end || non_blocking;
  const auto rows = driver_layout(source, target);
  if (rows.has_value() && by_driver) {
    copy_by_driver(source, target, *rows, non_blocking);
  } else if (copy_by_kernel(source, target)) {
    return target;
  } else if (is_in_place(source, target, rows)) {
    copy_in_place(source, target, rows->width);
  } else if (driver_facts().host_visible) {
    copy_through_aliases(source, target);
  } else {
    copy_through_staging(source, target);
  }
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

// Where the host sees device memory, one element is read there once the stream has come to its end.
at::Scalar local_scalar_dense(const at::Tensor& tensor) {
  if (!driver_facts().host_visible) return copy_to_host(tensor).item();
  const c10::DeviceIndex device = tensor.device().index();
  synchronize_current_stream(device);
  void* host = nullptr;
  check_driver(active_driver()->host_view(device, tensor.const_data_ptr(), &host),
               "asking for a host view");
  return AT_DISPATCH_V2(tensor.scalar_type(), "_local_scalar_dense", AT_WRAP([&] {
                          scalar_t value;
                          std::memcpy(&value, host, sizeof value);
                          return at::Scalar(value);
                        }),
                        AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES),
                        AT_EXPAND(AT_FLOAT8_TYPES), at::kComplexHalf, at::kHalf, at::kBool,
                        at::kBFloat16);
}

}  // namespace

std::optional<NativeCall> native_copy(const at::Tensor& source, const at::Tensor& target) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy", "out");
  const auto* kernel = dynamic_cast<const OperatorKernel*>(find_kernel(op));
  const auto is_plain = [](const at::Tensor& tensor) {
    return tensor.layout() == c10::kStrided && !tensor.is_conj() && !tensor.is_neg() &&
           !tensor.is_complex();
  };
  if (kernel == nullptr || source.device() != target.device() || !on_device(source) ||
      !is_plain(source) || !is_plain(target)) {
    return std::nullopt;
  }
  return NativeCall{kernel, {target, source.expand_as(target), false, target}};
}

HostCopies::HostCopies(c10::DeviceIndex device) : stream_(current_stream(device)) {}

HostCopies::~HostCopies() {
  if (pending_.empty()) return;
  std::string failure = failure_of_copies(stream_, pending_);
  if (!failure.empty()) report_host_failure(stream_.device_index(), std::move(failure));
}

at::Tensor HostCopies::start(const at::Tensor& device_tensor, bool pinned) {
  const size_t bytes = span_bytes(device_tensor);
  at::Tensor host = at::empty({0}, device_tensor.options().device(c10::kCPU));
  host.unsafeGetTensorImpl()->set_sizes_and_strides(device_tensor.sizes(), device_tensor.strides());
  if (bytes > 0) {
    at::DataPtr memory;
    if (pinned || bytes >= kStagedBytes) memory = pinned_or_nothing(bytes);
    if (memory.get() == nullptr) memory = c10::GetCPUAllocator()->allocate(bytes);
    void* address = memory.get();
    pending_.emplace_back(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                                bytes, std::move(memory),
                                                                c10::GetCPUAllocator(), true));
    host.unsafeGetTensorImpl()->set_storage_keep_dtype(pending_.back());
    start_copy(BRINGUP_DEVICE_TO_HOST, device_tensor.data_ptr(), address, RowLayout::linear(bytes),
               stream_);
  }
  if (device_tensor.is_conj()) host._set_conj(true);
  if (device_tensor.is_neg()) host._set_neg(true);
  return host;
}

void HostCopies::wait() {
  if (pending_.empty()) return;
  const std::vector<at::Storage> hosts = std::exchange(pending_, {});
  wait_for_copies(stream_, hosts);
}

at::Tensor copy_to_host(const at::Tensor& device_tensor) {
  HostCopies copies(device_tensor.device().index());
  at::Tensor host = copies.start(device_tensor);
  copies.wait();
  return host;
}

void register_copies() {
  static auto* device_library =
      new KitLibrary("aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  device_library->impl("_copy_from", &copy_from);
  device_library->impl("_copy_from_and_resize", &copy_from_and_resize);
  device_library->impl("_local_scalar_dense", &local_scalar_dense);
  // A copy resolves conjugate and negative bits itself; torch's fallback for them would copy first,
  // and so on for ever.
  for (const c10::DispatchKey key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}) {
    auto* library = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    library->impl("_copy_from", torch::CppFunction::makeFallthrough());
  }
}

}  // namespace bringup::torch_ext
