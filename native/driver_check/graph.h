// A device graph of a check, which goes back by itself.
#pragma once

#include "driver_check/context.h"

namespace bringup::driver_check {

class Graph : Held {
 public:
  explicit Graph(Context& context) : Held(context) { context.must<&D::graph_create>(0, &handle_); }
  ~Graph() { destroy(); }
  operator bringup_graph() const { return handle_; }
  void destroy() {
    if (handle_ == nullptr) return;
    context_.give_back<&D::graph_destroy>(handle_);
    handle_ = nullptr;
  }
  void add_copy(bringup_copy_kind kind, void* dst, const void* src, size_t bytes) {
    context_.must<&D::graph_add_copy>(handle_, kind, dst, src, bytes);
  }
  void launch(bringup_stream stream) { context_.must<&D::graph_launch>(handle_, stream); }

 private:
  bringup_graph handle_ = nullptr;
};

}  // namespace bringup::driver_check
