// Who wants to know, on its thread, what the user does with streams and events: a capture.
#pragma once

#include <c10/core/Stream.h>

namespace bringup::torch_ext {

class StreamObserver {
 public:
  virtual ~StreamObserver() = default;
  virtual void on_record(void* event, const c10::Stream& stream) = 0;
  // `stream` is going to wait for the event.
  virtual void on_block(void* event, const c10::Stream& stream) = 0;
  // The host is about to wait for work or to ask whether it is over; `what` is the call in the
  // user's words. May throw.
  virtual void on_host_wait(const char* what) = 0;
  // Whether work of this stream, which is not the current one, is captured.
  virtual bool captures(const c10::Stream& stream) const = 0;
};

// This thread's, or null.
StreamObserver* stream_observer() noexcept;
void set_stream_observer(StreamObserver* observer) noexcept;

}  // namespace bringup::torch_ext
