#include "engine/run/registry.h"

#include <algorithm>

#include "engine/util/error.h"
#include "engine/util/forever.h"

namespace bringup::engine {
namespace {

thread_local Batch* innermost_batch = nullptr;

std::string qualified_name(const PassDescriptor& descriptor) {
  return descriptor.module_name + "." + descriptor.class_qualname;
}

EngineError taken(const PassDescriptor& first, const PassDescriptor& second) {
  return EngineError(
      ErrorCode::kDuplicate,
      concat("a pass named ", in_quotes(label_of(first)), " is registered already, by ",
             qualified_name(first), "; it stays. Give ", qualified_name(second),
             " another name or version, or unregister the "
             "first"));
}

std::pair<std::string, Version> key_of(const PassDescriptor& descriptor) {
  return {descriptor.pass_name, version_of(descriptor.version)};
}

// Whether registering `second` again changes nothing: the same class of the same file.
bool is_same(const Registration& first, const Registration& second) {
  const bool is_known = !first.descriptor.digest.empty() ||
                        (first.definition != nullptr && first.definition == second.definition);
  return is_known && first.descriptor == second.descriptor;
}

bool is_listed_first(const RegistrationPtr& left, const RegistrationPtr& right) {
  const PassDescriptor& a = left->descriptor;
  const PassDescriptor& b = right->descriptor;
  if (runs_first(a, b) || runs_first(b, a)) return runs_first(a, b);
  return version_of(a.version) > version_of(b.version);
}

}  // namespace

Registry& Registry::instance() { return forever<Registry>(); }

bool Registry::insert(Table& table, const RegistrationPtr& registration) {
  const auto [place, is_new] = table.try_emplace(key_of(registration->descriptor), registration);
  if (is_new) return true;
  if (!is_same(*place->second, *registration)) {
    throw taken(place->second->descriptor, registration->descriptor);
  }
  return false;
}

bool Registry::add(Registration registration) {
  return add(std::make_shared<const Registration>(std::move(registration)));
}

// What is not added goes after the lock does: its definition may need another one.
bool Registry::add(RegistrationPtr registration) {
  const PassDescriptor& descriptor = registration->descriptor;
  check(descriptor);
  if (registration->create == nullptr) {
    throw_error(ErrorCode::kInvalid, "pass '", descriptor.pass_name, "' has no creator");
  }
  const std::lock_guard lock(mutex_);
  Batch* batch = innermost_batch;
  if (batch == nullptr || &batch->registry_ != this) return insert(passes_, registration);
  const auto first = passes_.find(key_of(descriptor));
  if (first == passes_.end()) return insert(batch->added_, registration);
  if (is_same(*first->second, *registration)) return false;
  throw taken(first->second->descriptor, descriptor);
}

std::vector<RegistrationPtr> Registry::all() const {
  std::vector<RegistrationPtr> found;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, registration] : passes_) found.push_back(registration);
  }
  std::sort(found.begin(), found.end(), is_listed_first);
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

RegistrationPtr Registry::find_by_key(std::string_view key, std::string_view version) const {
  const Version wanted = version.empty() ? Version() : version_of(version);
  const std::lock_guard lock(mutex_);
  RegistrationPtr newest;
  for (const auto& [place, registration] : passes_) {
    const bool is_meant = version.empty() || place.second == wanted;
    if (is_meant && registration->descriptor.key() == key) newest = registration;
  }
  return newest;
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

}  // namespace bringup::engine
