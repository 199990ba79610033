#include "torch/graphs/graph.h"

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <ranges>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "torch/common/written_arguments.h"
#include "torch/devices/driver.h"
#include "torch/graphs/eager_node.h"
#include "torch/graphs/errors.h"
#include "torch/graphs/host_operators.h"
#include "torch/graphs/outside_capture.h"
#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {
namespace {

// Replay runs below autograd and sees no mode, no autocast and no recorder, whatever the caller has
// switched on.
class ReplayDispatch {
 public:
  ReplayDispatch()
      : guard_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
               c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
                   kUnseenKeys) {}

 private:
  c10::impl::ForceDispatchKeyGuard guard_;
};

// Around nodes that run on this thread.
class ReplayScope {
 public:
  explicit ReplayScope(Replay& replay) : interceptor_(&replay.interceptor) {
    replay.interceptor = ReplayInterceptor();
    replay.context = &context_;
  }

 private:
  ReplayDispatch dispatch_;
  InterceptorScope interceptor_;
  runtime::HostContext context_;
};

const char* const kDisturbed =
    "another thread called replay() while CapturedGraph.run was under way, and may have written the"
    " inputs: use run in every thread";

const char* const kWithinItself =
    "CapturedGraph.run: the graph is in the middle of a run, and cannot run inside of it";

[[noreturn]] void refuse_change(const std::string& change) {
  throw CaptureFailure(
      "since the graph was captured, " + change +
      ": a replay would not give what the model gives now. Put it back, or capture again (reset() "
      "first); refresh() takes an optimizer's loaded state; weights that are not frozen may change "
      "in place (copy_, load_state_dict without "
      "assign)");
}

}  // namespace

Graph::Graph(std::shared_ptr<Pool> pool, std::vector<std::unique_ptr<Node>> nodes, Inputs inputs,
             const std::vector<c10::DeviceIndex>& devices, bool copies_to_host, GraphRandom random,
             int level, int64_t verify)
    : pool_(std::move(pool)),
      nodes_(std::move(nodes)),
      values_(nodes_, std::move(inputs)),
      random_(std::move(random)) {
  for (const auto& node : nodes_) {
    auto* const eager = dynamic_cast<EagerCall*>(node.get());
    if (eager != nullptr && !devices.empty()) eager->set_between_graphs(random_.draws());
    is_unvalidated_.push_back(!node->runs_on_device());
    unvalidated_ += is_unvalidated_.back();
  }
  replay_.pool = pool_;
  replay_.level = level;
  replay_.verify = verify;
  if (devices.empty()) return;
  shares_host_memory_ = copies_to_host || values_.inputs().any_on_host();
  DeviceGraph::Draw draw;
  if (random_.at_run_time()) draw = [this](size_t node) { take_random_numbers(node); };
  device_graph_ = std::make_unique<DeviceGraph>(
      devices, nodes_, [this](size_t& next, size_t last) { run_span(next, last); },
      [this] { launched_ = fused_.begin(); }, [this](uint64_t launch) { latch(launch); },
      std::move(draw));
  std::vector<bool> copied(nodes_.size());
  for (size_t i = 0; i < copied.size(); ++i) copied[i] = device_graph_->copies_arguments(i);
  values_.set_copied(std::move(copied));
}

void Graph::take_given(std::shared_ptr<Watch> watch, WrittenVersions versions) {
  watch_ = std::move(watch);
  versions_ = std::move(versions);
}

Gradients::Moved Graph::check_given() { return check_gradients(watch_->change()); }

Gradients::Moved Graph::check_gradients(std::optional<std::string> change) {
  Gradients::Moved moved;
  if (!change) {
    const auto known = [this](const at::Tensor& tensor) {
      return watch_->reads(tensor) || owns(tensor);
    };
    change = gradients_.change(known, moved);
  }
  if (change) refuse_change(*change);
  return moved;
}

void Graph::refresh_given() { check_gradients(watch_->refresh()); }

void Graph::replay() {
  pool_->begin_use();
  try {
    run_all(false);
  } catch (...) {
    pool_->end_use();
    throw;
  }
  if (const auto refused = pool_->end_use()) throw CaptureFailure(*refused);
}

