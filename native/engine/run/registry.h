// Which passes there are. Two versions of a pass may stand side by side.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/run/creation.h"
#include "engine/run/selection.h"

namespace bringup::engine {

class Registry {
 public:
  // The registry of the process.
  static Registry& instance();

  // Adds a pass, or does nothing when the same definition (an equal descriptor, and a digest that
  // is known or the same class) is there already: then false. EngineError(kDuplicate) when name and
  // version are taken; the first stays. While a Batch is open on this thread, the pass is seen by
  // others only after its commit.
  bool add(RegistrationPtr registration);
  bool add(Registration registration);

  // Every registered pass by stage, priority and name, versions of one name from new to old.
  std::vector<RegistrationPtr> all() const;
  // By name or by descriptor key, the newest or the given version. nullptr: none.
  RegistrationPtr find(std::string_view name, std::string_view version = "") const;
  RegistrationPtr find_by_key(std::string_view key, std::string_view version = "") const;

  // What of all() shall run, in running order; see selection.h.
  std::vector<RegistrationPtr> select(const Selection& selection = {}) const {
    return engine::select(all(), selection);
  }

  // Forget passes; how many were forgotten. Without a version: every one.
  size_t remove(std::string_view name, std::string_view version = "");
  // Forgets exactly these registrations, if they still stand.
  size_t remove(std::span<const RegistrationPtr> registrations);
  void clear();

 private:
  friend class Batch;
  using Table = std::map<std::pair<std::string, Version>, RegistrationPtr>;

  static bool insert(Table& table, const RegistrationPtr& registration);

  mutable std::mutex mutex_;
  Table passes_;
};

// Collects what this thread registers, and makes it visible all at once or, without commit, not at
// all. No lock is held. Batches nest; each stands for itself.
class Batch {
 public:
  explicit Batch(Registry& registry);
  ~Batch();
  Batch& operator=(Batch&&) = delete;

  // Registers all; returns those that are new. EngineError(kDuplicate), and none is registered,
  // when another thread took a name.
  std::vector<RegistrationPtr> commit();

 private:
  friend class Registry;
  Registry& registry_;
  Batch* outer_;
  Registry::Table added_;
};

}  // namespace bringup::engine
