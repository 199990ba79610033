#include "torch/graphs/device_runs.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "runtime/context.h"
#include "torch/devices/driver.h"
#include "torch/graphs/fused_runs.h"
#include "torch/graphs/outside_capture.h"
#include "torch/operators/operator_kernel.h"

namespace bringup::torch_ext::graphs {
namespace {

const KernelNode& kernel_at(const std::vector<std::unique_ptr<Node>>& nodes, size_t position) {
  const auto* node = dynamic_cast<const KernelNode*>(nodes.at(position).get());
  TORCH_CHECK(node != nullptr, "node ", position, " is no kernel");
  return *node;
}

void* argument_at(const std::vector<std::unique_ptr<Node>>& nodes, const DeviceRuns::Place& place) {
  const runtime::LaunchBlock& block = kernel_at(nodes, place.node).block();
  TORCH_CHECK(place.position < static_cast<size_t>(block.size()), "node ", place.node,
              " has no argument ", place.position);
  return block.args()[place.position];
}

// The elements of a device's tensor as they lie there, on the host.
at::Tensor content_of(const at::Tensor& tensor) {
  const size_t bytes =
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize());
  const at::Tensor content = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
  const c10::DeviceIndex device = tensor.device().index();
  check_driver(
      active_driver()->copy_async(BRINGUP_DEVICE_TO_HOST, device, content.data_ptr(), device,
                                  tensor.const_data_ptr(), bytes, current_driver_stream(device)),
      "a copy of what a kernel wrote");
  synchronize_current_stream(device);
  return content.view(tensor.scalar_type()).as_strided(tensor.sizes(), tensor.strides());
}

void put_back(const at::Tensor& content, const at::Tensor& tensor) {
  const c10::DeviceIndex device = tensor.device().index();
  check_driver(
      active_driver()->copy_async(BRINGUP_HOST_TO_DEVICE, device, tensor.mutable_data_ptr(), device,
                                  content.const_data_ptr(), content.storage().nbytes(),
                                  current_driver_stream(device)),
      "a copy of what a kernel wrote");
  synchronize_current_stream(device);
}

// Which bits a NaN has is the compiler's choice.
at::Tensor bits_of(const at::Tensor& content) {
  const at::Tensor numbers =
      content.is_floating_point() ? content.masked_fill(content.isnan(), std::nan("")) : content;
  return numbers.reshape({-1}).view(at::kByte);
}

}  // namespace

DeviceRuns::DeviceRuns(c10::DeviceIndex device, const std::vector<std::unique_ptr<Node>>& nodes,
                       std::vector<Run> runs)
    : device_(device), nodes_(nodes), of_node_(nodes.size()) {
  for (Run& run : runs) {
    State& state = states_.emplace_back();
    state.run = std::move(run);
    state.function = device_function(state.run.kernel, device);
    for (size_t i = state.run.first; i < state.run.first + state.run.count; ++i) {
      of_node_.at(i) = &state;
    }
  }
}

std::optional<std::pair<size_t, size_t>> DeviceRuns::nodes_of(size_t node) const {
  const State* const state = of_node_.at(node);
  if (state == nullptr) return std::nullopt;
  return std::pair(state->run.first, state->run.count);
}

const bringup_launch_values_args* DeviceRuns::launch(size_t node) const {
  return &of_node_.at(node)->launch;
}

void DeviceRuns::take_values(size_t node) { take(*of_node_.at(node)); }

void DeviceRuns::take_values() {
  for (State& state : states_) take(state);
}

void DeviceRuns::run_compared(size_t node, const std::function<void(size_t)>& run_node) const {
  const OutsideCapture outside;
  const State& state = *of_node_.at(node);
  std::vector<at::Tensor> written, before, fused;
  for (const size_t i : state.run.results) {
    nodes_.at(i)->visit_accesses([&](const at::Tensor& tensor, bool writes) {
      if (writes) written.push_back(tensor);
    });
  }
  std::ranges::transform(written, std::back_inserter(before), &content_of);
  check_driver(
      active_driver()->launch_values(device_, current_driver_stream(device_), &state.launch),
      state.launch.name);
  std::ranges::transform(written, std::back_inserter(fused), &content_of);
  for (size_t i = 0; i < written.size(); ++i) put_back(before[i], written[i]);
  for (size_t i = 0; i < state.run.count; ++i) run_node(state.run.first + i);
  for (size_t i = 0; i < written.size(); ++i) {
    TORCH_CHECK(at::equal(bits_of(fused[i]), bits_of(content_of(written[i]))), kOtherThanLower);
  }
}

bool DeviceRuns::fit() const {
  return std::ranges::all_of(states_, [](const State& state) { return state.fits.load(); });
}

void DeviceRuns::take(State& state) {
  runtime::LaunchBlock block;
  for (const Given& given : state.run.given) {
    if (given.address != nullptr) {
      runtime::TensorDesc tensor;
      tensor.data = given.address;
      tensor.device = {12 /* kDLExtDev */, device_};
      tensor.sizes = given.sizes;
      tensor.strides = given.strides;
      block.add_tensor(tensor);
    } else if (!given.number) {
      block.add_none();
    } else {
      const void* const number = argument_at(nodes_, *given.number);
      const auto kind = static_cast<runtime::ArgKind>(
          kernel_at(nodes_, given.number->node).block().kinds()[given.number->position]);
      if (kind == runtime::ArgKind::kFloat) {
        block.add_float(*static_cast<const double*>(number));
      } else {
        TORCH_CHECK(kind == runtime::ArgKind::kInt, state.run.name, ": an argument is no number");
        block.add_int(*static_cast<const int64_t*>(number));
      }
    }
  }
  const runtime::HostContext context({12 /* kDLExtDev */, device_});
  const char* reason = state.run.kernel->values->lower(block.args(), context.get(), state.values);
  TORCH_CHECK(reason == nullptr, state.run.name, ": ", reason);
  state.launch = state.values.arguments(state.function, state.run.name.c_str());
  state.fits = std::ranges::all_of(state.run.reads, [&](const Read& read) {
    return static_cast<const DLTensor*>(argument_at(nodes_, read.place))->data == read.address;
  });
}

const char* why_no_device_run(const Node& node) {
  const bringup_driver& driver = *active_driver();
  if (!launches_values() || driver.graph_add_values == nullptr ||
      driver.graph_update_values == nullptr) {
    return "the driver has no launches with plain values in graphs";
  }
  if (node.device_copy()) return nullptr;
  const auto* kernel = dynamic_cast<const KernelNode*>(&node);
  if (kernel == nullptr || dynamic_cast<const OperatorKernel*>(&kernel->record()) == nullptr) {
    return "it is no kernel of devices.kernel";
  }
  if (node.draws()) return "it draws random numbers";
  if (node.device_launch() != nullptr && driver.graph_update_kernel == nullptr) {
    return "the driver reads arguments when they are due";
  }
  return nullptr;
}

}  // namespace bringup::torch_ext::graphs
