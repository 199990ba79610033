#include "engine/registry.h"

#include <algorithm>
#include <set>

#include "engine/error.h"

namespace bringup::engine {
namespace {

thread_local Batch* innermost_batch = nullptr;

std::string words(const PassDescriptor& descriptor) {
  return descriptor.module_name + "." + descriptor.class_qualname;
}

EngineError taken(const PassDescriptor& first, const PassDescriptor& second) {
  return EngineError(ErrorCode::kDuplicate,
                     "a pass named '" + first.pass_name + "' (version " + first.version +
                         ") is registered already, by " + words(first) + "; it stays. Give " +
                         words(second) + " another name or version, or unregister the first");
}

std::pair<std::string, Version> key_of(const PassDescriptor& descriptor) {
  return {descriptor.pass_name, version_of(descriptor.version)};
}

// Whether registering `second` again changes nothing: the same class of the same file.
bool is_same(const PassDescriptor& first, const PassDescriptor& second) {
  return !first.digest.empty() && first == second;
}

bool runs_first(const RegistrationPtr& left, const RegistrationPtr& right) {
  const PassDescriptor& a = left->descriptor;
  const PassDescriptor& b = right->descriptor;
  if (a.stage != b.stage) return a.stage < b.stage;
  if (a.priority != b.priority) return a.priority > b.priority;
  if (a.pass_name != b.pass_name) return a.pass_name < b.pass_name;
  return version_of(a.version) < version_of(b.version);
}

}  // namespace

Registry& Registry::instance() {
  // Never destroyed: a host may use it until the very end of the process.
  static Registry* const registry = new Registry;
  return *registry;
}

bool Registry::insert(Table& table, RegistrationPtr registration) {
  const PassDescriptor& descriptor = registration->descriptor;
  const auto [place, is_new] = table.try_emplace(key_of(descriptor), registration);
  if (is_new) return true;
  if (!is_same(place->second->descriptor, descriptor)) {
    throw taken(place->second->descriptor, descriptor);
  }
  return false;
}

bool Registry::add(Registration registration) {
  check(registration.descriptor);
  if (registration.create == nullptr) {
    throw EngineError(ErrorCode::kInvalid,
                      "pass '" + registration.descriptor.pass_name + "' has no creator");
  }
  auto shared = std::make_shared<const Registration>(std::move(registration));
  const std::lock_guard lock(mutex_);
  Batch* batch = innermost_batch;
  if (batch == nullptr || &batch->registry_ != this) return insert(passes_, std::move(shared));
  const PassDescriptor& descriptor = shared->descriptor;
  const auto first = passes_.find(key_of(descriptor));
  if (first != passes_.end()) {
    if (is_same(first->second->descriptor, descriptor)) return false;
    throw taken(first->second->descriptor, descriptor);
  }
  return insert(batch->added_, std::move(shared));
}

std::vector<RegistrationPtr> Registry::all() const {
  std::vector<RegistrationPtr> found;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, registration] : passes_) found.push_back(registration);
  }
  std::sort(found.begin(), found.end(), runs_first);
  return found;
}

RegistrationPtr Registry::find(std::string_view name, std::string_view version) const {
  const Version wanted = version.empty() ? Version() : version_of(version);
  const std::lock_guard lock(mutex_);
  RegistrationPtr newest;
  for (auto place = passes_.lower_bound({std::string(name), {}});
       place != passes_.end() && place->first.first == name; ++place) {
    if (version.empty() || place->first.second == wanted) newest = place->second;
  }
  return newest;
}

RegistrationPtr Registry::find_by_key(std::string_view key) const {
  const std::lock_guard lock(mutex_);
  RegistrationPtr newest;
  for (const auto& [place, registration] : passes_) {
    if (registration->descriptor.key() == key) newest = registration;
  }
  return newest;
}

std::vector<RegistrationPtr> Registry::select(const std::vector<std::string>* names,
                                              const Versions& versions) const {
  std::map<std::string, RegistrationPtr> chosen;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, registration] : passes_) {
      const auto wanted = versions.find(key.first);
      if (wanted == versions.end() || version_of(wanted->second) == key.second) {
        chosen[key.first] = registration;
      }
    }
  }
  for (const auto& [name, version] : versions) {
    if (chosen.count(name) == 0) {
      throw EngineError(ErrorCode::kMissing,
                        "no pass named '" + name + "' of version " + version + " is registered");
    }
  }
  std::vector<RegistrationPtr> selected;
  if (names == nullptr) {
    for (const auto& [name, registration] : chosen) selected.push_back(registration);
    return running_order(std::move(selected));
  }
  for (const std::string& name : std::set<std::string>(names->begin(), names->end())) {
    const auto place = chosen.find(name);
    if (place == chosen.end()) {
      throw EngineError(ErrorCode::kMissing, "no pass named '" + name + "' is registered");
    }
    selected.push_back(place->second);
  }
  return running_order(std::move(selected));
}

