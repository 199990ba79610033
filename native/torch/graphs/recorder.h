// The recorder: sees every operator of one thread between begin() and finish(), runs it and keeps
// it as a node.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "torch/graphs/allocation_interceptors.h"
#include "torch/graphs/content_snapshot.h"
#include "torch/graphs/errors.h"
#include "torch/graphs/event_node.h"
#include "torch/graphs/foreign_memory.h"
#include "torch/graphs/generated_node.h"
#include "torch/graphs/graph.h"
#include "torch/graphs/host_operators.h"
#include "torch/graphs/inputs.h"
#include "torch/graphs/node.h"
#include "torch/graphs/operator_traits.h"
#include "torch/graphs/random_numbers.h"
#include "torch/graphs/restore.h"
#include "torch/graphs/shared_copies.h"
#include "torch/graphs/stream_order.h"
#include "torch/graphs/watch.h"

namespace bringup::torch_ext::graphs {

// What a run left behind in some memory: the part of it that nodes write. Between the elements of a
// result, or behind it, an operator may leave anything.
struct WrittenMemory {
  at::Tensor memory;
  at::Tensor content;  // a copy
  size_t writer;       // node
};

// Memory of calls that a driver captured, and other bytes than the run left there: what the
// captured stream does not write anew, since another one did, shows in what a replay gives.
class SpoiltMemory {
 public:
  explicit SpoiltMemory(const Graph& graph);
  // Before a replay.
  void spoil() const;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> spoilt_;
};

// Throws CaptureFailure for a tensor without fixed memory: of an argument, or a result where there
// is none.
void check_layout(const OperatorTraits& traits, const at::Tensor& tensor,
                  const c10::Argument* argument = nullptr);
// Throws CaptureFailure for a tensor of another backend: its kernels run in streams of their own,
// and its memory is none that a capture hands out.
void check_device(const OperatorTraits& traits, const at::Tensor& tensor);
// Throws CaptureFailure for a call of a kernel of another library, which `kernel` names.
[[noreturn]] void refuse_foreign(const std::string& name, const std::string& kernel);

class Recorder {
 public:
  // `handle`: whether a handler takes part in a call, and runs it then; true when it did.
  using Handle =
      std::function<bool(const c10::OperatorHandle& op, std::vector<c10::IValue>* stack)>;

  // `updatable`: operators with a registered handler, under any of their names; `hooked`: those
  // whose handler takes part in the capture.
  // `not_the_user`: beginnings of the names of files that users do not change.
  // `memory`: what is allocated comes from there; `name` says what is captured, for messages.
  Recorder(std::unordered_set<std::string> updatable, std::unordered_set<std::string> hooked,
           std::vector<std::string> not_the_user, Handle handle, std::shared_ptr<MemoryPool> memory,
           const std::string& name);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // The capture that runs on this thread, or null.
  static Recorder* current() noexcept;

  // What cannot be captured is handed to `note`, with the GIL, and runs on unrecorded: such a
  // capture has no graph.
  void note_failures(std::function<void(const CaptureFailure&)> note) { note_ = std::move(note); }
  // Whether it was handed on so.
  bool notes(const CaptureFailure& failure) const;
  // The operator that record() has refused, before or after it ran.
  void run_unrecorded(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                      std::vector<c10::IValue>* stack);

  // Whether the host arguments of every operator from here on can be updated.
  void set_all_updatable(bool all) { all_updatable_ = all; }
  // Autograd may record a gradient for what the capture computes: its backward is captured next.
  void accept_gradients() { accepts_gradients_ = true; }

  // Starts recording on this thread. CaptureFailure when a capture runs on it.
  void begin();
  // Stops recording, on the same thread. Idempotent.
  void stop() noexcept;
  // After stop(): the graph, with everything that the run changed put back. `level`,
  // `verify`: see Replay.
  std::unique_ptr<Graph> finish(int level, int64_t verify);
  // After stop(): puts back what the run changed.
  void abandon();

