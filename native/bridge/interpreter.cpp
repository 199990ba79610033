#include "bridge/interpreter.h"

#include <type_traits>
#include <utility>

#include "bridge_python.h"

namespace bringup::bridge {
namespace {

class Reference {
 public:
  Reference(const PythonApi& api, PyObject* owned) : api_(api), object_(owned) {}
  ~Reference() {
    if (object_ != nullptr) api_.release_object(object_);
  }
  Reference& operator=(Reference&&) = delete;
  PyObject* get() const { return object_; }
  PyObject* release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }

 private:
  const PythonApi& api_;
  PyObject* object_;
};

// What `function` of the package says about it; empty where it cannot be asked.
std::string described(const PythonApi& api, Reference& value, Reference& trace) {
  const Reference module(api, api.import("bringup.passes.host"));
  if (module.get() == nullptr || value.get() == nullptr) return "";
  const Reference describe(api, api.attribute(module.get(), "describe_error"));
  const Reference arguments(api, api.new_tuple(trace.get() != nullptr ? 2 : 1));
  if (describe.get() == nullptr || arguments.get() == nullptr) return "";
  api.set_item(arguments.get(), 0, value.release());
  if (trace.get() != nullptr) api.set_item(arguments.get(), 1, trace.release());
  const Reference said(api, api.call(describe.get(), arguments.get()));
  const Reference bytes(api, said.get() != nullptr ? api.as_utf8(said.get()) : nullptr);
  return bytes.get() != nullptr ? api.bytes(bytes.get()) : "";
}

void clear_error(const PythonApi& api) {
  PyObject* parts[3] = {};
  api.fetch(&parts[0], &parts[1], &parts[2]);
  for (PyObject* part : parts) {
    if (part != nullptr) api.release_object(part);
  }
}

// "3.11.7" of "3.11.7 (main, ...".
std::string version(const PythonApi& api) {
  const std::string whole = api.version();
  return whole.substr(0, whole.find(' '));
}

PyObject* checked(const PythonApi& api, PyObject* object) {
  if (object == nullptr) throw BridgeError{take_error(api)};
  return object;
}

}  // namespace

std::string take_error(const PythonApi& api) {
  PyObject* parts[3] = {};
  api.fetch(&parts[0], &parts[1], &parts[2]);
  api.normalize(&parts[0], &parts[1], &parts[2]);
  Reference type(api, parts[0]), value(api, parts[1]), trace(api, parts[2]);
  const Reference plain(api, value.get() != nullptr ? api.text(value.get()) : nullptr);
  const Reference bytes(api, plain.get() != nullptr ? api.as_utf8(plain.get()) : nullptr);
  std::string text = bytes.get() != nullptr ? api.bytes(bytes.get()) : "Python cannot say why";
  const std::string more = described(api, value, trace);
  clear_error(api);
  return more.empty() ? text : more;
}

void find_module(const PythonApi& api, const char* module, const std::string& folder) {
  const Reference found(api, api.import(module));
  if (found.get() != nullptr) return;
  clear_error(api);
  const Reference sys(api, checked(api, api.import("sys")));
  const Reference path(api, checked(api, api.attribute(sys.get(), "path")));
  const Reference append(api, checked(api, api.attribute(path.get(), "append")));
  const Reference arguments(api, checked(api, api.new_tuple(1)));
  api.set_item(arguments.get(), 0, checked(api, api.new_path(folder.c_str())));
  const Reference none(api, checked(api, api.call(append.get(), arguments.get())));
  const Reference again(api, api.import(module));
  if (again.get() == nullptr) {
    throw BridgeError{"the Python package bringup cannot be imported by Python " + version(api) +
                      ": " + take_error(api)};
  }
}

Interpreter& Interpreter::instance() {
  static constinit Interpreter interpreter;
  static_assert(std::is_trivially_destructible_v<Interpreter>);  // threads may outlive destructors
  return interpreter;
}