std::vector<at::Tensor> Graph::run(const RunLocks& run_locks, std::vector<InputCopy> inputs,
                                   const std::vector<at::Tensor>& results,
                                   const std::function<void()>& before) {
  const auto me = std::this_thread::get_id();
  if (runner_.load() == me) throw CaptureFailure(kWithinItself);
  PoolTurn::check(pool_->memory());  // before locks
  const RunLocks::Held held(run_locks);
  const PoolTurn turn(pool_->shared_memory());
  const auto inside = RunLocks::inside();
  runner_.store(me);
  const auto over = c10::make_scope_exit([&] { runner_.store(std::thread::id()); });
  std::vector<at::Tensor> copies;
  begin_run(held);
  try {
    if (before) before();
    check_replaced();
    copy_in(std::move(inputs));
    run_all(false);
    for (const at::Tensor& result : results) copies.push_back(own_copy(result));
  } catch (...) {
    restore_slots();
    end_run(held);
    throw;
  }
  if (end_run(held)) throw CaptureFailure(kDisturbed);
  return copies;
}

void Graph::begin_run(const RunLocks::Held& held) {
  pool_->begin_use();
  try {
    if (device_graph_ == nullptr) return;  // graphs of the device wait where they have its memory
    held.order_after_former(*device_graph_->work());
  } catch (...) {
    pool_->end_use();
    throw;
  }
}

std::optional<std::string> Graph::end_run(const RunLocks::Held& held) noexcept {
  if (device_graph_ != nullptr) {
    device_graph_->order_after();
    held.release(device_graph_->work());
  }
  return pool_->end_use();
}

// What other graphs of the pool have enqueued comes before.
void Graph::follow_pool() const {
  const auto former = pool_->memory().work();
  const auto* own = device_graph_ == nullptr ? nullptr : device_graph_->work().get();
  if (former == nullptr || former.get() == own) return;
  if (own != nullptr && own->device() == former->device()) return former->order_before();
  check_driver(former->wait(), "waiting for another graph of the memory pool");
}

at::Tensor Graph::unowned(const at::Tensor& tensor) const {
  Block* block = pool_->find(tensor.storage());
  return block == nullptr ? tensor : shallow_copy(tensor, alias_storage(*block));
}

bool Graph::writes(const at::Tensor& tensor) const { return any_access(tensor, true); }

bool Graph::knows(const at::Tensor& tensor) const {
  return owns(tensor) || any_access(tensor, false);
}

void Graph::visit_accesses(const AccessVisitor& visit) const {
  const auto lock = values_.lock();
  for (const auto& node : nodes_) node->visit_accesses(visit);
}

bool Graph::any_access(const at::Tensor& tensor, bool only_writes) const {
  const void* address = address_of(tensor.storage());
  if (address == nullptr) return false;  // empty
  bool found = false;
  for (const auto& node : nodes_) {
    node->visit_accesses([&](const at::Tensor& accessed, bool writes) {
      found |= (writes || !only_writes) && address_of(accessed.storage()) == address;
    });
    if (found) break;
  }
  return found;
}

void Graph::validate() {
  run_all(true);
  if (device_graph_ != nullptr) synchronize_current_stream(device_graph_->device());
}

template <class Run>
void Graph::run_on_host(Run&& run) {
  const auto over = c10::make_scope_exit([this] { replay_.generators.clear(); });
  size_t position = 0;
  const auto skip_others = c10::make_scope_exit([&] {
    while (++position < nodes_.size()) nodes_[position]->skip();
  });
  try {
    while (position < nodes_.size()) position = run(position);
  } catch (c10::Error& error) {
    error.add_context("in node " + std::to_string(position) +
                      " of a captured graph: " + nodes_[position]->description());
    throw;
  }
}

// What comes before the nodes of a replay; the number of its launch where it has changes.
std::optional<uint64_t> Graph::prepare_launch(bool validating) {
  drop_retired();
  check_inputs();
  take_random_numbers();
  follow_pool();
  pool_->about_to_write();
  if (!validating) versions_.bump();
  wait_for_room();
  return stage_for_launch();
}

