/* What libbringup_bridge.so gives to libbringup_engine.so, which loads it with dlopen. Internal:
 * programs use the python_* functions of bringup/engine.h. */
#ifndef BRINGUP_BRIDGE_H_
#define BRINGUP_BRIDGE_H_

#include "bringup/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Functions return 0, or -1 and then last_error() says why, for the calling thread. */
typedef struct bringup_bridge_table {
  uint32_t struct_size;
  const char* build_key; /* that of the engine, or the pair is refused */
  const char* (*last_error)(void);
  /* Makes sure of an interpreter and of the package, and begins a round: finds passes. */
  int32_t (*load)(const bringup_python_options* options, uint32_t* count);
  int32_t (*unload)(void);
  /* Ends the interpreter if the bridge began it. */
  int32_t (*shutdown)(void);
  int32_t (*command)(const bringup_python_options* options, const char* const* arguments,
                     uint32_t count, int32_t* exit_code);
  int32_t (*state)(void); /* of bringup_python_state */
} bringup_bridge_table;

/* Exported as bringup_bridge_get. `path` is that of the bridge. */
typedef const bringup_bridge_table* (*bringup_bridge_get_fn)(const char* path);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* BRINGUP_BRIDGE_H_ */
