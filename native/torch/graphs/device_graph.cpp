#include "torch/graphs/device_graph.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "torch/devices/profiler.h"
#include "torch/graphs/errors.h"
#include "torch/graphs/foreign_node.h"
#include "torch/graphs/run_locks.h"

namespace bringup::torch_ext::graphs {

DeviceWork::DeviceWork(c10::DeviceIndex device) : device_(device) {
  check_driver(create_event(device, false, over_), "creating an event");
}

void DeviceWork::order_before() const {
  check_driver(active_driver()->event_wait(over_.get(), device_, current_driver_stream(device_)),
               "waiting for a graph's former work");
}

void DeviceWork::extend() const {
  check_driver(active_driver()->event_record(over_.get(), device_, current_driver_stream(device_)),
               "recording an event");
}

int32_t DeviceWork::wait() const noexcept { return wait_for_event(over_.get()); }

DeviceGraph::DeviceGraph(c10::DeviceIndex device, const std::vector<std::unique_ptr<Node>>& nodes,
                         Steps steps, Begin begin, Latch latch)
    : work_(std::make_shared<DeviceWork>(device)),
      steps_(std::move(steps)),
      begin_(std::move(begin)),
      latch_(std::move(latch)),
      nodes_(nodes) {
  const bringup_driver& driver = *active_driver();
  // A device whose code takes plain values alone has no kernels of the other form to add.
  const bool lacks_kernels = driver.graph_add_kernel == nullptr && driver.launch != nullptr;
  if (driver.graph_create == nullptr || driver.graph_launch == nullptr || lacks_kernels ||
      driver.graph_add_host_func == nullptr || driver.host_func == nullptr) {
    throw CaptureFailure("the driver of device '" + std::string(driver.device_name) +
                         "' has no device graphs (host_func and the graph_* functions of "
                         "bringup/driver.h)");
  }
  build();
}

DeviceGraph::DeviceGraph(const DeviceGraph& other, std::shared_ptr<DeviceRuns> runs)
    : work_(other.work_),
      steps_(other.steps_),
      begin_(other.begin_),
      latch_(other.latch_),
      nodes_(other.nodes_),
      runs_(std::move(runs)) {
  runs_->take_values();
  build();
}

DeviceGraph::~DeviceGraph() {
  if (in_forked_child()) return;  // the parent has it
  wait();
  destroy_parts();
}

void DeviceGraph::destroy_parts() noexcept {
  for (const Part& part : parts_) {
    if (part.graph != nullptr) active_driver()->graph_destroy(part.graph);
  }
}

bringup_graph DeviceGraph::graph() {
  const auto is_cut = [&] {
    const auto cut = cuts_.upper_bound(adding_);
    return cut != cuts_.begin() && *std::prev(cut) > parts_.back().first;
  };
  if (parts_.empty() || parts_.back().graph == nullptr || is_cut()) {
    bringup_graph made = nullptr;
    check_driver(active_driver()->graph_create(device(), &made), "creating a device graph");
    parts_.push_back({adding_, made});
    kernel_count_ = 0;
  }
  return parts_.back().graph;
}

// Nodes that one launch makes.
void DeviceGraph::add_kernel(size_t first, size_t last) {
  const Place place{graph(), kernel_count_++};
  for (size_t i = first; i < last; ++i) kernels_.emplace(i, place);
}

void DeviceGraph::build() {
  const bringup_driver& driver = *active_driver();
  try {
    check_driver(driver.graph_add_host_func(graph(), &begin, this), "building a device graph");
    cuts_ = cuts(nodes_);
    size_t first = 0;
    for (size_t i = 0; i < nodes_.size();) {
      if (cuts_.contains(i)) {
        add_span(first, i);
        first = i;
        if (auto* const control = dynamic_cast<ControlNode*>(nodes_[i].get())) {
          parts_.push_back({i, nullptr, nullptr, control});
          first = ++i;
          continue;
        }
      }
      if (!nodes_[i]->runs_on_device()) {
        ++i;
        continue;
      }
      add_span(first, i);
      adding_ = i;
      first = i = add_from(i);
    }
    add_span(first, nodes_.size());
  } catch (...) {
    destroy_parts();
    throw;
  }
}

size_t DeviceGraph::add_from(size_t node) {
  if (is_fused(node)) {
    const auto [first, count] = *runs_->nodes_of(node);
    const bringup_launch_values_args* const launch = runs_->launch(node);
    check_driver(active_driver()->graph_add_values(graph(), launch), launch->name);
    add_kernel(first, first + count);
    return first + count;
  }
  const size_t last = end_of_list(node);
  if (last == node + 1) {
    add_to_driver(node);
  } else {
    add_list(node, last);
  }
  return last;
}

std::set<size_t> DeviceGraph::cuts(const std::vector<std::unique_ptr<Node>>& nodes) {
  std::set<size_t> cuts;
  bool any_on_device = false;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto* const control = dynamic_cast<const ControlNode*>(nodes[i].get());
    if (control == nullptr) continue;
    const size_t target = *control->target();
    cuts.insert({i, i + 1, target});
    any_on_device |= !control->is_read_by_host();
    for (size_t k = std::min(i, target); k < std::max(i, target); ++k) {
      any_on_device |= nodes[k]->runs_on_device();
    }
  }
  return any_on_device ? cuts : std::set<size_t>();
}

