// The interpreter: the program's, or one that the bridge begins and then ends.
#pragma once

#include <atomic>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "bridge/error.h"
#include "bridge/python_api.h"
#include "bridge/python_place.h"
#include "bringup/engine.h"

namespace bringup::bridge {

// Holds the interpreter's lock, on a thread that may hold it already.
class Gil {
 public:
  explicit Gil(const PythonApi& api) : api_(api), state_(api.ensure()) {}
  ~Gil() { api_.release(state_); }
  Gil& operator=(Gil&&) = delete;

 private:
  const PythonApi& api_;
  int state_;
};

class Interpreter {
 public:
  static Interpreter& instance();

  // Begins one unless the process has one. `library` and `program` as in bringup_python_options.
  const PythonApi& start(const char* library, const char* program,
                         const std::filesystem::path& package_folder);
  // Null where none runs, or the bridge never used it.
  const PythonApi* running();
  // Ends it, if it is the bridge's own. `before` is called with the lock while it still runs.
  void end(void (*before)(const PythonApi&));
  bringup_python_state state();

 private:
  void begin(const PythonApi& api, const std::string& program);

  // Begins and ends one at a time. A holder of this mutex may wait for the interpreter's lock, so
  // nothing may wait for this mutex with that lock: what such threads ask is atomic.
  std::mutex mutex_;
  std::atomic<const PythonApi*> api_ = nullptr;  // once it is used
  std::atomic<bool> is_owned_ = false;
  wchar_t* program_ = nullptr;     // Python reads it as long as it runs
  PyThreadState* main_ = nullptr;  // of the thread that began the bridge's own interpreter
};

// Takes the exception that is set, with its traceback where it can be made. With the lock.
std::string take_error(const PythonApi& api);

// Imports `module` and calls `function` of it with bytes, or with a number after them. The result
// as an integer. With the lock. Throws BridgeError with the exception and its traceback.
long call(const PythonApi& api, const char* module, const char* function,
          const std::vector<std::string>& texts, const double* number = nullptr);

// Makes sure that `module` can be imported; `folder`, where the package lies, is looked at last.
// With the lock.
void find_module(const PythonApi& api, const char* module, const std::string& folder);

}  // namespace bringup::bridge
