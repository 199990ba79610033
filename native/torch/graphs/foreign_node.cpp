#include "torch/graphs/foreign_node.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>

#include <map>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "engine/util/forever.h"
#include "torch/devices/driver.h"
#include "torch/graphs/errors.h"
#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {

namespace {

// Streams that no other code gives work: one of each device, for as long as the process lives.
struct CaptureStreams {
  std::mutex mutex;
  std::map<c10::DeviceIndex, c10::Stream> made;

  c10::Stream of(c10::DeviceIndex device) {
    const auto known = made.find(device);
    if (known != made.end()) return known->second;
    const c10::Device place(c10::kPrivateUse1, device);
    const c10::Stream stream = c10::impl::VirtualGuardImpl(place.type()).getNewStream(place, 0);
    return made.emplace(device, stream).first->second;
  }
};

const c10::TypePtr& work_type() {
  static const c10::TypePtr type = c10::getCustomClassType<c10::intrusive_ptr<c10d::Work>>();
  return type;
}

CaptureStreams& capture_streams() { return forever<CaptureStreams>(); }

}  // namespace

bool ForeignNode::is_possible() {
  const bringup_driver* driver = active_driver();
  return driver != nullptr && driver->stream_capture_begin != nullptr;
}

void ForeignNode::refuse(const std::string& why) const {
  throw CaptureFailure(op() + " runs a kernel on the device that starts its own work (" + kernel_ +
                       "), and its stream could not be captured: " + why +
                       ". Declare the kernel with devices.kernel or ops.kernel_op, or run the "
                       "operator between two graphs");
}

// With the memory that it was recorded with: later launches of the graph write there.
void ForeignNode::call_again() const {
  std::vector<c10::IValue> stack(call_.args.begin(), call_.args.end());
  ReplayInterceptor interceptor(pool_);
  {
    const InterceptorScope scope(&interceptor);
    interceptor.begin_operator(call_.allocations);
    call_.op.redispatchBoxed(call_.keys, &stack);
  }
  if (!interceptor.exact()) refuse("it asked for other memory than when it was recorded");
  for (const c10::IValue& result : stack) {
    if (result.type() == work_type()) result.toCustomClass<c10d::Work>()->wait();
  }
  size_t next = 0;
  for_each_tensor(stack, [&](const at::Tensor& tensor) {
    call_.check(op(), next, tensor);
    const OperatorNode::Output& output = call_.outputs[next++];
    const bool same = tensor.storage().data() == output.address &&
                      tensor.strides() == output.tensor.strides() &&
                      tensor.storage_offset() == output.tensor.storage_offset();
    if (!same) refuse("its result lies elsewhere than when it was recorded");
  });
  call_.check_count(op(), next);
}

void ForeignNode::add_to(bringup_graph graph, c10::DeviceIndex device) const {
  const bringup_driver& driver = *active_driver();
  const std::lock_guard alone(capture_streams().mutex);
  const c10::StreamGuard current(capture_streams().of(device));
  const bringup_stream stream = current_driver_stream(device);
  check_driver(driver.stream_capture_begin(device, stream), "capturing a stream");
  auto abort = c10::make_scope_exit([&] { driver.stream_capture_abort(device, stream); });
  if (const auto failure = failure_of([&] { call_again(); })) refuse(*failure);
  abort.release();
  const int32_t status = driver.stream_capture_end(device, stream, graph);
  if (status != BRINGUP_OK) refuse(driver_error_text(status));
}

void ForeignNode::visit_accesses(const AccessVisitor& visit) const {
  visit_arguments(*schema(), call_.args, visit);
  for (const OperatorNode::Output& output : call_.outputs) {
    if (!output.fixed) visit(output.tensor, true);
  }
}

}  // namespace bringup::torch_ext::graphs
