#include "torch/graphs/random_numbers.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "engine/util/forever.h"
#include "torch/devices/driver.h"
#include "torch/devices/state.h"
#include "torch/graphs/errors.h"
#include "torch/graphs/values.h"

namespace bringup::torch_ext::graphs {
namespace {

const char* const kReplayHelp =
    ": a replay would not repeat that. Seed or set it before the capture and between replays";

std::shared_ptr<RandomState> state_of(const at::Generator& generator) {
  return random_state(generator, generator.device().index());
}

// The share that one node has of a replay's.
class ReplayDraws final : public DrawSource {
 public:
  ReplayDraws(const ReplayGenerator& generator, const Draws& draws)
      : generator_(generator), draws_(draws) {}

  at::Generator next() override {
    if (generator_.generator.defined() && !generator_.base) {
      return call_generator(state_of(generator_.generator)->take(1));
    }
    TORCH_CHECK(used_ < draws_.count,
                "a captured operator draws more random numbers than in the "
                "capture (",
                draws_.count,
                " calls): what it draws must not depend on data, "
                "capture again");
    return call_generator(
        {generator_.base->seed, generator_.base->offset + draws_.first + used_++});
  }

 private:
  const ReplayGenerator& generator_;
  Draws draws_;
  uint64_t used_ = 0;
};

// Captures under way, and which of them moves what; generators are the whole process's.
struct Captures {
  std::mutex mutex;
  uint64_t begun = 0;
  size_t under_way = 0;
  std::unordered_map<const void*, RandomRecorder*> moving;  // by Watched::key()
};

Captures& captures() { return forever<Captures>(); }

bool is_host(const at::Generator& generator) { return generator.device().is_cpu(); }

std::string describe(const at::Generator& generator) {
  return "the torch.Generator of " + generator.device().str();
}

}  // namespace

void NodeRandom::run(c10::IValue* arguments, const std::vector<ReplayGenerator>& generators,
                     c10::function_ref<void()> call) const {
  if (given) {
    const ReplayGenerator& entry = generators[given->generator];
    if (is_host(entry.generator)) {
      arguments[traits.generator()] = entry.generator;
    } else {
      ReplayDraws source(entry, *given);
      traits.give_generator(arguments, source);
    }
  }
  if (!inside) return call();
  // A graph that draws nothing reserves no generators, and this source refuses to give anything.
  const ReplayGenerator none;
  ReplayDraws source(generators.empty() ? none : generators[inside->generator], *inside);
  const DrawScope scope(source);
  call();
}

std::vector<ReplayGenerator> GraphRandom::reserve() const {
  std::vector<ReplayGenerator> generators(used_.size());
  for (size_t i = 0; i < used_.size(); ++i) {
    if (!used_[i].drawn) continue;
    c10::intrusive_ptr<c10::GeneratorImpl> generator = used_[i].generator.lock();
    if (!generator) {
      throw CaptureFailure("since the graph was captured, the torch.Generator that " +
                           used_[i].reader +
                           " drew from was freed, or replaced by another: keep it and seed it with "
                           "manual_seed, or capture again (reset() first)");
    }
    generators[i].generator = at::Generator(std::move(generator));
  }
  // All are there: now they may move.
  for (size_t i = 0; i < used_.size(); ++i) {
    const at::Generator& generator = generators[i].generator;
    if (!generator.defined() || is_host(generator) || at_run_time_) continue;
    generators[i].base = state_of(generator)->take(used_[i].offsets);
  }
  return generators;
}

RandomPoint GraphRandom::take(const std::vector<ReplayGenerator>& generators,
                              const Draws& draws) const {
  const auto& [generator, base] = generators[draws.generator];
  if (!base) return state_of(generator)->take(draws.count);
  return {base->seed, base->offset + draws.first};
}

bool GraphRandom::draws() const noexcept {
  return std::any_of(used_.begin(), used_.end(), [](const Used& used) { return used.drawn; });
}

class RandomRecorder::Watched {
 public:
  explicit Watched(at::Generator generator) : generator_(std::move(generator)) {}
  virtual ~Watched() = default;
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  // The same for generators with one state.
  virtual const void* key() const = 0;
  virtual void operator_begins() = 0;
  // Whether the operator that began, and is over, drew from it.
  virtual bool operator_drew() = 0;
  virtual void repeated() {}
  // What that operator took.
  virtual Draws taken() const { return {}; }
  // Whether something else than operators moved it, so that a replay would find another state.
  virtual bool was_moved_elsewhere() const = 0;
  // Whether it was, if only back to where it had been in the capture.
  virtual bool was_set() const { return was_moved_elsewhere(); }
  // How far the capture moved it.
  virtual uint64_t offsets() const { return 0; }
  virtual void restore() const = 0;

