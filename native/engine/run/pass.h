// A pass: what its author writes; adapters of the C API and of Python override these hooks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "engine/graph/argument.h"
#include "engine/run/descriptor.h"
#include "engine/util/outcome.h"

namespace bringup::engine {

class Graph;
class Target;
struct Pattern;
struct PatternProgram;
struct Providers;

using OptionValue = std::variant<std::monostate, bool, int64_t, double, std::string>;
using Options = std::map<std::string, OptionValue, std::less<>>;

// What a hook can read about its run.
struct PassContext {
  const PassDescriptor& descriptor;
  uint64_t instance_id;  // of the session's one instance; unique in the process
  const Options& options;
  const Providers& providers;

  // EngineError(kMissing) listing the options when there is none like this.
  const OptionValue& option(std::string_view key) const;
};

using PatternPtr = std::shared_ptr<const Pattern>;
using GraphPtr = std::shared_ptr<const Graph>;

class Pass {
 public:
  virtual ~Pass() = default;

  // A graph pass: edits `graph`; 0 is success, any other status a failure.
  virtual int64_t run(Graph& graph, PassContext& context);

  // A pattern pass: what it looks for, and the same made ready for `graph`.
  virtual std::vector<PatternPtr> patterns(Graph& graph, PassContext& context);
  virtual std::vector<PatternProgram> programs(Graph& graph, PassContext& context);

  // A pattern or decompose pass. The outputs of the replacement stand for those of the match or
  // node, its inputs for the pattern's inputs, or the values that the node reads, each once.
  virtual bool meet_requirements(Target& target, PassContext& context);
  virtual GraphPtr replacement(Target& target, PassContext& context);
};

}  // namespace bringup::engine