void DeviceGraph::add_to_driver(size_t number) {
  const bringup_driver& driver = *active_driver();
  const Node& node = *nodes_[number];
  if (const auto copy = node.device_copy()) {
    return check_driver(driver.graph_add_copy(graph(), BRINGUP_DEVICE_TO_DEVICE, copy->target,
                                              copy->source, copy->bytes),
                        node.op().c_str());
  }
  if (const ForeignNode* call = node.captured_call()) return call->add_to(graph(), device());
  if (const KernelNode* call = node.host_entry()) return parts_.push_back({number, nullptr, call});
  if (const bringup_launch* launch = node.device_launch()) {
    check_driver(driver.graph_add_kernel(graph(), launch), launch->name);
  } else {
    const bringup_launch_values_args* values = node.device_values();
    check_driver(driver.graph_add_values(graph(), values), values->name);
  }
  add_kernel(number, number + 1);
}

size_t DeviceGraph::end_of_list(size_t first) const {
  const PackedCall* const begin = nodes_[first]->listed_call();
  // A driver that reads arguments when they are due would have to find those of one node.
  const bool changes = active_driver()->graph_update_kernel != nullptr;
  if (begin == nullptr || (nodes_[first]->device_launch() != nullptr && !changes)) return first + 1;
  const Variant& variant = *begin->listed;
  const size_t most = first + static_cast<size_t>(variant.list->calls);
  SeparateMemory memory;
  size_t i = first;
  for (; i < std::min(most, nodes_.size()) && nodes_[i]->runs_on_device(); ++i) {
    if (i > first && cuts_.contains(i)) break;
    const PackedCall* const call = nodes_[i]->listed_call();
    if (call == nullptr || call->listed != &variant || is_fused(i)) break;
    if (!memory.add(call->block, variant.results.size())) break;
  }
  return i;
}

const bringup_launch& DeviceGraph::launch_of(List& list) const {
  list.args.clear();
  list.kinds.clear();
  std::vector<Grid> grids;
  for (size_t i = list.first; i < list.last; ++i) {
    const bringup_launch& one = *nodes_[i]->device_launch();
    list.args.insert(list.args.end(), one.args, one.args + one.nargs);
    list.kinds.insert(list.kinds.end(), one.kinds, one.kinds + one.nargs);
    grids.push_back(nodes_[i]->listed_call()->grid);
  }
  const ListEntry& entry = *nodes_[list.first]->listed_call()->listed->list;
  const Grid grid = merge_grids(grids);
  list.launch = *nodes_[list.first]->device_launch();
  list.launch.nargs = static_cast<int32_t>(list.args.size());
  list.launch.args = list.args.data();
  list.launch.kinds = list.kinds.data();
  list.launch.fn = device_function(entry.kernel, device());
  list.launch.grid = grid.blocks;
  list.launch.work_items = grid.work_items;
  return list.launch;
}

