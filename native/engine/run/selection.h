// Which of the registered passes shall run, and in which order.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/run/creation.h"

namespace bringup::engine {

using Versions =
    std::map<std::string, std::string, std::less<>>;        // pass name -> the version wanted
using Switches = std::map<std::string, bool, std::less<>>;  // pass name, or ALL -> on or off

struct Selection {
  std::optional<std::vector<std::string>> names;  // none: all passes
  Versions versions;                              // of other names the newest version runs
  Switches switches;
  bool on_host_graphs = false;  // whether passes of the host are meant too
};

// By its own switch, else by that of ALL, else it is on.
bool is_enabled(std::string_view name, const Switches& switches);

// Of each name one version, and with each pass those that it requires, in running order: by stage,
// then by `requires_all` and `after`, priority, name. EngineError(kMissing) for a name or version
// that is not there, EngineError(kPass) when a required pass is missing or switched off or there is
// no such order.
std::vector<RegistrationPtr> select(std::span<const RegistrationPtr> registered,
                                    const Selection& selection);

// Whether one runs before the other where no constraint says anything else.
bool runs_first(const PassDescriptor& left, const PassDescriptor& right);

}  // namespace bringup::engine
