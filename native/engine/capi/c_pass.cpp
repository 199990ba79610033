#include "engine/capi/c_pass.h"

#include "engine/capi/match_handles.h"
#include "engine/run/creation.h"
#include "engine/run/session.h"
#include "engine/run/targets.h"
#include "engine/util/error.h"

namespace bringup::engine {
namespace {

// Turns what a hook returned or threw into what sessions expect.
template <class Hook>
void call_hook(const PassContext& context, const char* name, Hook&& hook) {
  const std::string where = std::string(name) + " of " + in_quotes(context.descriptor.pass_name);
  const int32_t status = foreign(where, hook);
  const std::string why = take_hook_error(status);
  if (status == BRINGUP_ENGINE_OK) return;
  if (status == BRINGUP_ENGINE_SKIP) throw SkipPass(why.empty() ? where + " skipped" : why);
  const std::string said =
      where + " returned status " + std::to_string(status) + (why.empty() ? "" : ": " + why);
  if (status == BRINGUP_ENGINE_FATAL) throw FatalFailure(said);
  throw StatusError(status, said);
}

bool is_before_shapes(const PassContext& context) {
  return context.descriptor.stage == Stage::kBeforeInferShape;
}

template <class Function>
Function required(Function function, const char* hook, const PassContext& context) {
  if (function != nullptr) return function;
  throw_error(ErrorCode::kInternal, context.descriptor.class_qualname, " does not define ", hook,
              ", which a pass of its kind needs");
}

class CPass : public Pass {
 public:
  CPass(std::shared_ptr<const PassDefinition> definition, void* instance)
      : definition_(std::move(definition)), hooks_(definition_->hooks), instance_(instance) {}

  ~CPass() override {
    if (hooks_.create == nullptr || hooks_.destroy == nullptr) return;
    try {
      hooks_.destroy(instance_);
    } catch (...) {  // no caller to report it to: the pass has run
    }
  }

  int64_t run(Graph& graph, PassContext& context) override {
    const auto hook = required(hooks_.run, "run", context);
    call<LentGraph>("run", graph, context,
                    [&](auto lent_graph, auto lent) { return hook(instance_, lent_graph, lent); });
    return 0;
  }

  std::vector<PatternPtr> patterns(Graph&, PassContext& context) override {
    const auto hook = required(hooks_.patterns, "patterns", context);
    std::vector<PatternPtr> patterns;
    const LentContext lent_context(context, &patterns);
    call_hook(context, "patterns", [&] { return hook(instance_, lent_context.handle()); });
    if (patterns.empty()) {
      throw_error(ErrorCode::kPass, "patterns of ", in_quotes(context.descriptor.pass_name),
                  " gave none");
    }
    return patterns;
  }

  bool meet_requirements(Target& target, PassContext& context) override {
    int32_t met = 1;
    if (target.is_match() && hooks_.meet_requirements != nullptr) {
      call<LentMatch>("meet_requirements", target.match(), context, [&](auto match, auto lent) {
        return hooks_.meet_requirements(instance_, match, lent, &met);
      });
    } else if (!target.is_match() && hooks_.meet_node != nullptr) {
      call<LentGraph>("meet_node", target.graph(), context, [&](auto graph, auto lent) {
        return hooks_.meet_node(instance_, graph, target.node(), lent, &met);
      });
    }
    return met != 0;
  }

  GraphPtr replacement(Target& target, PassContext& context) override {
    bringup_ir_graph made = 0;
    GraphPtr replacement;
    if (target.is_match()) {
      const auto hook = required(hooks_.replacement, "replacement", context);
      call<LentMatch>(
          "replacement", target.match(), context,
          [&](auto match, auto lent) { return hook(instance_, match, lent, &made); },
          [&] { replacement = handed_over(made, "replacement", context); });
    } else {
      const auto hook = required(hooks_.replace_node, "replace_node", context);
      call<LentGraph>(
          "replace_node", target.graph(), context,
          [&](auto graph, auto lent) { return hook(instance_, graph, target.node(), lent, &made); },
          [&] { replacement = handed_over(made, "replace_node", context); });
    }
    return replacement;
  }

 private:
  // Calls a hook with handles of what it is given, which expire after `then`.
  template <class Lent, class Subject, class Hook, class Then = void (*)()>
  static void call(
      const char* name, Subject& subject, PassContext& context, Hook&& hook, Then&& then = [] {}) {
    const Lent lent(subject, context.providers, is_before_shapes(context));
    const LentContext lent_context(context);
    call_hook(context, name, [&] { return hook(lent.handle(), lent_context.handle()); });
    then();
  }

  static GraphPtr handed_over(bringup_ir_graph made, const char* hook, const PassContext& context) {
    if (made == 0) {
      throw_error(ErrorCode::kPass, hook, " of ", in_quotes(context.descriptor.pass_name),
                  " returned no graph");
    }
    check_has_no_pieces(*graph_of(made)->graph, "the replacement");
    return take_graph(made)->graph;
  }

  std::shared_ptr<const PassDefinition> definition_;
  const bringup_pass_definition& hooks_;
  void* instance_;
};

}  // namespace

std::unique_ptr<Pass> create_c_pass() {
  const Registration& registration = creating();
  auto definition = std::static_pointer_cast<const PassDefinition>(registration.definition);
  const bringup_pass_definition& hooks = definition->hooks;
  void* instance = hooks.user;
  if (hooks.create != nullptr) {
    const std::string where = "create of " + in_quotes(registration.descriptor.pass_name);
    instance = foreign(where, [&] { return hooks.create(hooks.user); });
    if (instance == nullptr) {
      const std::string why = take_hook_error(BRINGUP_ENGINE_OK);
      throw_error(ErrorCode::kFailed, where, " made no instance", (why.empty() ? "" : ": " + why));
    }
  }
  return std::make_unique<CPass>(std::move(definition), instance);
}

}  // namespace bringup::engine
