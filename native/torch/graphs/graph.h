// A captured graph: its nodes, the memory they work in, and one way to run them.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "torch/graphs/node.h"
#include "torch/graphs/pool.h"

namespace bringup::torch_ext::graphs {

// Memory that predates the capture and that nodes use by its address.
struct Input {
  c10::Storage storage;  // kept alive
  const void* address;
  std::string what;  // "float32[2, 3], read by aten::mm"
};

// One value to write before the next replay.
struct Change {
  size_t node;
  size_t argument;
  HostValue value;
};

class Graph {
 public:
  Graph(std::shared_ptr<Pool> pool, std::vector<std::unique_ptr<Node>> nodes,
        std::vector<Input> inputs);

  // Runs all nodes in capture order. From any thread; replays of one graph never overlap. A node's
  // error is raised with the node named.
  void replay();

  // The first run: nodes settle how they keep their addresses.
  void validate();

  // Writes all changes; the next replay sees them.
  void write(const std::vector<Change>& changes);

  const std::vector<std::unique_ptr<Node>>& nodes() const { return nodes_; }
  size_t reserved_bytes() const { return pool_->reserved_bytes(); }

 private:
  void check_inputs() const;
  template <class Step>
  void run_all(Step&& step);

  std::mutex mutex_;
  std::shared_ptr<Pool> pool_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<Input> inputs_;
  Replay replay_;
};

}  // namespace bringup::torch_ext::graphs
