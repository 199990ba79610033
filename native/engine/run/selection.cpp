#include "engine/run/selection.h"

#include <algorithm>
#include <set>

#include "engine/util/error.h"

namespace bringup::engine {
namespace {

using ByName = std::map<std::string, RegistrationPtr, std::less<>>;

EngineError unordered(const PassDescriptor& pass, const std::string& why) {
  return EngineError(ErrorCode::kPass, "pass " + in_quotes(pass.pass_name) + " " + why);
}

// Choosing among registered passes.
class Choice {
 public:
  Choice(std::span<const RegistrationPtr> registered, const Selection& selection)
      : registered_(registered), selection_(selection) {
    for (const RegistrationPtr& pass : registered) {
      if (is_wanted(*pass)) take_newer(pass);
    }
    for (const auto& [name, version] : selection.versions) {
      if (there_.count(name) == 0) throw missing(name, version);
    }
  }

  std::vector<RegistrationPtr> run() {
    if (!selection_.names) {
      for (const auto& [name, pass] : there_) choose(pass);
    } else {
      for (const std::string& name : *selection_.names) choose(named(name));
    }
    std::vector<RegistrationPtr> agenda;
    for (const auto& [name, pass] : chosen_) agenda.push_back(pass);
    while (!agenda.empty()) {
      const RegistrationPtr pass = agenda.back();
      agenda.pop_back();
      for (const std::string& name : pass->descriptor.requires_all) {
        if (chosen_.count(name) == 0) agenda.push_back(require(pass->descriptor, name));
      }
    }
    std::vector<RegistrationPtr> selected;
    for (const auto& [name, pass] : chosen_) selected.push_back(pass);
    return selected;
  }

 private:
  bool is_wanted(const Registration& pass) const {
    if (pass.of_host && !selection_.on_host_graphs) return false;
    const auto wanted = selection_.versions.find(pass.descriptor.pass_name);
    return wanted == selection_.versions.end() ||
           version_of(wanted->second) == version_of(pass.descriptor.version);
  }

  void take_newer(const RegistrationPtr& pass) {
    RegistrationPtr& place = there_[pass->descriptor.pass_name];
    if (place == nullptr ||
        version_of(place->descriptor.version) < version_of(pass->descriptor.version)) {
      place = pass;
    }
  }

  void choose(const RegistrationPtr& pass) {
    const std::string& name = pass->descriptor.pass_name;
    if (is_enabled(name, selection_.switches)) chosen_[name] = pass;
  }

  const RegistrationPtr& named(const std::string& name) const {
    const auto place = there_.find(name);
    if (place != there_.end()) return place->second;
    for (const RegistrationPtr& pass : registered_) {
      if (pass->descriptor.pass_name != name) continue;
      throw_error(ErrorCode::kMissing, "pass ", in_quotes(name),
                  " belongs to the host program and runs only on "
                  "graphs of that");
    }
    throw_error(ErrorCode::kMissing, "no pass named ", in_quotes(name), " is registered");
  }

  const RegistrationPtr& require(const PassDescriptor& by, const std::string& name) {
    const auto place = there_.find(name);
    if (place == there_.end()) {
      throw unordered(by, "requires " + in_quotes(name) + ", which is not there");
    }
    if (!is_enabled(name, selection_.switches)) {
      throw unordered(by, concat("requires ", in_quotes(name), ", which is switched off: switch ",
                                 in_quotes(by.pass_name), " off too"));
    }
    return chosen_[name] = place->second;
  }

  EngineError missing(const std::string& name, const std::string& version) const {
    std::string listed;
    for (const RegistrationPtr& pass : registered_) {
      if (pass->descriptor.pass_name != name) continue;
      listed += (listed.empty() ? "" : ", ") + in_quotes(pass->descriptor.version);
    }
    if (listed.empty()) {
      return EngineError(ErrorCode::kMissing,
                         "no pass named " + in_quotes(name) + " is registered");
    }
    return EngineError(ErrorCode::kMissing,
                       concat("pass ", in_quotes(name), " has no version ", in_quotes(version),
                              "; there are [", listed, "]"));
  }

