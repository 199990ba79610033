// Libraries with passes: loaded once, whole or not at all, closed when nothing refers to them.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/run/registry.h"

namespace bringup::engine {

class PluginLoader {
 public:
  static PluginLoader& instance();

  // Loads the library at `path` and registers its passes; those it has. A library that is loaded
  // already, unchanged, stays as it is; a changed one takes the place of the former. Inside of its
  // own loading (a nested load) a library counts as loaded. EngineError when it cannot be opened,
  // exports no bringup_register_passes, or that fails or throws: then nothing of it is registered.
  //
  // No lock is held while code of the library runs; another thread that wants the same library
  // waits, unless the two would wait for each other: then it is refused.
  std::vector<RegistrationPtr> load(const std::string& path);

  // Forgets the passes of a library, if it is loaded; it closes with its last session.
  bool unload(const std::string& path);
  void unload_all();

  // The libraries that are loaded, by path.
  std::vector<std::string> loaded() const;

 private:
  struct Entry {
    std::thread::id loader;  // the thread that loads it now; none when it is loaded
    std::string digest;
    std::vector<RegistrationPtr> passes;
  };

  bool wait_for(std::unique_lock<std::mutex>& lock, const std::string& path);
  bool would_deadlock(const std::string& path) const;
  bool is_stale(const std::string& path, const std::string& digest);
  std::vector<RegistrationPtr> open(const std::string& path, const std::string& digest);
  void finish(const std::string& path, std::vector<RegistrationPtr> passes, bool succeeded);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Entry> entries_;
  std::map<std::thread::id, std::string> waiting_;
  std::map<std::string, std::string> opened_;  // path -> digest of what is mapped under it
};

}  // namespace bringup::engine