  void read_by(const std::string& op) {
    if (reader_.empty()) reader_ = op;
  }
  const std::string& reader() const { return reader_; }  // the first operator, or nothing
  const at::Generator& generator() const { return generator_; }

 private:
  at::Generator generator_;
  std::string reader_;
};

// A CPU generator shows only its state: nothing but operators may change it.
class RandomRecorder::WatchedHost final : public Watched {
 public:
  explicit WatchedHost(at::Generator generator)
      : Watched(std::move(generator)), begin_(place()), expected_(begin_), before_(begin_) {}

  const void* key() const override { return generator().unsafeGetGeneratorImpl(); }
  void operator_begins() override { before_ = place(); }
  bool operator_drew() override {
    const Place now = place();
    if (now == before_) return false;
    was_moved_elsewhere_ = was_moved_elsewhere_ || !(before_ == expected_);
    expected_ = now;
    return true;
  }
  void repeated() override { expected_ = place(); }
  bool was_moved_elsewhere() const override {
    return was_moved_elsewhere_ || !(place() == expected_);
  }
  void restore() const override {
    at::CPUGeneratorImpl& generator = impl();
    at::mt19937 engine;
    engine.set_data(begin_.data);
    const std::lock_guard lock(generator.mutex_);
    generator.set_engine(engine);
    generator.set_next_float_normal_sample(begin_.next_float);
    generator.set_next_double_normal_sample(begin_.next_double);
  }

 private:
  struct Place {
    at::mt19937_data_pod data;
    std::optional<float> next_float;
    std::optional<double> next_double;

    bool operator==(const Place& other) const {
      return data.left_ == other.data.left_ && data.next_ == other.data.next_ &&
             data.state_ == other.data.state_ && next_float == other.next_float &&
             next_double == other.next_double;
    }
  };

  at::CPUGeneratorImpl& impl() const { return *generator().get<at::CPUGeneratorImpl>(); }
  Place place() const {
    at::CPUGeneratorImpl& generator = impl();
    const std::lock_guard lock(generator.mutex_);
    return {generator.engine().data(), generator.next_float_normal_sample(),
            generator.next_double_normal_sample()};
  }

  Place begin_;
  Place expected_;
  Place before_;
  bool was_moved_elsewhere_ = false;
};

// Offsets count from where the capture began, so going back to a state that was read inside the
// capture, as checkpointing does, is repeated by a replay; going to any other state is not.
class RandomRecorder::WatchedDevice final : public Watched {
 public:
  WatchedDevice(at::Generator generator, uint64_t began)
      : Watched(std::move(generator)),
        state_(impl().state()),
        begin_(state_->point()),
        began_(began),
        before_(begin_) {}

  const void* key() const override { return state_.get(); }
  void operator_begins() override {
    before_ = state_->point();
    taken_ = {0, before_.offset - begin_.offset, 0};
  }
  bool operator_drew() override {
    taken_.count = state_->point().offset - before_.offset;
    return taken_.count > 0;
  }
  Draws taken() const override { return taken_; }
  bool was_moved_elsewhere() const override {
    const RandomPoint now = state_->point();
    const RandomHistory history = state_->history();
    const bool from_elsewhere =
        history.seeded > began_ || (history.set > began_ && history.read <= began_);
    return impl().state() != state_ || from_elsewhere || now.seed != begin_.seed ||
           before_.offset < begin_.offset || now.offset < begin_.offset;
  }
  bool was_set() const override { return state_->history().set > began_ || was_moved_elsewhere(); }
  uint64_t offsets() const override { return state_->point().offset - begin_.offset; }
  void restore() const override {
    state_->go_back(begin_);
    impl().share(state_);
  }