PlainLaunch DeviceGraph::values_of(const List& list) const {
  std::vector<bringup_launch_values_args> calls;
  for (size_t i = list.first; i < list.last; ++i) calls.push_back(*nodes_[i]->device_values());
  return merge_values(*nodes_[list.first]->listed_call()->listed, device(), calls);
}

void DeviceGraph::add_list(size_t first, size_t last) {
  const bringup_driver& driver = *active_driver();
  List& list = *lists_.emplace_back(std::make_unique<List>(List{first, last, {}, {}, {}}));
  const std::string& op = nodes_[first]->op();
  if (nodes_[first]->device_values() != nullptr) {
    const PlainLaunch values = values_of(list);
    const bringup_launch_values_args arguments = values.arguments();
    check_driver(driver.graph_add_values(graph(), &arguments), op.c_str());
  } else {
    check_driver(driver.graph_add_kernel(graph(), &launch_of(list)), op.c_str());
  }
  add_kernel(first, last);
}

void DeviceGraph::update_list(List& list) {
  const bringup_driver& driver = *active_driver();
  const std::string& op = nodes_[list.first]->op();
  const auto [graph, number] = kernels_.at(list.first);
  if (nodes_[list.first]->device_values() == nullptr) {
    return check_driver(driver.graph_update_kernel(graph, number, &launch_of(list)), op.c_str());
  }
  const PlainLaunch values = values_of(list);
  const bringup_launch_values_args arguments = values.arguments();
  check_driver(driver.graph_update_values(graph, number, &arguments), op.c_str());
}

void DeviceGraph::add_span(size_t first, size_t last) {
  if (first == last) return;
  adding_ = first;
  spans_.push_back(std::make_unique<Span>(Span{this, first, last}));
  check_driver(active_driver()->graph_add_host_func(graph(), &run_span, spans_.back().get()),
               "building a device graph");
}

bool DeviceGraph::copies_arguments(size_t node) const {
  if (nodes_[node]->device_values() != nullptr || nodes_[node]->host_entry() != nullptr)
    return true;
  return nodes_[node]->device_launch() != nullptr &&
         active_driver()->graph_update_kernel != nullptr;
}

void DeviceGraph::update(size_t node) {
  const auto has = [&](const auto& list) { return list->first <= node && node < list->last; };
  const auto found = std::find_if(lists_.begin(), lists_.end(), has);
  if (found != lists_.end()) return update_list(**found);
  if (nodes_[node]->host_entry() != nullptr) return;  // it has them
  const bringup_driver& driver = *active_driver();
  const auto [graph, number] = kernels_.at(node);
  if (is_fused(node)) {
    runs_->take_values(node);
    const bringup_launch_values_args* const launch = runs_->launch(node);
    return check_driver(driver.graph_update_values(graph, number, launch), launch->name);
  }
  if (const bringup_launch_values_args* values = nodes_[node]->device_values()) {
    return check_driver(driver.graph_update_values(graph, number, values), values->name);
  }
  const bringup_launch* launch = nodes_[node]->device_launch();
  check_driver(driver.graph_update_kernel(graph, number, launch), launch->name);
}

std::vector<bringup_graph> DeviceGraph::driver_graphs() const {
  std::vector<bringup_graph> found;
  for (const Part& part : parts_) {
    if (part.graph != nullptr) found.push_back(part.graph);
  }
  return found;
}

void DeviceGraph::run_alone(size_t number) {
  const Node& node = *nodes_[number];
  const bringup_driver& driver = *active_driver();
  const bringup_stream stream = current_driver_stream(device());
  if (const auto copy = node.device_copy()) {
    check_driver(driver.copy_async(BRINGUP_DEVICE_TO_DEVICE, device(), copy->target, device(),
                                   copy->source, copy->bytes, stream),
                 "a copy of a captured graph");
  } else if (const ForeignNode* call = node.captured_call()) {
    call->call_again();
  } else if (const KernelNode* entry = node.host_entry()) {
    entry->call_host_entry();
  } else if (const bringup_launch_values_args* values = node.device_values()) {
    check_driver(driver.launch_values(device(), stream, values), values->name);
  } else {
    bringup_launch alone = *node.device_launch();
    alone.release = [](void*) {};  // the node owns it
    check_driver(driver.launch(device(), stream, &alone), alone.name);
  }
  synchronize_current_stream(device());
}