void Graph::run_all(bool validating) {
  const std::lock_guard lock(mutex_);
  const auto launch = prepare_launch(validating);
  if (device_graph_ != nullptr) {
    update_device();
    note_stream();
    const bool fused = fused_graph_ != nullptr && fused_graph_->fits();
    if (fused && compares_kernels()) {
      wait_before_nodes();
      if (launch) latch(*launch);
      run_compared();
    } else {
      (fused ? *fused_graph_ : *device_graph_).launch(launch);
    }
    pool_->memory().set_work(device_graph_->work());
    pool_->wrote();
    // As after the operators themselves: the host may write what they read, and read the results.
    if (random_.draws_on_host() || random_.at_run_time() || shares_host_memory_) {
      device_graph_->finish_former();
    }
    return;
  }
  if (launch) latch(*launch);
  ReplayScope scope(replay_);
  const std::function<void(size_t)> run_one = [&](size_t i) { run_node(i); };
  FusedRuns* const fused = fused_.begin();
  run_on_host([&](size_t position) { return run_next(position, fused, run_one); });
  pool_->wrote();
}

size_t Graph::run_next(size_t position, FusedRuns* fused,
                       const std::function<void(size_t)>& run_one) {
  const size_t done = fused == nullptr ? 0 : fused->run(position, replay_, run_one);
  if (done > 0) return position + done;
  run_one(position);
  if (C10_LIKELY(!replay_.jump)) return position + 1;
  return *std::exchange(replay_.jump, std::nullopt);
}

void Graph::run_span(size_t& next, size_t last) {
  ReplayScope scope(replay_);
  const std::function<void(size_t)> run_one = [&](size_t i) { run_node(i); };
  while (next < last) next = run_next(next, launched_, run_one);
}

void Graph::wait_before_nodes() {
  device_graph_->finish_former();
  synchronize_current_stream(device_graph_->device());
}

// A node, or what does the work of several, which is waited for.
size_t Graph::run_waiting(size_t position, FusedRuns* fused) {
  if (!nodes_[position]->runs_on_device()) {
    return run_next(position, fused, [this](size_t i) { run_node(i); });
  }
  if (random_.at_run_time() && nodes_[position]->draws()) take_random_numbers(position);
  device_graph_->run_alone(position);
  return position + 1;
}

// In place of a launch: what generated kernels write is compared with what their nodes do.
void Graph::run_compared() {
  FusedRuns* const fused = fused_.begin();
  ReplayScope scope(replay_);
  run_on_host([&](size_t position) {
    const size_t done = fused_graph_->run_compared(position);
    return done > 0 ? position + done : run_waiting(position, fused);
  });
}

std::vector<Graph::NodeTime> Graph::replay_timed() {
  std::vector<NodeTime> times;
  pool_->begin_use();
  try {
    const std::lock_guard lock(mutex_);
    const auto launch = prepare_launch(false);
    if (device_graph_ != nullptr) {
      wait_before_nodes();
      update_device();
      note_stream();
    }
    if (launch) latch(*launch);
    using Clock = std::chrono::steady_clock;
    const auto first = Clock::now();
    const auto since = [&] { return std::chrono::nanoseconds(Clock::now() - first).count(); };
    ReplayScope scope(replay_);
    run_on_host([&](size_t position) {
      const int64_t begin = since();
      const size_t next = run_waiting(position, nullptr);
      times.push_back({position, begin, since()});
      return next;
    });
    pool_->wrote();
  } catch (...) {
    pool_->end_use();
    throw;
  }
  if (const auto refused = pool_->end_use()) throw CaptureFailure(*refused);
  return times;
}

Graph::MemoryUse Graph::memory_use() const {
  MemoryUse use{};
  for (const auto& block : pool_->live_blocks()) use.results += block->capacity;
  use.intermediates = pool_->bytes() - use.results;
  use.shared = pool_->memory().shared_bytes(*pool_);
  for (const auto& node : nodes_) {
    const auto* constant = dynamic_cast<const ConstantNode*>(node.get());
    if (constant != nullptr) use.constants += constant->content().nbytes();
  }
  const auto lock = values_.lock();
  values_.inputs().for_each([&](const c10::Storage& storage) { use.inputs += storage.nbytes(); });
  return use;
}

void Graph::wait_for_room() {
  const auto launches = values_.full();
  if (!launches) return;
  device_graph_->finish_former();
  latch(*launches);  // a device that failed has dropped some of them
}

