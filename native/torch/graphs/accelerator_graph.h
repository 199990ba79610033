// torch.accelerator.Graph for the driver's device.
#pragma once

#include <string>

namespace bringup::torch_ext::graphs {

// Makes torch.accelerator.Graph of the device with this name one of ours, where torch has it. Once
// in a process.
void register_accelerator_graph(const std::string& device_name);

}  // namespace bringup::torch_ext::graphs
