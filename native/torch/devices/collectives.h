// Collectives on the device: torch's own error where no backend has them, with what to do.
#pragma once

namespace bringup::torch_ext {

// A part of install_driver.
void register_collectives();

}  // namespace bringup::torch_ext
