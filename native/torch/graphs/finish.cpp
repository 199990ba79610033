// The end of a capture: put back what the run changed, replay once, and see that the replay gives
// what the run gave.
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <utility>

#include "torch/graphs/errors.h"
#include "torch/graphs/event_node.h"
#include "torch/graphs/foreign_node.h"
#include "torch/graphs/recorder.h"
#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {
namespace {

at::Tensor copy_of(const at::Tensor& memory) { return memory.clone(at::MemoryFormat::Contiguous); }

// Compares bytes: NaN equals itself, 0 is not -0. `content` is such a copy.
bool same(const at::Tensor& memory, const at::Tensor& content) {
  const bool whole = memory.is_contiguous() && memory.nbytes() == memory.storage().nbytes();
  const at::Tensor now = whole ? memory : copy_of(memory);
  return bytes_of(now.storage()).cpu().equal(bytes_of(content.storage()).cpu());
}

at::Tensor memory_of(const Allocation& allocation) {
  at::DataPtr data(allocation.address, nullptr, &c10::detail::deleteNothing, allocation.device);
  return bytes_of(c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), allocation.bytes, std::move(data), nullptr, false)));
}

// A call of a kernel that other code registered, of which the graph has what it gave the current
// stream; null where there is none.
const ForeignNode* captured_call(const Graph& graph) {
  for (const auto& node : graph.nodes()) {
    if (const ForeignNode* call = node->captured_call()) return call;
  }
  return nullptr;
}

}  // namespace

SpoiltMemory::SpoiltMemory(const Graph& graph) {
  for (const auto& node : graph.nodes()) {
    const ForeignNode* call = node->captured_call();
    if (call == nullptr) continue;
    for (const Allocation& allocation : call->allocations()) {
      if (allocation.bytes == 0) continue;
      at::Tensor memory = memory_of(allocation);
      at::Tensor other = memory.cpu().bitwise_not();
      spoilt_.emplace_back(std::move(memory), std::move(other));
    }
  }
}

void SpoiltMemory::spoil() const {
  for (const auto& [memory, other] : spoilt_) memory.copy_(other);
}

void Recorder::check_contents() {
  const bool eager = std::ranges::any_of(nodes_, [](const auto& node) { return node->is_eager(); });
  if (const auto tensor =
          contents_.changed(eager || runs_other_code_, eager ? &restorer_ : nullptr)) {
    throw CaptureFailure(
        "the tensor " + *tensor +
        " was written inside the capture by code that the recorder cannot see "
        "(NumPy, ctypes, a kernel that torch.compile generated), or by another thread: a replay "
        "would not write it. Write it with torch's operators" +
        (eager ? ", or name it where the eager call's schema says what it writes" : ""));
  }
  contents_.name_tensors(*watch_);
}

// Throws CaptureFailure unless what was seen can be replayed.
void Recorder::check_seen() const {
  if (const auto moved = nodes_.empty() ? random_.moved() : std::nullopt) {
    throw CaptureFailure("no operator ran in the capture, and " + *moved +
                         " was seeded, set or drawn from, which a replay would not repeat. Do that "
                         "before the capture and between replays");
  }
  if (!controls_.empty()) {
    throw CaptureFailure(controls_.back().name +
                         " failed inside the capture, and the code went on without it");
  }
  streams_.check_joined(last_streams_);
  if (const auto change = watch_->seal()) {
    throw CaptureFailure("the run itself changed which memory it reads: " + *change +
                         ". A replay would read the former memory: write in place with copy_, or "
                         "change it before the capture");
  }
}

std::vector<WrittenMemory> Recorder::written_memory() const {
  std::vector<WrittenMemory> found;
  const auto keep = [&](const at::Tensor& memory, size_t writer) {
    if (memory.numel() > 0) found.push_back({memory, copy_of(memory), writer});
  };
  for (const auto& block : pool_->live_blocks()) {
    if (!block->written) continue;
    if (block->parts.empty()) keep(bytes_of(alias_storage(*block)), block->writer);
    for (const at::Tensor& part : block->parts) keep(part, block->writer);
  }
  for (const c10::Storage& storage : restorer_.storages()) {
    keep(bytes_of(storage), nodes_.size());
  }
  return found;
}

// After the first replay.
void Recorder::check_replay(Graph& graph, const std::vector<WrittenMemory>& written,
                            const SpoiltMemory& spoilt) const {
  for (const WrittenMemory& first : written) {
    if (same(first.memory, first.content)) continue;
    const at::Tensor second = copy_of(first.memory);
    put_back();
    spoilt.spoil();
    graph.replay_alone();
    // Two replays that differ: an operator is not deterministic, which is not the graph's fault.
    if (!same(first.memory, second)) continue;
    put_back();
    const bool known = first.writer < graph.nodes().size();
    const std::string what =
        "a replay of the captured operators does not give what the run gave: " +
        (known ? "the result of " + graph.nodes()[first.writer]->op()
               : std::string("a tensor that predates the capture")) +
        " (" + std::to_string(first.memory.nbytes()) + " bytes) ";
    if (const ForeignNode* call = captured_call(graph)) {
      throw CaptureFailure(what + "is another one. " + call->op() +
                           " runs a kernel on the device that starts its own work (" +
                           call->kernel() +
                           "), and a replay repeats what it gives the current stream, with the "
                           "numbers of this call: it must give no other stream work, nor do any on "
                           "the host. Declare the kernel with devices.kernel or ops.kernel_op, or "
                           "run the operator between two graphs");
    }
    throw CaptureFailure(what +
                         "was changed by code that the recorder cannot see, such as a "
                         "kernel that torch.compile generated. "
                         "Compile with backend=\"bringup\" or \"eager\"");
  }
}

std::unique_ptr<Graph> Recorder::finish(int level, int64_t verify) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  pool_->seal();
  check_contents();
  for (const auto& block : pool_->live_blocks()) {
    if (!block->written && block->origin == Origin::kHostData) add_constant(*block);
  }
  check_seen();
  const std::vector<WrittenMemory> written = written_memory();
  auto graph = std::make_unique<Graph>(pool_, std::move(nodes_), std::move(inputs_), devices_,
                                       copies_to_host_, random_.finish(), level, verify);
  graph->take_given(watch_, std::move(versions_).living());
  put_back();
  const SpoiltMemory spoilt(*graph);
  spoilt.spoil();
  if (const auto failure = failure_of([&] { graph->validate(); })) {
    throw CaptureFailure("the first replay of the captured operators failed: " + *failure);
  }
  check_replay(*graph, written, spoilt);
  put_back();
  pool_->seal();  // with what nodes on the host learned to need in the first replay
  arm_events(graph->nodes());
  end_use();
  return graph;
}

}  // namespace bringup::torch_ext::graphs
