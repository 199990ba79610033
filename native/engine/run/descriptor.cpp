#include "engine/run/descriptor.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "engine/util/error.h"

namespace bringup::engine {
namespace {

constexpr std::array<std::string_view, 4> kKinds = {"fusion_base", "pattern_fusion", "decompose",
                                                    "legacy_custom"};
constexpr std::array<std::string_view, kStageCount> kStages = {
    "BeforeInferShape", "AfterInferShape", "AfterBuiltinFusionPass", "AfterOriginGraphOptimize"};
constexpr std::array<std::string_view, 3> kPolicies = {"fail", "skip", "rollback"};

template <size_t N>
uint8_t find(const std::array<std::string_view, N>& names, std::string_view name,
             std::string_view what) {
  std::string listed;
  for (uint8_t index = 0; index < N; ++index) {
    if (names[index] == name) return index;
    listed += (index == 0 ? "" : ", ") + std::string(names[index]);
  }
  throw_error(ErrorCode::kInvalid, "there is no ", what, " '", name, "'; there are ", listed);
}

[[noreturn]] void refuse(const PassDescriptor& descriptor, const std::string& why) {
  throw_error(ErrorCode::kInvalid, "pass '", descriptor.pass_name, "': ", why);
}

}  // namespace

std::string_view name_of(PassKind kind) { return kKinds.at(static_cast<size_t>(kind)); }
std::string_view name_of(Stage stage) { return kStages.at(static_cast<size_t>(stage)); }
std::string_view name_of(Policy policy) { return kPolicies.at(static_cast<size_t>(policy)); }

PassKind kind_named(std::string_view name) {
  return static_cast<PassKind>(find(kKinds, name, "kind of pass"));
}

Stage stage_named(std::string_view name) {
  return static_cast<Stage>(find(kStages, name, "stage"));
}

Policy policy_named(std::string_view name) {
  return static_cast<Policy>(find(kPolicies, name, "policy"));
}

Version version_of(std::string_view text) {
  Version numbers;
  for (size_t first = 0; first <= text.size();) {
    const size_t end = std::min(text.find('.', first), text.size());
    uint32_t number = 0;
    const auto [rest, error] = std::from_chars(text.data() + first, text.data() + end, number);
    if (error != std::errc() || rest != text.data() + end) {
      throw_error(ErrorCode::kInvalid, "a version is made of numbers and dots, such as '1.2', got ",
                  in_quotes(text));
    }
    numbers.push_back(number);
    first = end + 1;
  }
  while (numbers.size() > 1 && numbers.back() == 0) numbers.pop_back();
  return numbers;
}

std::string label_of(const PassDescriptor& descriptor) {
  const Version version = version_of(descriptor.version);
  if (version == Version{1}) return descriptor.pass_name;
  std::string text = descriptor.pass_name;
  char separator = '@';
  for (const uint32_t number : version) {
    text += separator + std::to_string(number);
    separator = '.';
  }
  return text;
}

void check(const PassDescriptor& descriptor) {
  if (descriptor.pass_name.empty()) refuse(descriptor, "its name is empty");
  if (descriptor.class_qualname.empty()) refuse(descriptor, "the name of its class is empty");
  version_of(descriptor.version);
  const bool decomposes = descriptor.kind == PassKind::kDecompose;
  if (decomposes && descriptor.op_types.empty()) {
    refuse(descriptor, "op_types is empty; name at least one operator type");
  }
  if (!decomposes && !descriptor.op_types.empty()) {
    refuse(descriptor, "op_types are given, but only a decompose pass has them");
  }
  for (const std::string& type : descriptor.op_types) {
    if (type.empty()) refuse(descriptor, "op_types has an empty name");
  }
}

}  // namespace bringup::engine
