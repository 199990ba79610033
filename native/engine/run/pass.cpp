#include "engine/run/pass.h"

#include "engine/run/targets.h"
#include "engine/util/error.h"

namespace bringup::engine {
namespace {

[[noreturn]] void undefined(const PassContext& context, const char* hook) {
  throw_error(ErrorCode::kInternal, context.descriptor.class_qualname, " does not define ", hook,
              ", which a pass of kind ", name_of(context.descriptor.kind), " needs");
}

}  // namespace

const OptionValue& PassContext::option(std::string_view key) const {
  const auto place = options.find(key);
  if (place != options.end()) return place->second;
  std::string names;
  for (const auto& [name, value] : options) names += (names.empty() ? "'" : ", '") + name + "'";
  throw_error(ErrorCode::kMissing, "there is no option ", in_quotes(key), "; this run has ",
              (names.empty() ? std::string("none") : names));
}

int64_t Pass::run(Graph&, PassContext& context) { undefined(context, "run"); }

std::vector<PatternPtr> Pass::patterns(Graph&, PassContext& context) {
  undefined(context, "patterns");
}

std::vector<PatternProgram> Pass::programs(Graph& graph, PassContext& context) {
  std::vector<PatternProgram> made;
  for (const PatternPtr& pattern : patterns(graph, context)) {
    made.push_back({Program::compile(pattern)});
  }
  return made;
}

bool Pass::meet_requirements(Target&, PassContext&) { return true; }

GraphPtr Pass::replacement(Target&, PassContext& context) { undefined(context, "replacement"); }

}  // namespace bringup::engine
