// A driver's table whose calls are written to a file, as the driver answered them.
#pragma once

#include <string>

#include "bringup/driver.h"
#include "driver/trace_file.h"

namespace bringup::driver {

// Functions that call those of `real`, which lives in the file `library`, and write each call to
// the trace; where `real` has none there is none. A process has one trace: a later call takes the
// place of the former one. Where payload is kept there is no host_view, so that all that the host
// writes to the device passes through a copy. Throws std::runtime_error when the file cannot be
// written.
bringup_driver traced(const bringup_driver& real, const std::string& library,
                      const TraceOptions& options);

// The file that is written, or "".
std::string trace_path();

}  // namespace bringup::driver
