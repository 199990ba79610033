// A pass whose hooks are C functions.
#pragma once

#include "engine/capi/handles.h"

namespace bringup::engine {

// What `register_pass` copied; a Registration's definition.
struct PassDefinition {
  bringup_pass_definition hooks;  // its strings are not used: the descriptor has them
};

// The creator of every such pass: makes an instance of the one that is being created.
std::unique_ptr<Pass> create_c_pass();

}  // namespace bringup::engine
