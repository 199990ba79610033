// Loading libbringup_bridge.so, through which passes in Python reach programs that are not.
#pragma once

#include "bringup/engine.h"

namespace bringup::engine {

void python_load(const bringup_python_options& options, uint32_t* count);
void python_unload();
void python_shutdown();
bringup_python_state python_state();
int32_t python_command(const bringup_python_options& options, const char* const* arguments,
                       uint32_t count);

}  // namespace bringup::engine