  // How many operators ran until now, views included.
  size_t seen() const { return seen_; }
  // Whether the tensor's memory was there before the capture.
  bool predates(const at::Tensor& tensor) const;
  // Whether a node of this capture writes it.
  bool is_written(const at::Tensor& tensor) const;

  // Storages that a tensor still has and that no node writes.
  std::vector<std::pair<uintptr_t, size_t>> unwritten() const;

  void set_scope(std::string scope) { scope_ = std::move(scope); }
  // While paused everything runs as if there were no capture: torch.compile works.
  void set_paused(bool paused);
  bool paused() const { return paused_; }
  // While an operator is recorded on this thread: the capture cannot end in the midst of it.
  [[nodiscard]] auto busy_scope() {
    ++depth_;
    return c10::make_scope_exit([this] { --depth_; });
  }
  bool busy() const { return depth_ > 0; }
  // A tensor that the captured code can reach: that nothing unseen writes it is checked at the end,
  // unless it has more than `most` bytes. Returns how many it read now.
  size_t remember(const at::Tensor& tensor, std::string name, size_t most);
  // An object from before the capture: where it is a buffer, operators may write its memory, as
  // they may that of tensors that were remembered before begin().
  void know_buffer(PyObject* object) { foreign_.know_buffer(object); }
  // A generator that the captured code can reach, after begin(): that only operators move it is
  // checked from here on, not from the first one on that draws from it.
  void watch_generator(const at::Generator& generator) { random_.watch(generator); }
  // What the graph takes as given. Stays with the graph.
  const std::shared_ptr<Watch>& watch() const { return watch_; }
  // Takes the content of `tensor` as it is now for a constant of the graph.
  void declare_constant(const at::Tensor& tensor);
  // Refuses reading values of `tensor` on the host.
  [[noreturn]] void refuse_host_read(const std::string& op, const at::Tensor& tensor) const;

  // What `op` is; the same object for the whole capture.
  const OperatorTraits& traits_of(const c10::OperatorHandle& op);
  // Runs `body`, autocast's own kernel. It casts parameters with gradients switched on, which is
  // not the user's wish.
  template <class Body>
  void within_autocast(Body&& body) {
    const std::optional<bool> former = gradients_wanted_;
    if (!gradients_wanted_) gradients_wanted_ = c10::GradMode::is_enabled();
    const auto back = c10::make_scope_exit([&] { gradients_wanted_ = former; });
    body();
  }
  // Whether a handler ran the call. What it calls itself is recorded as any other operator.
  bool handled(const OperatorTraits& traits, const c10::OperatorHandle& op,
               std::vector<c10::IValue>* stack);
  // Before begin(): which operators run eagerly in replays, between two pieces of the graph; by
  // their names, with or without overload, or as `predicate` says of a call that makes data.
  using Predicate =
      std::function<bool(const c10::OperatorHandle& op, std::vector<c10::IValue>* stack)>;
  void split_at(std::unordered_set<std::string> names, Predicate predicate) {
    split_names_ = std::move(names);
    predicate_ = std::move(predicate);
  }
  // Those of the names of which calls came.
  const std::set<std::string>& split_met() const { return met_; }
  bool splits_at(const OperatorTraits& traits, const c10::OperatorHandle& op,
                 std::vector<c10::IValue>* stack);
  void record_eager(const OperatorTraits& traits, const c10::OperatorHandle& op,
                    c10::DispatchKeySet keys, std::vector<c10::IValue>* stack);
  // Replays another graph, and does so in every replay.
  void record_replay(std::shared_ptr<Graph> graph);
  // Refuses a composite call that would read a tensor of which a replay may have another content.
  void check_read_by_address(const OperatorTraits& traits,
                             const std::vector<c10::IValue>& stack) const;
  // Refuses a call that ran where autograd records a gradient for its results, at the stack's end.
  void check_gradient(const OperatorTraits& traits, const std::vector<c10::IValue>& stack) const;
  // A call of an operator with a handler that becomes no node of its own.
  void note_without_node(const OperatorTraits& traits) {
    if (traits.updatable) without_node_.insert(traits.name);
  }
  const std::set<std::string>& handled_without_node() const { return without_node_; }
  size_t node_count() const { return nodes_.size(); }
  // Control flow, see control_flow.cpp. What lies between begin and end may run or not: `name` is
  // that of the construct, a branch is one of its stretches of nodes. Without `computes` the
  // operators of a branch are not run, their results have shapes alone.
  void begin_control(std::string name);
  void begin_branch(bool computes);
  void end_branch();
  // `exclusive`: one of the branches runs, so what all of them write is written.
  void end_control(bool exclusive);
  // Whether operators run now.
  bool computes() const;
  // A node that leads elsewhere, see ControlNode; its number.
  size_t add_control(const std::optional<at::Tensor>& predicate);
  void go_to(size_t control, size_t target);
  // Which node wrote the tensor's memory last.
  std::optional<size_t> writer(const at::Tensor& tensor) const;
  // Trips of a loop, behind the recorded one, have run.
  void repeated() { random_.repeated(); }
  // A wait for an event, or a record of it. A second wait for one that was not reset in between
  // would find the record there.
  void add_event(std::shared_ptr<NamedEvent> event, EventNode::Action action);
  void reset_event(const NamedEvent& event) { waited_for_.erase(&event); }
  // A generated kernel: checks before it is started, and its node afterwards.
  void prepare_launch(const PlainLaunch& launch, const std::vector<LaunchTensor>& tensors);
  void add_launch(PlainLaunch launch, std::vector<LaunchTensor> tensors);
  // One operator, from the dispatcher.
  void record(const OperatorTraits& traits, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
              std::vector<c10::IValue>* stack) {
    ran_ = false;
    record_and_run(traits, op, keys, stack);
    ran_ = false;
  }