  std::span<const RegistrationPtr> registered_;
  const Selection& selection_;
  ByName there_;
  ByName chosen_;
};

// Ordering passes of different names.
class Ordering {
 public:
  explicit Ordering(std::vector<RegistrationPtr> selected) : waiting_(std::move(selected)) {
    std::sort(waiting_.begin(), waiting_.end(), [](const auto& left, const auto& right) {
      return runs_first(left->descriptor, right->descriptor);
    });
    for (const RegistrationPtr& pass : waiting_) by_name_[pass->descriptor.pass_name] = pass;
  }

  std::vector<RegistrationPtr> run() {
    for (const RegistrationPtr& pass : waiting_) check_stages(pass->descriptor);
    std::vector<RegistrationPtr> ordered;
    while (!waiting_.empty()) {
      const auto next = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& pass) {
        return predecessors(pass->descriptor).empty();
      });
      if (next == waiting_.end()) throw circle();
      placed_.insert((*next)->descriptor.pass_name);
      ordered.push_back(*next);
      waiting_.erase(next);
    }
    return ordered;
  }

 private:
  // The selected passes that must run before this one and are not placed yet.
  std::set<std::string> predecessors(const PassDescriptor& pass) const {
    std::set<std::string> names;
    for (const std::vector<std::string>* listed : {&pass.requires_all, &pass.after}) {
      for (const std::string& name : *listed) {
        if (by_name_.count(name) != 0 && placed_.count(name) == 0) names.insert(name);
      }
    }
    return names;
  }

  void check_stages(const PassDescriptor& pass) const {
    for (const std::string& name : predecessors(pass)) {
      const Stage stage = by_name_.find(name)->second->descriptor.stage;
      if (stage <= pass.stage) continue;
      throw unordered(pass,
                      concat("of stage ", name_of(pass.stage), " shall run after ", in_quotes(name),
                             ", which runs in the later stage ", name_of(stage)));
    }
  }

  // One circle among those that wait, as `a -> b -> a`.
  EngineError circle() const {
    std::vector<std::string> walked = {waiting_.front()->descriptor.pass_name};
    for (const RegistrationPtr& pass : waiting_) {
      walked.front() = std::min(walked.front(), pass->descriptor.pass_name);
    }
    auto first = walked.end();
    do {
      const PassDescriptor& last = by_name_.find(walked.back())->second->descriptor;
      std::string next = *predecessors(last).begin();
      const auto known = std::find(walked.begin(), walked.end(), next);
      const auto index = known - walked.begin();
      const bool is_new = known == walked.end();
      walked.push_back(std::move(next));
      first = is_new ? walked.end() : walked.begin() + index;
    } while (first == walked.end());
    std::string text;
    for (; first != walked.end(); ++first) text += (text.empty() ? "" : " -> ") + *first;
    return EngineError(ErrorCode::kPass,
                       "these passes shall run after each other in a circle: " + text);
  }

  std::vector<RegistrationPtr> waiting_;
  ByName by_name_;
  std::set<std::string, std::less<>> placed_;
};

}  // namespace

bool is_enabled(std::string_view name, const Switches& switches) {
  auto place = switches.find(name);
  if (place == switches.end()) place = switches.find("ALL");
  return place == switches.end() || place->second;
}

std::vector<RegistrationPtr> select(std::span<const RegistrationPtr> registered,
                                    const Selection& selection) {
  return Ordering(Choice(registered, selection).run()).run();
}

bool runs_first(const PassDescriptor& left, const PassDescriptor& right) {
  if (left.stage != right.stage) return left.stage < right.stage;
  if (left.priority != right.priority) return left.priority > right.priority;
  return left.pass_name < right.pass_name;
}

}  // namespace bringup::engine
