#include "engine/capi/plugin_loader.h"

#include <dlfcn.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "bringup/engine.h"
#include "engine/capi/api.h"
#include "engine/capi/handles.h"
#include "engine/util/error.h"
#include "engine/util/forever.h"
#include "engine/util/sha256.h"
#include "runtime/loader.h"

namespace bringup::engine {
namespace {

constexpr const char* kEntry = "bringup_register_passes";

std::string real_path(const std::string& path) {
  char resolved[PATH_MAX];
  if (realpath(path.c_str(), resolved) == nullptr) {
    throw_error(ErrorCode::kMissing, "library ", engine::in_quotes(path), ": ",
                std::strerror(errno));
  }
  return resolved;
}

// Identifies the file that was loaded, to see that it changed.
std::string digest_of(const std::string& path) {
  const std::string digest = sha256_of_file(path);
  if (!digest.empty()) return digest;
  throw_error(ErrorCode::kMissing, "cannot read library ", engine::in_quotes(path));
}

// A library of this path that is still mapped would be opened again, whatever the file is now.
bool is_mapped(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) return false;
  dlclose(handle);
  return true;
}

// Opens a copy, under a name that nothing has.
std::shared_ptr<runtime::Library> open_copy(const std::string& path) {
  namespace fs = std::filesystem;
  std::string pattern = (fs::temp_directory_path() / "bringup-passes-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) {
    throw std::runtime_error("cannot make a temporary folder: " + std::string(strerror(errno)));
  }
  const fs::path folder = pattern;
  const fs::path copy = folder / fs::path(path).filename();
  std::error_code ignored;  // what cannot be removed stays in the temporary folder
  try {
    fs::copy_file(path, copy);
    std::shared_ptr<runtime::Library> library = runtime::Library::open(copy.string());
    fs::remove_all(folder, ignored);
    return library;
  } catch (...) {
    fs::remove_all(folder, ignored);
    throw;
  }
}

// What the library's entry said, an exception included.
void call_entry(bringup_register_passes_fn entry, const std::string& path) {
  int32_t status = 0;
  std::string why;
  clear_hook_error();
  try {
    status = entry(engine_api());
    why = take_hook_error(status);
  } catch (const std::exception& error) {  // its class may live in the library
    status = BRINGUP_ENGINE_FAILED;
    why = std::string("it threw: ") + error.what();
  } catch (...) {
    status = BRINGUP_ENGINE_FAILED;
    why = "it threw something that is no std::exception";
  }
  if (status == BRINGUP_ENGINE_OK) return;
  throw_error(ErrorCode::kFailed, kEntry, " of ", engine::in_quotes(path), " returned status ",
              status, (why.empty() ? "" : ": " + why));
}

}  // namespace

PluginLoader& PluginLoader::instance() { return forever<PluginLoader>(); }

std::vector<RegistrationPtr> PluginLoader::load(const std::string& given) {
  const std::string path = real_path(given);
  const std::string digest = digest_of(path);
  std::vector<RegistrationPtr> former;
  {
    std::unique_lock lock(mutex_);
    if (!wait_for(lock, path)) return {};
    const auto place = entries_.find(path);
    if (place != entries_.end()) {
      if (place->second.digest == digest) return place->second.passes;
      former = std::move(place->second.passes);
      entries_.erase(place);
    }
    entries_[path] = Entry{std::this_thread::get_id(), digest, {}};
  }
  Registry::instance().remove(former);
  former.clear();
  try {
    std::vector<RegistrationPtr> passes = open(path, digest);
    finish(path, passes, true);
    return passes;
  } catch (...) {
    finish(path, {}, false);
    throw;
  }
}

// Waits until no thread loads `path`; false when this thread itself does.
bool PluginLoader::wait_for(std::unique_lock<std::mutex>& lock, const std::string& path) {
  const std::thread::id self = std::this_thread::get_id();
  while (true) {
    const auto place = entries_.find(path);
    if (place == entries_.end() || place->second.loader == std::thread::id()) return true;
    if (place->second.loader == self) return false;
    if (would_deadlock(path)) {
      throw_error(ErrorCode::kBusy, "library ", engine::in_quotes(path),
                  " is being loaded by a thread that waits for one "
                  "that this thread loads");
    }
    waiting_[self] = path;
    changed_.wait(lock);
    waiting_.erase(self);
  }
}

// Whether the thread that loads `path` waits, directly or not, for what this thread loads.
bool PluginLoader::would_deadlock(const std::string& path) const {
  std::string wanted = path;
  while (true) {
    const auto entry = entries_.find(wanted);
    if (entry == entries_.end()) return false;
    if (entry->second.loader == std::this_thread::get_id()) return true;
    const auto next = waiting_.find(entry->second.loader);
    if (next == waiting_.end()) return false;
    wanted = next->second;
  }
}

// Whether opening `path` would give another content than `digest`: an older one is still mapped.
bool PluginLoader::is_stale(const std::string& path, const std::string& digest) {
  const bool mapped = is_mapped(path);
  const std::lock_guard lock(mutex_);
  const auto place = opened_.find(path);
  if (mapped && place != opened_.end() && place->second != digest) return true;
  opened_[path] = digest;
  return false;
}

std::vector<RegistrationPtr> PluginLoader::open(const std::string& path,
                                                const std::string& digest) {
  const bool stale = is_stale(path, digest);
  std::shared_ptr<runtime::Library> library;
  void* entry = nullptr;
  try {
    library = stale ? open_copy(path) : runtime::Library::open(path);
    entry = library->symbol(kEntry);
  } catch (const std::runtime_error& error) {
    throw_error(ErrorCode::kFailed, "library ", engine::in_quotes(path),
                " cannot be loaded: ", error.what());
  }
  const Origin origin{path, digest, library};
  const OriginScope scope(origin);
  Batch batch(Registry::instance());
  call_entry(reinterpret_cast<bringup_register_passes_fn>(entry), path);
  return batch.commit();
}

void PluginLoader::finish(const std::string& path, std::vector<RegistrationPtr> passes,
                          bool succeeded) {
  {
    const std::lock_guard lock(mutex_);
    if (succeeded) {
      entries_[path].loader = {};
      entries_[path].passes = std::move(passes);
    } else {
      entries_.erase(path);
    }
  }
  changed_.notify_all();
}

bool PluginLoader::unload(const std::string& given) {
  char resolved[PATH_MAX];
  // A file that is gone was loaded under the path that it had.
  const std::string path = realpath(given.c_str(), resolved) != nullptr ? resolved : given;
  std::vector<RegistrationPtr> passes;
  {
    std::unique_lock lock(mutex_);
    if (!wait_for(lock, path)) return false;
    const auto place = entries_.find(path);
    if (place == entries_.end()) return false;
    passes = std::move(place->second.passes);
    entries_.erase(place);
  }
  Registry::instance().remove(passes);
  return true;
}

void PluginLoader::unload_all() {
  for (const std::string& path : loaded()) unload(path);
}

std::vector<std::string> PluginLoader::loaded() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> paths;
  for (const auto& [path, entry] : entries_) {
    if (entry.loader == std::thread::id()) paths.push_back(path);
  }
  return paths;
}

}  // namespace bringup::engine
