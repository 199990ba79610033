// Nodes that wait for an event of the host, or record it, at their place in a replay.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "driver/host_event.h"
#include "torch/graphs/node.h"

namespace bringup::torch_ext::graphs {

// An event, how messages call it, and how long a wait for it may last.
struct NamedEvent {
  driver::HostEvent event;
  std::string name;
  std::chrono::nanoseconds limit;

  // Takes the next record. Raises c10::Error when it does not come; `who` waits.
  void take(const std::string& who);
};

class EventNode final : public Node {
 public:
  enum class Action : uint8_t { kWait, kRecord };

  EventNode(std::string scope, std::shared_ptr<NamedEvent> event, Action action);

  // The capture is over. `next`: what runs after it, for messages. Until then a run does nothing.
  void arm(std::string next);

  void run(Replay& replay) override;
  void validate(Replay&) override {}
  void skip() noexcept override;
  void visit_accesses(const AccessVisitor&) const override {}
  const char* kind() const override { return "event"; }
  const char* method() const override { return action_ == Action::kWait ? "wait" : "record"; }

 private:
  const std::shared_ptr<NamedEvent> event_;
  const Action action_;
  std::string next_;
  bool armed_ = false;
};

// At the end of a capture.
void arm_events(const std::vector<std::unique_ptr<Node>>& nodes);

// On the host in the order of the device's current stream; a failure is raised by the next
// synchronisation.
void enqueue(const std::shared_ptr<NamedEvent>& event, EventNode::Action action,
             c10::DeviceIndex device);

}  // namespace bringup::torch_ext::graphs
