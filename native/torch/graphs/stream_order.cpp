#include "torch/graphs/stream_order.h"

#include <algorithm>

#include "torch/graphs/errors.h"

namespace bringup::torch_ext::graphs {

void StreamOrder::advance(Clock& clock, const Clock& other) {
  for (const auto& [stream, count] : other) clock[stream] = std::max(clock[stream], count);
}

void StreamOrder::on_record(void* event, const c10::Stream& stream) {
  events_[event] = streams_[stream];
}

void StreamOrder::on_block(void* event, const c10::Stream& stream) {
  const auto found = events_.find(event);
  if (found != events_.end()) advance(streams_[stream], found->second);
}

void StreamOrder::on_host_wait(const char* what) {
  throw_through_dispatcher(CaptureFailure(
      std::string(what) +
      " waits on the host inside a capture, and a replay would not: work is launched by the replay "
      "only. Wait before the capture or after a replay; inside, order streams with wait_stream()"));
}

void StreamOrder::ran(const c10::Stream& stream, const std::string& op) {
  ++streams_[stream][stream];
  Last& last = nodes_[stream];
  ++last.count;
  last.op = op;
}

void StreamOrder::check_joined(const std::vector<c10::Stream>& last) const {
  for (const auto& [stream, node] : nodes_) {
    if (std::ranges::find(last, stream) != last.end()) continue;
    size_t joined = 0;
    for (const c10::Stream& one : last) {
      const auto waits_for = streams_.find(one);
      if (waits_for == streams_.end()) continue;
      const auto entry = waits_for->second.find(stream);
      if (entry != waits_for->second.end()) joined = std::max(joined, entry->second);
    }
    if (joined == node.count) continue;
    throw CaptureFailure(
        std::to_string(node.count - joined) + " captured operators (the last is " + node.op +
        ") ran in a side stream that the capture's stream does not wait for: join it before the "
        "capture ends, torch.accelerator.current_stream().wait_stream(side)");
  }
}

}  // namespace bringup::torch_ext::graphs
