#include "torch/devices/host_random.h"

#include <ATen/core/enum_tag.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "torch/devices/state.h"

namespace bringup::torch_ext {
namespace {

// No backend and no mode of torch has this key: only a thread inside a DrawScope includes it.
constexpr c10::DispatchKey kDrawKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local DrawSource* t_source = nullptr;

int generator_position(const c10::FunctionSchema& schema) {
  const auto generator = c10::OptionalType::create(c10::GeneratorType::get());
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (schema.arguments()[i].real_type()->isSubtypeOf(*generator)) return static_cast<int>(i);
  }
  return -1;
}

void on_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  const c10::DispatchKeySet below =
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kDrawKey);
  // A composite operator calls the one that draws in turn, and tracers run no kernel.
  const bool leaf = below.highestPriorityTypeId() == c10::DispatchKey::CPU &&
                    op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
  if (leaf && t_source != nullptr) {
    const int position = generator_position(op.schema());
    if (position >= 0) {
      const size_t first = stack->size() - op.schema().arguments().size();
      c10::IValue& generator = (*stack)[first + static_cast<size_t>(position)];
      if (generator.isNone()) generator = t_source->next();
    }
  }
  op.redispatchBoxed(below, stack);
}

}  // namespace

// What a dispatch mode calls runs with every key above the mode's excluded, ours too.
DrawScope::DrawScope(DrawSource& source)
    : former_(std::exchange(t_source, &source)),
      was_excluded_(c10::impl::tls_is_dispatch_key_excluded(kDrawKey)) {
  c10::impl::tls_set_dispatch_key_excluded(kDrawKey, false);
  c10::impl::tls_set_dispatch_key_included(kDrawKey, true);
}

DrawScope::~DrawScope() {
  t_source = former_;
  c10::impl::tls_set_dispatch_key_included(kDrawKey, former_ != nullptr);
  c10::impl::tls_set_dispatch_key_excluded(kDrawKey, was_excluded_);
}

RandomTraits::RandomTraits(const c10::OperatorHandle& op)
    : generator_(generator_position(op.schema())) {
  const c10::FunctionSchema& schema = op.schema();
  for (const char* name : {"train", "training"}) {
    training_ = schema.argumentIndexWithName(name).value_or(training_);
  }
  // Tags of other operators may be missing.
  const bool is_of_torch =
      schema.name().starts_with("aten::") || schema.name().starts_with("c10d::");
  draws_inside_ = !is_of_torch || (generator_ < 0 && op.hasTag(at::Tag::nondeterministic_seeded));
}

void RandomTraits::give_generator(c10::IValue* arguments, DrawSource& source) const {
  if (generator_ < 0) return;
  arguments[generator_] = draws(arguments) ? c10::IValue(source.next()) : c10::IValue();
}

bool RandomTraits::draws(const c10::IValue* arguments) const {
  return training_ < 0 || !arguments[training_].isBool() || arguments[training_].toBool();
}

void register_host_random() {
  static auto* everything =
      new torch::Library(torch::Library::IMPL, "_", kDrawKey, __FILE__, __LINE__);
  everything->fallback(torch::CppFunction::makeFromBoxedFunction<&on_operator>());
}

}  // namespace bringup::torch_ext
