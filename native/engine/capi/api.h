// The C API's table, filled by one file for each group of functions.
#pragma once

#include "bringup/engine.h"

namespace bringup::engine {

// The table of this process.
const bringup_engine_api* engine_api();

void fill_pass_functions(bringup_engine_api& table);
void fill_building_functions(bringup_engine_api& table);
void fill_reading_functions(bringup_engine_api& table);
void fill_changing_functions(bringup_engine_api& table);
void fill_pattern_functions(bringup_engine_api& table);
void fill_matching_functions(bringup_engine_api& table);
void fill_boundary_functions(bringup_engine_api& table);
void fill_running_functions(bringup_engine_api& table);
void fill_python_functions(bringup_engine_api& table);

}  // namespace bringup::engine
