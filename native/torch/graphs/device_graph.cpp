#include "torch/graphs/device_graph.h"

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <utility>

#include "torch/devices/profiler.h"
#include "torch/graphs/errors.h"
#include "torch/graphs/foreign_node.h"
#include "torch/graphs/run_locks.h"

namespace bringup::torch_ext::graphs {

namespace {

void record(const EventPtr& event, c10::DeviceIndex device) {
  check_driver(active_driver()->event_record(event.get(), device, current_driver_stream(device)),
               "recording an event");
}

void order_after(const EventPtr& event, c10::DeviceIndex device) {
  check_driver(active_driver()->event_wait(event.get(), device, current_driver_stream(device)),
               "waiting for a graph's former work");
}

}  // namespace

DeviceWork::DeviceWork(std::vector<c10::DeviceIndex> devices) : devices_(std::move(devices)) {
  check_driver(create_event(device(), false, over_), "creating an event");
  if (devices_.size() == 1) return;
  for (const auto device : devices_) {
    check_driver(create_event(device, false, reached_.emplace_back()), "creating an event");
  }
}

void DeviceWork::order_before() const {
  for (const auto device : devices_) order_after(over_, device);
}

void DeviceWork::extend() const {
  for (size_t i = 1; i < devices_.size(); ++i) hand_over(devices_[i], device());
  record(over_, device());
  for (size_t i = 1; i < devices_.size(); ++i) order_after(over_, devices_[i]);
}

void DeviceWork::hand_over(c10::DeviceIndex from, c10::DeviceIndex to) const {
  const auto place = std::ranges::find(devices_, from) - devices_.begin();
  const EventPtr& event = reached_.at(static_cast<size_t>(place));
  record(event, from);
  order_after(event, to);
}

int32_t DeviceWork::wait() const noexcept { return wait_for_event(over_.get()); }

DeviceGraph::DeviceGraph(const std::vector<c10::DeviceIndex>& devices,
                         const std::vector<std::unique_ptr<Node>>& nodes, Steps steps, Begin begin,
                         Latch latch, Draw draw)
    : work_(std::make_shared<DeviceWork>(devices)),
      steps_(std::move(steps)),
      begin_(std::move(begin)),
      latch_(std::move(latch)),
      draw_(std::move(draw)),
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
      draw_(other.draw_),
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
  if (inside_ != nullptr) return inside_;
  const auto is_cut = [&] {
    const auto cut = cuts_.upper_bound(adding_);
    return cut != cuts_.begin() && *std::prev(cut) > parts_.back().first;
  };
  const c10::DeviceIndex last = parts_.empty() ? device() : parts_.back().device;
  const bool is_kernel = adding_ < nodes_.size() && nodes_[adding_]->runs_on_device();
  const c10::DeviceIndex wanted = is_kernel ? nodes_[adding_]->device_index() : last;
  if (parts_.empty() || parts_.back().graph == nullptr || wanted != last || is_cut()) {
    bringup_graph made = nullptr;
    check_driver(active_driver()->graph_create(wanted, &made), "creating a device graph");
    parts_.push_back({adding_, wanted, made});
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
    cuts_ = cuts();
    for (size_t i = 0; i < nodes_.size() && !cuts_.empty(); ++i) {
      const ControlNode* const control = control_at(i);
      if (control == nullptr || !control->has_predicate()) continue;
      const size_t last = *control_at(*control->target() - 1)->target();
      const bool is_loop = last <= i;
      const size_t begin = is_loop ? last : i;
      constructs_.emplace(begin, Construct{begin, i, is_loop ? *control->target() : last, is_loop});
    }
    if (device_follows()) {
      inside_ = graph();
      return add_nodes(0, nodes_.size());
    }
    size_t first = 0;
    for (size_t i = 0; i < nodes_.size();) {
      if (cuts_.contains(i)) {
        add_span(first, i);
        first = i;
        if (auto* const control = dynamic_cast<ControlNode*>(nodes_[i].get())) {
          parts_.push_back({i, parts_.back().device, nullptr, nullptr, control});
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

const ControlNode* DeviceGraph::control_at(size_t node) const {
  return dynamic_cast<const ControlNode*>(nodes_[node].get());
}

bool DeviceGraph::needs_device(size_t first, size_t last) const {
  for (size_t i = first; i < last; ++i) {
    const ControlNode* const control = control_at(i);
    if (nodes_[i]->runs_on_device() || (control != nullptr && !control->is_read_by_host())) {
      return true;
    }
  }
  return false;
}

bool DeviceGraph::device_follows() const {
  if (active_driver()->graph_add_conditional == nullptr || cuts_.empty() || draw_ != nullptr ||
      work_->devices().size() > 1) {
    return false;
  }
  const auto is_between = [](const auto& node) { return node->is_between_graphs(); };
  return std::ranges::none_of(nodes_, is_between) &&
         std::ranges::all_of(constructs_, [this](const auto& entry) {
           const Construct& one = entry.second;
           return control_at(one.control)->on_device() != nullptr ||
                  !needs_device(one.begin, one.end);
         });
}

void DeviceGraph::add_nodes(size_t first, size_t last) {
  for (size_t i = first; i < last;) {
    const Construct* outermost = nullptr;
    const auto [begin, end] = constructs_.equal_range(i);
    for (auto entry = begin; entry != end; ++entry) {
      const Construct& one = entry->second;
      if (one.end <= last && (outermost == nullptr || one.end > outermost->end)) outermost = &one;
    }
    if (outermost != nullptr && !needs_device(i, outermost->end)) {
      i = outermost->end;
    } else if (outermost != nullptr) {
      add_span(first, i);
      add_construct(*outermost);
      first = i = outermost->end;
    } else if (nodes_[i]->runs_on_device()) {
      add_span(first, i);
      first = i = add_from(i);
    } else {
      ++i;
    }
  }
  add_span(first, last);
}

void DeviceGraph::add_construct(const Construct& one) {
  const bringup_driver& driver = *active_driver();
  const ControlNode& control = *control_at(one.control);
  const int32_t kind = one.is_loop ? BRINGUP_CONDITIONAL_WHILE : BRINGUP_CONDITIONAL_IF;
  bringup_graph first = nullptr;
  bringup_graph second = nullptr;
  check_driver(driver.graph_add_conditional(inside_, kind, control.on_device(), &first, &second),
               control.op().c_str());
  if (!one.is_loop) {
    add_inside(first, one.control + 1, *control.target() - 1);
    return add_inside(second, *control.target(), one.end);
  }
  const size_t spans = spans_.size();
  add_inside(first, one.begin, one.control);
  add_inside(second, one.control + 1, one.end - 1);
  if (spans_.size() == spans) return;
  loops_.push_back(std::make_unique<Loop>(Loop{this, &control}));
  check_driver(driver.graph_add_host_func(first, &end_if_failed, loops_.back().get()),
               control.op().c_str());
}

void DeviceGraph::add_inside(bringup_graph graph, size_t first, size_t last) {
  const auto back = c10::make_scope_exit(
      [this, outer = std::exchange(inside_, graph), count = std::exchange(kernel_count_, 0)] {
        inside_ = outer;
        kernel_count_ = count;
      });
  add_nodes(first, last);
}

// Nodes of the host that come later are left out, and might be what ends the loop.
void DeviceGraph::end_if_failed(void* user) {
  const auto& loop = *static_cast<const Loop*>(user);
  if (loop.graph->failed_) loop.control->set_false();
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

// Numbers of a kernel are arguments, and of host operators taken as they run: where their order is
// known at run time only, a part begins with each kernel that draws.
std::set<size_t> DeviceGraph::cuts() const {
  std::set<size_t> cuts;
  bool any_on_device = draw_ != nullptr;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (draw_ != nullptr && nodes_[i]->draws()) cuts.insert(i);
    const ControlNode* const control = control_at(i);
    if (control == nullptr) continue;
    const size_t target = *control->target();
    cuts.insert({i, i + 1, target});
    any_on_device |= !control->is_read_by_host();
    for (size_t k = std::min(i, target); k < std::max(i, target); ++k) {
      any_on_device |= nodes_[k]->runs_on_device();
    }
  }
  return any_on_device ? cuts : std::set<size_t>();
}

void DeviceGraph::add_to_driver(size_t number) {
  const bringup_driver& driver = *active_driver();
  Node& node = *nodes_[number];
  if (node.is_between_graphs()) {
    const c10::DeviceIndex on = node.device_index();  // none: it has no tensor of a device
    return parts_.push_back({number, on < 0 ? parts_.back().device : on, nullptr, &node});
  }
  if (const auto copy = node.device_copy()) {
    return check_driver(driver.graph_add_copy(graph(), BRINGUP_DEVICE_TO_DEVICE, copy->target,
                                              copy->source, copy->bytes),
                        node.op().c_str());
  }
  const c10::DeviceIndex on = node.device_index();
  if (const ForeignNode* call = node.captured_call()) return call->add_to(graph(), on);
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
    if (nodes_[i]->device_index() != nodes_[first]->device_index()) break;
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
  list.launch.fn = device_function(entry.kernel, nodes_[list.first]->device_index());
  list.launch.grid = grid.blocks;
  list.launch.work_items = grid.work_items;
  return list.launch;
}

PlainLaunch DeviceGraph::values_of(const List& list) const {
  std::vector<bringup_launch_values_args> calls;
  for (size_t i = list.first; i < list.last; ++i) calls.push_back(*nodes_[i]->device_values());
  const Node& first = *nodes_[list.first];
  return merge_values(*first.listed_call()->listed, first.device_index(), calls);
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
  if (nodes_[node]->device_values() != nullptr || nodes_[node]->is_between_graphs()) return true;
  return nodes_[node]->device_launch() != nullptr &&
         active_driver()->graph_update_kernel != nullptr;
}

void DeviceGraph::update(size_t node) {
  const auto has = [&](const auto& list) { return list->first <= node && node < list->last; };
  const auto found = std::find_if(lists_.begin(), lists_.end(), has);
  if (found != lists_.end()) return update_list(**found);
  if (nodes_[node]->is_between_graphs()) return;  // it has them
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
  Node& node = *nodes_[number];
  const bringup_driver& driver = *active_driver();
  const c10::DeviceIndex device = node.device_index() < 0 ? this->device() : node.device_index();
  const bringup_stream stream = current_driver_stream(device);
  if (const auto copy = node.device_copy()) {
    check_driver(driver.copy_async(BRINGUP_DEVICE_TO_DEVICE, device, copy->target, device,
                                   copy->source, copy->bytes, stream),
                 "a copy of a captured graph");
  } else if (const ForeignNode* call = node.captured_call()) {
    call->call_again();
  } else if (node.is_between_graphs()) {
    run_between_graphs(node, number, device);
  } else if (const bringup_launch_values_args* values = node.device_values()) {
    check_driver(driver.launch_values(device, stream, values), values->name);
  } else {
    bringup_launch alone = *node.device_launch();
    alone.release = [](void*) {};  // the node owns it
    check_driver(driver.launch(device, stream, &alone), alone.name);
  }
  synchronize_current_stream(device);
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
    if (work_->devices().size() > 1) work_->extend();  // all is over before any part begins
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
  now_ = device();
  for (size_t i = 0; i < parts_.size();) {
    const size_t first = parts_[i].first;
    try {
      launch_part(i);
    } catch (...) {
      for (size_t i = parts_.size() == 1 ? nodes_.size() : first; i < nodes_.size(); ++i) {
        nodes_[i]->skip();
      }
      throw;
    }
  }
}

// `next`: the part, then the one that comes next.
void DeviceGraph::launch_part(size_t& next) {
  const Part& part = parts_[next++];
  if (part.control != nullptr) return follow(next);
  if (part.device != now_) work_->hand_over(std::exchange(now_, part.device), part.device);
  if (draw_ != nullptr && nodes_[part.first]->draws()) {
    synchronize_current_stream(now_);
    draw_(part.first);
  }
  if (part.between != nullptr) return run_between_graphs(*part.between, part.first, now_);
  check_driver(active_driver()->graph_launch(part.graph, current_driver_stream(now_)),
               "launching a captured graph");
}

void DeviceGraph::run_between_graphs(Node& node, size_t number, c10::DeviceIndex device) {
  try {
    if (node.waits_for_stream()) synchronize_current_stream(device);
    node.run_between_graphs();
  } catch (c10::Error& error) {
    error.add_context("in node " + std::to_string(number) +
                      " of a captured graph: " + node.description());
    throw;
  }
}

// `next`: the part behind a choice, then the one that comes next.
void DeviceGraph::follow(size_t& next) {
  synchronize_current_stream(now_);
  const auto node = parts_[next - 1].control->next();
  if (!node) return;
  next = static_cast<size_t>(std::ranges::lower_bound(parts_, *node, {}, &Part::first) -
                             parts_.begin());
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
  for (const auto device : work_->devices()) {
    const int32_t status = wait_for_device(device);
    if (status == BRINGUP_KERNEL_FAILED) report_host_failure(device, driver_error_text(status));
  }
}

}  // namespace bringup::torch_ext::graphs