 private:
  void record_and_run(const OperatorTraits& traits, const c10::OperatorHandle& op,
                      c10::DispatchKeySet keys, std::vector<c10::IValue>* stack);
  void check_arguments(const OperatorTraits& traits, const std::vector<c10::IValue>& args);
  void check_readable(const OperatorTraits& traits, const at::Tensor& tensor);
  void check_resize(const OperatorTraits& traits, const std::vector<c10::IValue>& args) const;
  void about_to_write(const OperatorTraits& traits, const at::Tensor& tensor);
  void note_views(const std::vector<c10::IValue>& args, c10::ArrayRef<c10::IValue> results);
  void mark_written(const at::Tensor& tensor);
  void mark_written(const OperatorTraits& traits, const std::vector<c10::IValue>& args,
                    c10::ArrayRef<c10::IValue> results);
  // Whether the call has a tensor of a device of the driver's, which the graph then uses.
  bool runs_on_device(const std::vector<c10::IValue>& args, c10::ArrayRef<c10::IValue> results);
  // The results at fixed addresses; nothing for a call that becomes no node.
  std::optional<std::vector<OperatorNode::Output>> outputs_of(const OperatorTraits& traits,
                                                              const std::vector<c10::IValue>& args,
                                                              c10::ArrayRef<c10::IValue> results,
                                                              bool on_device);
  static c10::Stream current_stream(c10::DeviceIndex device);
  // `made_of`: the kernel of another library that the operator called, if it is made of others.
  std::unique_ptr<Node> make_node(const OperatorTraits& traits, const c10::OperatorHandle& op,
                                  c10::DispatchKeySet keys, const std::vector<c10::IValue>& given,
                                  c10::ArrayRef<c10::IValue> results,
                                  std::vector<Allocation> allocations,
                                  const std::optional<std::string>& made_of);
  std::optional<NodeRandom> random_of(const OperatorTraits& traits, std::vector<c10::IValue>& args,
                                      bool on_device);
  std::unique_ptr<Node> make_copy_node(const OperatorTraits& traits,
                                       const std::vector<c10::IValue>& args,
                                       const std::vector<OperatorNode::Output>& outputs);
  std::unique_ptr<Node> make_fill_node(const OperatorTraits& traits,
                                       const std::vector<c10::IValue>& args,
                                       const std::vector<OperatorNode::Output>& outputs);
  // By the device's own kernel; null where it has none for this.
  std::unique_ptr<Node> make_copy_kernel(const OperatorTraits& traits, const at::Tensor& source,
                                         const at::Tensor& target);
  c10::IValue brought_in(const OperatorTraits& traits, const std::vector<c10::IValue>& args,
                         const c10::IValue& result,
                         std::unordered_set<const c10::StorageImpl*>& given) const;
  // What one call gives, in place of its arguments on the stack, from their shapes.
  void infer(const OperatorTraits& traits, const c10::OperatorHandle& op,
             std::vector<c10::IValue>* stack) const;
  bool copies_on_host() const;
  void check_contents();
  void check_seen() const;
  std::vector<WrittenMemory> written_memory() const;
  void check_replay(Graph& graph, const std::vector<WrittenMemory>& written,
                    const SpoiltMemory& spoilt) const;
  at::Tensor fixed(const OperatorTraits& traits, const at::Tensor& tensor);
  std::vector<c10::IValue> fixed_arguments(const OperatorTraits& traits,
                                           const std::vector<c10::IValue>& args,
                                           const std::vector<OperatorNode::Output>& outputs,
                                           bool is_kernel);
  void use_device(c10::DeviceIndex device);
  void add_constant(Block& block);
  // Everything that the run changed as it was.
  void put_back() const;