namespace {

// CPython ends the process where library and standard library are of different versions.
void check_version(const PythonApi& api, const std::string& library) {
  const std::string full = version(api);
  const std::string minor = "python" + full.substr(0, full.find('.', full.find('.') + 1));
  const std::string expected = BRINGUP_BRIDGE_STANDARD_LIBRARY;
  if (expected == minor || expected == minor + "t") return;
  throw BridgeError{library + " is Python " + full + ", the package beside the bridge is for " +
                    expected + ": name a library of that, or install the package for the other"};
}

}  // namespace

const PythonApi& Interpreter::start(const char* library, const char* program,
                                    const std::filesystem::path& package_folder) {
  if (const PythonApi* api = running()) return *api;  // also for threads that have its lock
  const std::lock_guard lock(mutex_);
  if (api_ != nullptr && api_.load()->is_initialized() == 0) {
    throw BridgeError{
        "the interpreter of this process was finalised, and the package's native modules do not "
        "start twice: run passes before Py_Finalize, or in a new process"};
  }
  if (api_ != nullptr) return *api_;  // another thread was first
  const PythonApi* found = python_of_process();
  if (found == nullptr || found->is_initialized() == 0) {
    const PythonPlace place = place_of_python(library, program, package_folder);
    const std::string name = found != nullptr ? "the libpython of this process" : place.library;
    if (found == nullptr) found = &open_python(place);
    check_version(*found, name);
    begin(*found, place.program);
  }
  api_ = found;
  return *found;
}

void Interpreter::begin(const PythonApi& api, const std::string& program) {
  // It decides where the standard library and packages are.
  program_ = api.decode(program.c_str(), nullptr);
  if (program_ != nullptr && api.set_program != nullptr) api.set_program(program_);
  api.initialize(0);  // signals stay the program's
  if (api.is_initialized() == 0) throw BridgeError{"Python cannot be started for " + program};
  is_owned_ = true;
  main_ = api.save_thread();  // the lock is for the next thread
}

const PythonApi* Interpreter::running() {
  const PythonApi* api = api_;
  return api != nullptr && api->is_initialized() != 0 ? api : nullptr;
}

void Interpreter::end(void (*before)(const PythonApi&)) {
  const std::lock_guard lock(mutex_);
  const PythonApi* api = running();
  if (api == nullptr) return;
  {
    const Gil gil(*api);
    before(*api);
    api->collect();
  }
  if (!is_owned_) return;
  // A thread state of this thread: what ends the interpreter, maybe another's, looks for it.
  api->ensure();
  if (api->thread_state() != main_) {  // threading.py would wait for the thread that began it
    api->clear_thread(main_);
    api->delete_thread(main_);
  }
  is_owned_ = false;
  const int unwritten = api->finalize();
  api->free_text(std::exchange(program_, nullptr));
  if (unwritten != 0) {
    throw BridgeError{"Python ended, but could not write all that it had buffered"};
  }
}

bringup_python_state Interpreter::state() {
  const PythonApi* api = api_;
  if (api == nullptr) return BRINGUP_PYTHON_NONE;
  if (api->is_initialized() == 0) return BRINGUP_PYTHON_ENDED;
  return is_owned_ ? BRINGUP_PYTHON_OWNED : BRINGUP_PYTHON_BORROWED;
}

long call(const PythonApi& api, const char* module, const char* function,
          const std::vector<std::string>& texts, const double* number) {
  const Reference imported(api, checked(api, api.import(module)));
  const Reference callable(api, checked(api, api.attribute(imported.get(), function)));
  const auto size = static_cast<ptrdiff_t>(texts.size());
  const Reference arguments(api, checked(api, api.new_tuple(size + (number != nullptr ? 1 : 0))));
  for (ptrdiff_t i = 0; i < size; ++i) {
    const std::string& text = texts[static_cast<size_t>(i)];
    api.set_item(arguments.get(), i,
                 checked(api, api.new_bytes(text.data(), static_cast<ptrdiff_t>(text.size()))));
  }
  if (number != nullptr) api.set_item(arguments.get(), size, checked(api, api.new_float(*number)));
  const Reference result(api, checked(api, api.call(callable.get(), arguments.get())));
  const long answer = api.as_long(result.get());
  if (answer == -1 && api.error() != nullptr) throw BridgeError{take_error(api)};
  return answer;
}

}  // namespace bringup::bridge