// From here on an update is for the next launch. The number of this one where it has changes.
std::optional<uint64_t> Graph::stage_for_launch() {
  const std::lock_guard update(update_mutex_);
  former_.clear();
  return values_.begin_launch();
}

// What the driver refuses is handed to it again before the next launch.
void Graph::update_device() {
  while (const auto node = values_.stale()) {
    update_device(*node);
    values_.forget_stale(*node);
  }
  for (size_t i = 0; i < nodes_.size() && !random_.at_run_time(); ++i) {
    if (nodes_[i]->draws() && device_graph_->copies_arguments(i)) update_device(i);
  }
}

void Graph::update_device(size_t node) {
  device_graph_->update(node);
  if (fused_graph_ != nullptr) fused_graph_->update(node);
}

// With mutex_. Launches that read a tensor may still be under way: its memory waits for their
// streams.
void Graph::drop_retired() {
  const std::vector<at::Tensor> dropped = values_.take_retired();
  for (const at::Tensor& tensor : dropped) {
    if (!tensor.is_privateuseone()) continue;
    const c10::impl::VirtualGuardImpl device(c10::kPrivateUse1);
    for (const c10::Stream& stream : streams_) {
      if (stream.device() != tensor.device()) continue;
      device.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
    }
  }
}

void Graph::note_stream() {
  const c10::impl::VirtualGuardImpl guard(c10::kPrivateUse1);
  for (const auto device : device_graph_->work()->devices()) {
    const c10::Stream stream = guard.getStream({c10::kPrivateUse1, device});
    if (std::ranges::find(streams_, stream) == streams_.end()) streams_.push_back(stream);
  }
}

// Numbers are taken when a replay is asked for, whenever the device comes to it: seeding afterwards
// does not change them.
void Graph::take_random_numbers() {
  if (!random_.draws()) return;
  if (device_graph_ != nullptr) device_graph_->finish_former();
  replay_.generators.clear();  // else this graph alone could keep a generator alive
  replay_.generators = random_.reserve();
  for (const auto& node : nodes_) {
    if (const auto draws = node->draws(); draws && !random_.at_run_time()) {
      node->draw_from(random_.take(replay_.generators, *draws));
    }
  }
}

// Of one node, right before it runs; nothing of the graph does.
void Graph::take_random_numbers(size_t node) {
  nodes_[node]->draw_from(random_.take(replay_.generators, *nodes_[node]->draws()));
  if (device_graph_->copies_arguments(node)) update_device(node);
}

void Graph::latch(uint64_t launch) {
  values_.latch(launch);
  fused_.values_changed();
}

void Graph::run_node(size_t position) {
  Node& node = *nodes_[position];
  if (C10_LIKELY(unvalidated_ == 0) || !is_unvalidated_[position]) return node.run(replay_);
  node.validate(replay_);
  is_unvalidated_[position] = false;
  --unvalidated_;
}

void Graph::check_inputs() const {
  const auto lock = values_.lock();
  const auto moved = values_.inputs().moved();
  TORCH_CHECK(!moved, "a tensor that the graph captured (", *moved,
              ") has other memory now, it was resized or swapped: capture again");
}

void Graph::check(const Changes& changes, const std::vector<HostValue>& as_read) const {
  const ReplayDispatch dispatch;
  std::vector<size_t> order(changes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return changes[i].node; });
  for (auto next = order.begin(); next != order.end();) {
    const size_t node = changes[*next].node;
    const std::vector<c10::IValue> former = values_.next_arguments(node);
    std::vector<c10::IValue> arguments = former;
    for (; next != order.end() && changes[*next].node == node; ++next) {
      arguments[changes[*next].argument] = as_read[*next];
    }
    const c10::FunctionSchema* schema = nodes_[node]->schema();
    TORCH_CHECK(schema == nullptr || evaluates(*schema, arguments) == evaluates(*schema, former),
                nodes_[node]->op(), ": whether it writes running statistics stays as captured");
    nodes_[node]->check_arguments(arguments, former);
  }
}