size_t DeviceGraph::run_compared(size_t node) {
  if (!is_fused(node)) return 0;
  runs_->run_compared(node, [this](size_t i) { run_alone(i); });
  return runs_->nodes_of(node)->second;
}

void DeviceGraph::begin(void* user) {
  auto& graph = *static_cast<DeviceGraph*>(user);
  graph.failed_ = false;
  graph.begin_();
}

void DeviceGraph::begin_numbered(void* numbered) {
  const auto& [graph, number] = *static_cast<const Numbered*>(numbered);
  graph->latch_(number);
}

void DeviceGraph::run_span(void* user) {
  const auto& span = *static_cast<const Span*>(user);
  DeviceGraph& graph = *span.graph;
  const auto inside = RunLocks::inside();
  size_t next = span.first;
  if (!graph.failed_) {
    std::string message;
    try {
      return graph.steps_(next, span.last);
    } catch (const c10::Error& error) {
      message = error.what_without_backtrace();
    } catch (const std::exception& error) {
      message = error.what();
    } catch (...) {
      message = "something that is no std::exception was thrown";
    }
    graph.failed_ = true;
    report_host_failure(graph.device(), "node " + std::to_string(next) + " of a captured graph, " +
                                            graph.nodes_[next]->description() +
                                            ", failed: " + message);
    ++next;
  }
  for (; next < span.last; ++next) graph.nodes_[next]->skip();
}

void DeviceGraph::launch(std::optional<uint64_t> number) {
  const bringup_driver& driver = *active_driver();
  work_->order_before();
  if (number) {
    Numbered& numbered = numbered_[*number % numbered_.size()];
    numbered = {this, *number};
    check_driver(
        driver.host_func(device(), current_driver_stream(device()), &begin_numbered, &numbered),
        "launching a captured graph");
  }
  std::exception_ptr failed;
  try {
    launch_parts();
  } catch (...) {
    failed = std::current_exception();
  }
  try {
    work_->extend();
  } catch (...) {
    wait_for_everything();  // it was launched, and its event does not tell of it
    throw;
  }
  if (failed) std::rethrow_exception(failed);
}

void DeviceGraph::launch_parts() {
  const ProfiledWork work("captured graph", current_stream(device()));
  for (size_t i = 0; i < parts_.size();) {
    const Part& part = parts_[i++];
    if (part.control != nullptr) {
      follow(i);
    } else if (part.host_entry != nullptr) {
      part.host_entry->call_host_entry();
    } else {
      check_driver(active_driver()->graph_launch(part.graph, current_driver_stream(device())),
                   "launching a captured graph");
    }
  }
}

// `part`: the one behind a choice, then the one that comes next.
void DeviceGraph::follow(size_t& part) {
  const Part& choice = parts_[part - 1];
  try {
    synchronize_current_stream(device());
    const auto next = choice.control->next();
    if (!next) return;
    part = static_cast<size_t>(std::ranges::lower_bound(parts_, *next, {}, &Part::first) -
                               parts_.begin());
  } catch (...) {
    for (size_t i = choice.first; i < nodes_.size(); ++i) nodes_[i]->skip();
    throw;
  }
}

void DeviceGraph::order_after() noexcept {
  try {
    work_->extend();
  } catch (const c10::Error& error) {
    report_host_failure(device(), error.what_without_backtrace());
  }
}

void DeviceGraph::finish_former() {
  check_driver(work_->wait(), "waiting for a graph's former launch");
}

void DeviceGraph::wait() noexcept {
  const int32_t status = work_->wait();
  if (status == BRINGUP_OK) return;
  // The driver may report a failure only once, and no caller can be given it here.
  report_host_failure(device(), driver_failure_text(status, "waiting for a captured graph"));
  if (status != BRINGUP_KERNEL_FAILED) wait_for_everything();
}

void DeviceGraph::wait_for_everything() noexcept {
  const int32_t status = wait_for_device(device());
  if (status == BRINGUP_KERNEL_FAILED) report_host_failure(device(), driver_error_text(status));
}

}  // namespace bringup::torch_ext::graphs