  // Nothing else uses the pool's memory from begin() on.
  void end_use() noexcept;

  std::shared_ptr<Pool> pool_;
  RecordingInterceptor interceptor_{pool_};
  std::unique_ptr<InterceptorScope> interceptor_scope_;
  std::vector<std::unique_ptr<Node>> nodes_;
  Inputs inputs_;
  std::unordered_map<const c10::StorageImpl*, SharedCopies> copies_;  // over what was before
  std::unordered_map<const void*, OperatorTraits> traits_;
  std::unordered_set<std::string> updatable_;
  std::unordered_set<std::string> hooked_;
  Handle handle_;
  SourceLines lines_;
  bool in_handler_ = false;
  std::unordered_set<std::string> split_names_;
  Predicate predicate_;  // or null
  std::set<std::string> met_;
  Restorer restorer_;
  Contents contents_;
  ForeignMemory foreign_;
  std::set<std::string> without_node_;
  // Of control flow under way, outer ones first.
  using Blocks = std::unordered_set<std::shared_ptr<Block>>;
  struct Control {
    std::string name;
    std::vector<c10::intrusive_ptr<c10::StorageImpl>> held;  // what another branch or trip may read
    bool computes = true;                                    // the branch that is recorded
    Blocks written_before;                                   // that branch
    std::vector<Blocks> written;                             // by each branch alone
  };
  std::vector<Control> controls_;
  std::shared_ptr<Watch> watch_ = std::make_shared<Watch>();
  WrittenVersions versions_;
  RandomRecorder random_;
  HostSide host_side_;
  bool copies_to_host_ = false;  // a node on the device writes memory of the host
  StreamOrder streams_;
  std::vector<c10::Stream> last_streams_;  // in which the capture ended
  std::vector<c10::DeviceIndex> devices_;  // the driver's, as nodes came to use them
  std::optional<c10::DeviceIndex> at_;     // that of the last operator, if on any
  std::unordered_set<const NamedEvent*> waited_for_;
  std::string scope_;
  std::optional<bool> gradients_wanted_;  // set while autocast's kernel runs
  size_t seen_ = 0;
  size_t depth_ = 0;  // of operators under way
  std::function<void(const CaptureFailure&)> note_;
  bool ran_ = false;              // the operator that record() could not record
  bool runs_other_code_ = false;  // which may write what no schema says
  bool accepts_gradients_ = false;
  bool all_updatable_ = false;
  bool active_ = false;
  bool uses_pool_ = false;
  bool paused_ = false;
};

}  // namespace bringup::torch_ext::graphs
