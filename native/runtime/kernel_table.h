// The kernel table: every loaded kernel entry under a number that Python can hold. A holder of
// the shared_ptr keeps the library mapped, so nothing is closed under a running call, an operator
// or a graph.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "bringup/kernel.h"
#include "runtime/export.h"
#include "runtime/loader.h"

namespace bringup::runtime {

// How a kernel is started. On cpu both are a plain call.
enum class KernelKind : uint8_t {
  kHostEntry,   // runs on the host, gets device pointers and the native stream, launches itself
  kDeviceCode,  // started by the driver over a grid
};

class ValuesCode;

struct Kernel {
  std::string name;
  bringup_kernel_fn run = nullptr;  // null: only a driver can start it
  KernelKind kind = KernelKind::kHostEntry;
  std::shared_ptr<Library> library;                  // null when `run` is no symbol of a library
  bringup_can_implement_fn can_implement = nullptr;  // null: it takes every call
  // Of device code with plain arguments, started by launch_values; null: kernel.h's form.
  std::shared_ptr<const ValuesCode> values;
};

using KernelId = uint64_t;  // 0 is never given out

// Loads `entry` of the library at `path` and puts it into the table. Throws std::runtime_error when
// the library or the symbol is not there, or when its `bringup_abi` is a version we do not speak.
BRINGUP_API KernelId load_kernel(const std::string& path, const std::string& entry,
                                 KernelKind kind);
// The same for device code in a file that only its driver can read.
BRINGUP_API KernelId keep_device_code(const std::string& path, const std::string& entry);

class BRINGUP_API KernelTable {
 public:
  static KernelTable& instance();

  KernelId add(Kernel kernel);
  // The same for a kernel that is part of something which lives as long.
  KernelId add(std::shared_ptr<const Kernel> kernel);
  // Throws std::out_of_range for an id that was never given or was released.
  std::shared_ptr<const Kernel> get(KernelId id) const;
  // The same, or null.
  std::shared_ptr<const Kernel> find(KernelId id) const noexcept;
  // Drops the table's reference; holders keep theirs. False when there was nothing under `id`.
  bool release(KernelId id);
  // Drops the table's reference if it is the only one, so that the library is closed. False when
  // other code (an operator, a graph, a running launch) holds the kernel: it then stays under
  // `id`. True when there was nothing.
  bool release_unused(KernelId id);

 private:
  KernelTable() = default;
};

}  // namespace bringup::runtime
