/* What the simulator's library exports beside bringup_driver_get: faults at run time. Safe from any
 * thread. */
#pragma once

#include "bringup/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets `settings` ("key=value,key=value", docs/devices/faults.md) to work, beside those that are at
 * work already. Returns a number for the functions below; or 0, and why in `problem`. */
BRINGUP_EXPORT uint64_t bringup_sim_add_faults(const char* settings, char* problem,
                                               size_t problem_size);
/* Ends them: events that they lost are done, streams that they held run on. */
BRINGUP_EXPORT void bringup_sim_remove_faults(uint64_t number);
/* What they have seen and done: a line "FUNCTION CALLS INJECTED" for each function that was called,
 * as far as there is room. Returns the size that the whole text has, with its NUL. */
BRINGUP_EXPORT size_t bringup_sim_fault_counts(uint64_t number, char* text, size_t text_size);

#ifdef __cplusplus
} /* extern "C" */
#endif