size_t Registry::remove(std::string_view name, std::string_view version) {
  const Version wanted = version.empty() ? Version() : version_of(version);
  std::vector<RegistrationPtr> gone;  // released after the lock: it may close a library
  const std::lock_guard lock(mutex_);
  for (auto place = passes_.begin(); place != passes_.end();) {
    const bool meant =
        place->first.first == name && (version.empty() || place->first.second == wanted);
    if (meant) gone.push_back(place->second);
    place = meant ? passes_.erase(place) : std::next(place);
  }
  return gone.size();
}

size_t Registry::remove(std::span<const RegistrationPtr> registrations) {
  const std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const RegistrationPtr& registration : registrations) {
    const PassDescriptor& descriptor = registration->descriptor;
    const auto place = passes_.find(key_of(descriptor));
    if (place != passes_.end() && place->second == registration) {
      passes_.erase(place);
      ++count;
    }
  }
  return count;
}

void Registry::clear() {
  Table gone;
  const std::lock_guard lock(mutex_);
  gone.swap(passes_);
}

Batch::Batch(Registry& registry) : registry_(registry), outer_(innermost_batch) {
  innermost_batch = this;
}

Batch::~Batch() { innermost_batch = outer_; }

std::vector<RegistrationPtr> Batch::commit() {
  const std::lock_guard lock(registry_.mutex_);
  Registry::Table merged = registry_.passes_;
  std::vector<RegistrationPtr> fresh;
  for (const auto& [key, registration] : added_) {
    if (Registry::insert(merged, registration)) fresh.push_back(registration);
  }
  registry_.passes_.swap(merged);
  return fresh;
}

namespace {

class Ordering {
 public:
  explicit Ordering(std::vector<RegistrationPtr> selected) : passes_(std::move(selected)) {
    std::sort(passes_.begin(), passes_.end(), runs_first);
    for (const RegistrationPtr& pass : passes_) by_name_[pass->descriptor.pass_name] = pass.get();
  }

  std::vector<RegistrationPtr> run() {
    for (const RegistrationPtr& pass : passes_) check_constraints(pass->descriptor);
    std::vector<RegistrationPtr> ordered;
    std::vector<RegistrationPtr> waiting = std::move(passes_);
    while (!waiting.empty()) {
      const auto next = std::find_if(waiting.begin(), waiting.end(),
                                     [&](const auto& pass) { return is_free(*pass); });
      if (next == waiting.end()) throw cycle(waiting);
      placed_.insert(next->get());
      ordered.push_back(*next);
      waiting.erase(next);
    }
    return ordered;
  }

 private:
  void check_constraints(const PassDescriptor& pass) const {
    for (const std::string& name : pass.requires_all) {
      if (by_name_.count(name) == 0) {
        throw EngineError(ErrorCode::kMissing, "pass '" + pass.pass_name + "' requires pass '" +
                                                   name + "', which is not selected");
      }
    }
    for (const std::vector<std::string>* names : {&pass.requires_all, &pass.after}) {
      for (const std::string& name : *names) {
        const auto other = by_name_.find(name);
        if (other == by_name_.end() || other->second->descriptor.stage <= pass.stage) continue;
        throw EngineError(ErrorCode::kInvalid,
                          "pass '" + pass.pass_name + "' of stage " +
                              std::string(name_of(pass.stage)) + " cannot run after '" + name +
                              "' of the later stage " +
                              std::string(name_of(other->second->descriptor.stage)));
      }
    }
  }

  bool is_free(const Registration& pass) const {
    const auto is_done = [&](const std::string& name) {
      const auto other = by_name_.find(name);
      return other == by_name_.end() || placed_.count(other->second) != 0;
    };
    const PassDescriptor& descriptor = pass.descriptor;
    return std::all_of(descriptor.requires_all.begin(), descriptor.requires_all.end(), is_done) &&
           std::all_of(descriptor.after.begin(), descriptor.after.end(), is_done);
  }

  static EngineError cycle(const std::vector<RegistrationPtr>& waiting) {
    std::string names;
    for (const RegistrationPtr& pass : waiting) {
      names += (names.empty() ? "'" : ", '") + pass->descriptor.pass_name + "'";
    }
    return EngineError(ErrorCode::kInvalid,
                       "passes cannot be ordered, each is to run after another one: " + names);
  }

  std::vector<RegistrationPtr> passes_;
  std::map<std::string, const Registration*, std::less<>> by_name_;
  std::set<const Registration*> placed_;
};

}  // namespace

std::vector<RegistrationPtr> running_order(std::vector<RegistrationPtr> selected) {
  return Ordering(std::move(selected)).run();
}

}  // namespace bringup::engine
