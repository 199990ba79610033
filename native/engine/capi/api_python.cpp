// The C API: passes in Python for programs that are not.
#include "engine/capi/api.h"
#include "engine/capi/bridge.h"
#include "engine/capi/handles.h"
#include "engine/capi/marshal.h"

namespace bringup::engine {
namespace {

bringup_python_options python_options_of(const bringup_python_options* given_options) {
  if (given_options == nullptr) return {sizeof(bringup_python_options)};
  bringup_python_options options = whole(given_options, "options");
  options.struct_size = sizeof(options);
  return options;
}

void load(const bringup_python_options* options, uint32_t* count) {
  uint32_t found = 0;
  python_load(python_options_of(options), &found);
  if (count != nullptr) *count = found;
}

void unload() { python_unload(); }

void shut_down() { python_shutdown(); }

int32_t state() { return python_state(); }

void command(const bringup_python_options* options, const char* const* arguments, uint32_t count,
             int32_t* exit_code) {
  if (count > 0) given(arguments, "arguments");
  for (uint32_t index = 0; index < count; ++index) text_given(arguments[index], "an argument");
  given(exit_code, "exit_code");
  *exit_code = python_command(python_options_of(options), arguments, count);
}

}  // namespace

void fill_python_functions(bringup_engine_api& table) {
  table.python_load = api<load>;
  table.python_unload = api<unload>;
  table.python_shutdown = api<shut_down>;
  table.python_state = state;
  table.python_command = api<command>;
}

}  // namespace bringup::engine
