#include "engine/capi/api.h"

#include "engine/capi/handles.h"

namespace bringup::engine {
namespace {

bringup_engine_api make_table() {
  bringup_engine_api table{};
  table.struct_size = sizeof(table);
  table.abi_version = BRINGUP_ENGINE_ABI;
  table.last_error = [] { return last_error(); };
  table.set_error = [](const char* message) { set_hook_error(message); };
  fill_pass_functions(table);
  fill_building_functions(table);
  fill_reading_functions(table);
  fill_changing_functions(table);
  fill_pattern_functions(table);
  fill_matching_functions(table);
  fill_boundary_functions(table);
  fill_running_functions(table);
  fill_python_functions(table);
  return table;
}

}  // namespace

const bringup_engine_api* engine_api() {
  static const bringup_engine_api table = make_table();
  return &table;
}

}  // namespace bringup::engine