// A kernel that reads what it writes gives anything, and so does one that reads what operators
// before it have in their results' place.
void Graph::check_overlap(const Change& change) const {
  const Node& node = *nodes_[change.node];
  const auto which = [&] {
    return "argument '" + node.schema()->arguments()[change.argument].name() + "' of " + node.op();
  };
  for_each_tensor(change.value, [&](const at::Tensor& given) {
    const auto lock = values_.lock();
    node.visit_accesses([&](const at::Tensor& tensor, bool writes) {
      TORCH_CHECK(!writes || !shares_bytes(tensor, given), which(),
                  " would be memory that this call writes");
    });
    TORCH_CHECK(!pool_->writes(given.storage().data(), given.storage().nbytes()), which(),
                " would be memory that the graph itself writes in every replay",
                owns(given) ? "" : " (it shares its pool with the tensor's graph)",
                ": copy the tensor (clone())");
  });
}

void Graph::check_replaced() const {
  const auto lock = values_.lock();
  for (const at::Tensor& input : run_inputs_) {
    if (!values_.inputs().is_replaced(input.storage())) continue;
    throw CaptureFailure("CapturedGraph.run: an operator that read the input " + describe(input) +
                         " reads another tensor since an update: give the slot its captured tensor "
                         "again, or use replay()");
  }
}

// A tensor as the node has it: without its history, and on a driver's device as the host sees it
// where the node runs there. That keeps no memory, which goes in the order of streams.
HostValue Graph::as_node_reads(size_t node, const HostValue& value) const {
  const bool on_host = device_graph_ != nullptr && !nodes_[node]->runs_on_device();
  return map_tensors(value, [&](const at::Tensor& tensor) {
    const at::Tensor own = shallow_copy(tensor);
    return on_host ? HostSide(false).view(own) : own;
  });
}

void Graph::forget_replaced() {
  for (const c10::Storage& storage : values_.take_replaced()) watch_->forget(storage);
}

void Graph::write(Changes& changes) {
  // A replay that has not launched yet may read what a former update has exchanged: it drops that.
  if (std::unique_lock idle(mutex_, std::try_to_lock); idle) drop_retired();
  const std::lock_guard update(update_mutex_);
  values_.drop_present(changes);
  std::vector<HostValue> as_read;
  for (const Change& change : changes) {
    check_overlap(change);
    as_read.push_back(as_node_reads(change.node, change.value));
  }
  check(changes, as_read);
  const bool by_run = runner_.load() == std::this_thread::get_id();
  for (const Change& change : changes) {
    if (by_run) {
      former_.push_back({change.node, change.argument, *host_value(change.node, change.argument)});
    } else {  // by another thread: it stays
      std::erase_if(former_, [&](const Change& former) {
        return former.node == change.node && former.argument == change.argument;
      });
    }
  }
  values_.stage(changes, std::move(as_read));
}

void Graph::restore_slots() {
  const std::lock_guard update(update_mutex_);
  for (Change& former : std::views::reverse(former_)) {
    values_.stage(former, {as_node_reads(former.node, former.value)});
  }
  former_.clear();
}

bool Graph::takes(size_t node, size_t argument, const std::vector<at::Tensor>& tensors) const {
  const auto lock = values_.lock();
  size_t next = 0;
  bool same = true;
  for_each_tensor(nodes_.at(node)->arguments().at(argument), [&](const at::Tensor& captured) {
    if (next >= tensors.size()) {
      same = false;
      return;
    }
    same = same && same_elements(tensors[next++], captured);
  });
  return same && next == tensors.size();
}

std::vector<std::vector<Access>> Graph::accesses() const {
  std::unordered_set<const void*> predating;
  std::unordered_map<const void*, size_t> numbers;
  std::vector<std::vector<Access>> all(nodes_.size());
  const auto lock = values_.lock();
  values_.inputs().for_each(
      [&](const c10::Storage& storage) { predating.insert(address_of(storage)); });
  for (size_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i]->visit_accesses([&](const at::Tensor& tensor, bool writes) {
      const void* address = address_of(tensor.storage());
      if (address == nullptr) return;
      const size_t number = numbers.try_emplace(address, numbers.size()).first->second;
      all[i].push_back({number, writes, predating.contains(address), describe_shape(tensor)});
    });
  }
  return all;
}

}  // namespace bringup::torch_ext::graphs
