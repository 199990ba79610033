// fill_ and zero_ of a device.
#pragma once

namespace bringup::torch_ext {

// A part of install_driver, before register_fallback().
void register_fills();

}  // namespace bringup::torch_ext
