// What is known about a pass before it runs: its names, kind, stage and order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bringup::engine {

enum class PassKind : uint8_t { kFusionBase, kPatternFusion, kDecompose, kLegacyCustom };

// In running order; inference follows the first, the shipped library the second.
enum class Stage : uint8_t {
  kBeforeInferShape,
  kAfterInferShape,
  kAfterBuiltinFusionPass,
  kAfterOriginGraphOptimize,
};
inline constexpr int kStageCount = 4;

// What happens when a pass fails. A FatalFailure always fails and stops the stage.
enum class Policy : uint8_t {
  kFail,      // its edits are undone, the rest of the stage runs, then the run fails
  kSkip,      // only the match that failed is undone and left alone; the run goes on
  kRollback,  // the whole pass is undone; the run goes on
};

std::string_view name_of(PassKind kind);
std::string_view name_of(Stage stage);
std::string_view name_of(Policy policy);
// Throw EngineError listing the names when there is none like this.
PassKind kind_named(std::string_view name);
Stage stage_named(std::string_view name);
Policy policy_named(std::string_view name);

struct PassDescriptor {
  std::string pass_name;
  PassKind kind = PassKind::kFusionBase;
  Stage stage = Stage::kAfterInferShape;
  std::string module_name;     // a Python module, or the path of a library
  std::string class_qualname;  // the class that defines the pass
  std::vector<std::string> op_types;
  std::string version = "1";  // numbers with dots
  int32_t priority = 0;       // within a stage the higher one runs first, then by name
  Policy policy = Policy::kFail;
  uint32_t max_rewrites = 0;              // in one session; 0: no limit
  bool repeat_until_stable = false;       // sweep again until nothing matches any more
  std::vector<std::string> requires_all;  // passes that must be selected too, and run before
  std::vector<std::string> after;         // passes that run before it where they are selected
  std::string digest;                     // of the defining file; empty: unknown
  bool builtin = false;                   // part of the shipped library

  // Identity apart from the version: module, class and name.
  std::string key() const { return module_name + ":" + class_qualname + ":" + pass_name; }
  bool operator==(const PassDescriptor&) const = default;
};

// A version as numbers, to compare: 1.10 is newer than 1.9, and 1 is 1.0. Throws EngineError.
using Version = std::vector<uint32_t>;
Version version_of(std::string_view text);

// What reports call one version of a pass: its name, with `@version` unless that is 1.
std::string label_of(const PassDescriptor& descriptor);

// Throws EngineError when a field is missing or fields contradict each other.
void check(const PassDescriptor& descriptor);

}  // namespace bringup::engine
