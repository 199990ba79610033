#include "torch/graphs/event_node.h"

#include <c10/util/Exception.h>

#include <ranges>
#include <utility>

#include "torch/devices/driver.h"
#include "torch/devices/state.h"

namespace bringup::torch_ext::graphs {
namespace {

struct EnqueuedEvent {
  std::shared_ptr<NamedEvent> event;
  EventNode::Action action;
  c10::DeviceIndex device;
};

void run_enqueued(void* user) {
  const std::unique_ptr<EnqueuedEvent> enqueued(static_cast<EnqueuedEvent*>(user));
  if (enqueued->action == EventNode::Action::kRecord) return enqueued->event->event.record();
  try {
    enqueued->event->take("a stream");
  } catch (const c10::Error& error) {
    report_host_failure(enqueued->device, error.what_without_backtrace());
  }
}

}  // namespace

void NamedEvent::take(const std::string& who) {
  const auto taken = event.take(limit);
  if (taken == driver::HostEvent::Taken::kYes) return;
  const double seconds = std::chrono::duration<double>(limit).count();
  TORCH_CHECK(taken != driver::HostEvent::Taken::kReset, "the ", name, " was reset while ", who,
              " waited for it");
  TORCH_CHECK(false, "the ", name, " was not recorded within ", seconds, " s, and ", who,
              " waits for it: call record() once for every replay, from another thread or stream. "
              "reset() forgets the records that have not come");
}

EventNode::EventNode(std::string scope, std::shared_ptr<NamedEvent> event, Action action)
    : Node(action == Action::kWait ? "wait_event" : "record_event", std::move(scope), nullptr),
      event_(std::move(event)),
      action_(action) {}

void EventNode::arm(std::string next) {
  next_ = std::move(next);
  armed_ = true;
}

void EventNode::run(Replay&) {
  if (!armed_) return;
  if (action_ == Action::kRecord) return event_->event.record();
  event_->take(next_.empty() ? "the end of a captured graph" : next_);
}

// The record was for this replay: the next one does not take it.
void EventNode::skip() noexcept {
  if (armed_ && action_ == Action::kWait) event_->event.skip();
}

void arm_events(const std::vector<std::unique_ptr<Node>>& nodes) {
  const Node* next = nullptr;
  for (const auto& node : std::views::reverse(nodes)) {
    if (auto* event = dynamic_cast<EventNode*>(node.get())) {
      event->arm(next == nullptr ? "" : next->description());
    } else {
      next = node.get();
    }
  }
}

void enqueue(const std::shared_ptr<NamedEvent>& event, EventNode::Action action,
             c10::DeviceIndex device) {
  const bringup_driver& driver = *active_driver();
  TORCH_CHECK(driver.host_func != nullptr, "the driver of device '", driver.device_name,
              "' has no host_func: record and wait without a stream");
  auto enqueued = std::make_unique<EnqueuedEvent>(EnqueuedEvent{event, action, device});
  check_driver(
      driver.host_func(device, current_driver_stream(device), &run_enqueued, enqueued.get()),
      "enqueueing an event");
  static_cast<void>(enqueued.release());
}

}  // namespace bringup::torch_ext::graphs
