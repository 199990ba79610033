// Random numbers of a captured graph. A replay draws what the operators would draw if they were
// called now: from the same generators, whatever state these have by then.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch/devices/host_random.h"

namespace bringup::torch_ext::graphs {

// Offsets of a device's generator that one node takes, counted from where the generator stood when
// the capture began.
struct Draws {
  size_t generator = 0;  // which of the graph's
  uint64_t first = 0;
  uint64_t count = 0;
};

// A generator as one replay finds it.
struct ReplayGenerator {
  at::Generator generator;
  // Of a device's generator: where this replay begins; none: nodes take numbers as they run.
  std::optional<RandomPoint> base;
};

// What one node needs to draw.
struct NodeRandom {
  // Runs `call` with generators where the operator looks for them: among `arguments`, and where it
  // draws without being given one.
  void run(c10::IValue* arguments, const std::vector<ReplayGenerator>& generators,
           c10::function_ref<void()> call) const;

  RandomTraits traits;
  std::optional<Draws> given;   // of the generator argument
  std::optional<Draws> inside;  // without being given one
};

// The generators of a graph and what a replay takes from them.
class GraphRandom {
 public:
  struct Used {
    bool drawn = false;  // by a node, else it was only watched
    c10::weak_intrusive_ptr<c10::GeneratorImpl> generator;
    uint64_t offsets = 0;  // of a device's generator: how far a replay moves it
    std::string reader;    // the operator that drew first
  };

  GraphRandom() = default;
  GraphRandom(std::vector<Used> used, bool draws_on_host, bool at_run_time)
      : used_(std::move(used)), draws_on_host_(draws_on_host), at_run_time_(at_run_time) {}

  // One replay's share; later draws go on behind it. Raises when a generator is
  // gone.
  std::vector<ReplayGenerator> reserve() const;

  // Whether nodes draw at all.
  bool draws() const noexcept;
  // Whether a node draws from a generator of the CPU, which has no offsets that could be reserved.
  bool draws_on_host() const noexcept { return draws_on_host_; }
  // Whether nodes inside of control flow draw, so that how many numbers is known at the end only.
  bool at_run_time() const noexcept { return at_run_time_; }
  // The node's numbers, now.
  RandomPoint take(const std::vector<ReplayGenerator>& generators, const Draws& draws) const;

 private:
  std::vector<Used> used_;
  bool draws_on_host_ = false;
  bool at_run_time_ = false;
};

// Watches generators while a graph is captured: what operators take, that nothing else moves them,
// and how they were before. Captures in several threads draw from generators of their own: two that
// draw from one would each find the other's draws between its own, and put both back.
class RandomRecorder final : private RandomObserver {
 public:
  RandomRecorder();
  ~RandomRecorder() override;

  // From here on the default generators are watched, and this thread's draws.
  void begin();
  // On the same thread: it draws what it likes.
  void stop() noexcept;
  // What others do with generators is theirs. Idempotent.
  void end() noexcept;
  // This one too; returns its number.
  size_t watch(const at::Generator& generator);

  // Around an operator that may draw. `after` raises CaptureFailure when the operator drew from a
  // generator that something else than an operator had changed: a replay would not repeat that.
  // `of_torch`: it draws on the device of its tensors, as operators of torch do.
  void before(const std::vector<c10::IValue>& args, bool of_torch);
  void after(const std::string& op);
  // An operator that has not run may draw from the CPU's default generator.
  void may_draw(const std::string& op);
  // An operator of a device may draw where a replay may come several times or never.
  void draw_at_run_time() { at_run_time_ = true; }
  // Code between pieces of the graph may draw, as much as it likes.
  void has_eager_calls() { has_eager_calls_ = true; }
  // What ran since is recorded already: later trips of a loop.
  void repeated();
  // Whether that operator drew from a generator that is watched.
  bool drew() const { return drew_; }
  // What that operator needs to draw on replay, on the host in place of `device`'s or on cpu.
  std::optional<NodeRandom> for_node(const std::string& op, const RandomTraits& traits,
                                     const std::vector<c10::IValue>& args,
                                     std::optional<c10::DeviceIndex> device);

  // At the end of the capture. CaptureFailure when a generator was changed after the last operator
  // that drew from it, or is gone already.
  GraphRandom finish() const;
  // A generator that was seeded, set or drawn from by anything else than an operator, in words.
  std::optional<std::string> moved() const;
  // Every generator as it was that this capture moved.
  void restore() const;

 private:
  class Watched;
  class WatchedHost;
  class WatchedDevice;

  void moves(const RandomState& state) override;
  // Whether no other capture was under way at any time of this one.
  bool is_alone() const;
  // Makes the generator this capture's until it ends; CaptureFailure where it is another one's.
  void draws_from(Watched& watched, const std::string& op);
  [[noreturn]] void refuse_shared(const Watched& watched, const std::string& op) const;

  uint64_t began_ = 0;
  uint64_t number_ = 0;  // among captures while under way, else 0
  bool alone_at_first_ = false;
  bool drew_ = false;
  bool may_draw_on_host_ = false;             // the operator that runs
  std::vector<const RandomState*> moved_;     // by it
  std::atomic<const void*> shared_{nullptr};  // what another capture draws from, too
  bool at_run_time_ = false;
  bool has_eager_calls_ = false;
  std::vector<std::unique_ptr<Watched>> watched_;
};

}  // namespace bringup::torch_ext::graphs
