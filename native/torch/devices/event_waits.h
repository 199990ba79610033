#pragma once

namespace bringup::torch_ext {

// Whether events that the driver refuses to this thread are waited for on the host, in place of an
// error: torch's Future does not survive one while it is completed, and who waits for it would
// wait for ever.
bool& waits_in_place_of_events() noexcept;

}  // namespace bringup::torch_ext
