// The streams of a capture. A replay runs all nodes in one stream, in the order of the capture, so
// all that matters is what the capturing stream does not wait for at the end.
#pragma once

#include <c10/core/Stream.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "torch/devices/stream_observer.h"

namespace bringup::torch_ext::graphs {

class StreamOrder final : public StreamObserver {
 public:
  void on_record(void* event, const c10::Stream& stream) override;
  void on_block(void* event, const c10::Stream& stream) override;
  // Throws CaptureError: while nothing is launched there is nothing to wait for.
  void on_host_wait(const char* what) override;
  bool captures(const c10::Stream& stream) const override { return nodes_.contains(stream); }

  // A node ran in this stream.
  void ran(const c10::Stream& stream, const std::string& op);
  // CaptureFailure when `last`, in which the capture ends, one stream of each device, do not wait
  // for all nodes.
  void check_joined(const std::vector<c10::Stream>& last) const;

 private:
  // How many nodes of each stream come before what follows.
  using Clock = std::unordered_map<c10::Stream, size_t>;
  struct Last {
    size_t count = 0;
    std::string op;
  };

  static void advance(Clock& clock, const Clock& other);

  std::unordered_map<c10::Stream, Clock> streams_;
  std::unordered_map<const void*, Clock> events_;
  std::unordered_map<c10::Stream, Last> nodes_;
};

}  // namespace bringup::torch_ext::graphs