 private:
  DriverGenerator& impl() const { return *generator().get<DriverGenerator>(); }

  std::shared_ptr<RandomState> state_;
  RandomPoint begin_;
  uint64_t began_;
  RandomPoint before_;
  Draws taken_;
};

RandomRecorder::RandomRecorder() = default;
RandomRecorder::~RandomRecorder() { end(); }

void RandomRecorder::begin() {
  {
    const std::lock_guard lock(captures().mutex);
    alone_at_first_ = captures().under_way++ == 0;
    number_ = ++captures().begun;
  }
  began_ = random_clock();
  watch(at::detail::getDefaultCPUGenerator());
  for (int32_t i = 0; active_driver() != nullptr && i < driver_facts().device_count; ++i) {
    watch(default_generator(static_cast<c10::DeviceIndex>(i)));
  }
  set_random_observer(this);
}

void RandomRecorder::stop() noexcept { set_random_observer(nullptr); }

void RandomRecorder::end() noexcept {
  if (std::exchange(number_, 0) == 0) return;
  const std::lock_guard lock(captures().mutex);
  --captures().under_way;
  std::erase_if(captures().moving, [this](const auto& entry) { return entry.second == this; });
}

bool RandomRecorder::is_alone() const {
  const std::lock_guard lock(captures().mutex);
  return alone_at_first_ && captures().begun == number_;
}

void RandomRecorder::moves(const RandomState& state) {
  moved_.push_back(&state);
  const std::lock_guard lock(captures().mutex);
  RandomRecorder* const first = captures().moving.try_emplace(&state, this).first->second;
  if (first != this) shared_ = first->shared_ = &state;
}

void RandomRecorder::draws_from(Watched& watched, const std::string& op) {
  {
    const std::lock_guard lock(captures().mutex);
    const auto first = captures().moving.try_emplace(watched.key(), this).first;
    if (first->second != this) shared_ = watched.key();
  }
  if (shared_ == watched.key()) refuse_shared(watched, op);
  watched.read_by(op);
}

void RandomRecorder::refuse_shared(const Watched& watched, const std::string& op) const {
  throw CaptureFailure(op + " draws from " + describe(watched.generator()) +
                       ", and so does a capture in another thread: each finds it where the other "
                       "one left it. Give each a generator of its own, or capture one after the "
                       "other");
}

size_t RandomRecorder::watch(const at::Generator& generator) {
  for (size_t i = 0; i < watched_.size(); ++i) {
    if (watched_[i]->generator() == generator) return i;
  }
  if (is_host(generator)) {
    watched_.push_back(std::make_unique<WatchedHost>(generator));
  } else {
    watched_.push_back(std::make_unique<WatchedDevice>(generator, began_));
  }
  return watched_.size() - 1;
}

void RandomRecorder::before(const std::vector<c10::IValue>& args, bool of_torch) {
  bool on_device = false;
  bool on_host = !of_torch;
  const auto see = [&](c10::Device device) { (device.is_cpu() ? on_host : on_device) = true; };
  for (const c10::IValue& arg : args) {
    if (arg.isDevice()) see(arg.toDevice());
    if (!arg.isGenerator()) continue;
    see(arg.toGenerator().device());
    watch(arg.toGenerator());
  }
  for_each_tensor(args, [&](const at::Tensor& tensor) { see(tensor.device()); });
  may_draw_on_host_ = on_host || !on_device;
  moved_.clear();
  for (const auto& watched : watched_) watched->operator_begins();
}

void RandomRecorder::after(const std::string& op) {
  drew_ = false;
  for (const auto& watched : watched_) {
    const bool may_draw = is_host(watched->generator())
                              ? may_draw_on_host_
                              : std::ranges::find(moved_, watched->key()) != moved_.end();
    if (!may_draw || !watched->operator_drew()) continue;
    drew_ = true;
    draws_from(*watched, op);
    if (!watched->was_moved_elsewhere()) continue;
    throw CaptureFailure(op + " draws from " + describe(watched->generator()) +
                         ", which something else than an operator seeded, set or drew from inside "
                         "the capture" +
                         kReplayHelp);
  }
}

void RandomRecorder::may_draw(const std::string& op) { draws_from(*watched_.front(), op); }

void RandomRecorder::repeated() {
  for (const auto& watched : watched_) watched->repeated();
}

std::optional<NodeRandom> RandomRecorder::for_node(const std::string& op,
                                                   const RandomTraits& traits,
                                                   const std::vector<c10::IValue>& args,
                                                   std::optional<c10::DeviceIndex> device) {
  NodeRandom random{traits, std::nullopt, std::nullopt};
  const auto taken_from = [this](const at::Generator& generator) {
    const size_t index = watch(generator);
    Draws draws = watched_[index]->taken();
    draws.generator = index;
    return draws;
  };
  if (traits.generator() >= 0) {
    const c10::IValue& arg = args[static_cast<size_t>(traits.generator())];
    if (arg.isGenerator()) {
      random.given = taken_from(arg.toGenerator());
    } else if (device) {
      random.given = taken_from(default_generator(*device));
    }
    if (random.given) draws_from(*watched_[random.given->generator], op);
  }
  if (device && traits.draws_inside()) {
    random.inside = taken_from(default_generator(*device));
    if (at_run_time_) draws_from(*watched_[random.inside->generator], op);
    if (random.given && random.given->generator == random.inside->generator) {
      // The fallback takes the argument's offset first.
      random.given->count = std::min<uint64_t>(random.given->count, 1);
      random.inside->first += random.given->count;
      random.inside->count -= random.given->count;
    }
  }
  if (!random.given && !random.inside) return std::nullopt;
  return random;
}

GraphRandom RandomRecorder::finish() const {
  std::vector<GraphRandom::Used> used;
  bool draws_on_host = false;
  for (const auto& watched : watched_) {
    const at::Generator& generator = watched->generator();
    const bool drawn = !watched->reader().empty();
    used.push_back({drawn, c10::weak_intrusive_ptr<c10::GeneratorImpl>(generator.getIntrusivePtr()),
                    watched->offsets(), watched->reader()});
    if (!drawn) continue;
    if (watched->key() == shared_) refuse_shared(*watched, watched->reader());
    draws_on_host = draws_on_host || is_host(generator);
    if (at_run_time_ ? watched->was_set() : watched->was_moved_elsewhere()) {
      throw CaptureFailure(describe(generator) + ", which " + watched->reader() +
                           " draws from, was seeded or set inside the capture" + kReplayHelp);
    }
    if (generator.getIntrusivePtr().use_count() == 1) {  // ours
      throw CaptureFailure(describe(generator) + " that " + watched->reader() +
                           " draws from was made inside the capture, or freed there: a replay "
                           "would go on with its numbers. Make it before the capture and keep it");
    }
  }
  const bool among_eager_calls =
      has_eager_calls_ && std::ranges::any_of(used, &GraphRandom::Used::drawn);
  return GraphRandom(std::move(used), draws_on_host, at_run_time_ || among_eager_calls);
}

std::optional<std::string> RandomRecorder::moved() const {
  if (!is_alone()) return std::nullopt;
  for (const auto& watched : watched_) {
    if (watched->was_moved_elsewhere()) return describe(watched->generator());
  }
  return std::nullopt;
}

void RandomRecorder::restore() const {
  const bool alone = is_alone();
  const std::lock_guard lock(captures().mutex);
  for (const auto& watched : watched_) {
    const auto moved = captures().moving.find(watched->key());
    const bool by_captures = moved != captures().moving.end();
    // Seeding one of the host leaves no trace of the thread.
    const bool may_be_seeded = alone && is_host(watched->generator());
    if (by_captures ? moved->second == this : may_be_seeded) watched->restore();
  }
}

}  // namespace bringup::torch_ext::graphs
