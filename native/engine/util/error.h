// The one exception of the engine. Bindings turn the code into an exception or a status of theirs.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "engine/util/concat.h"

namespace bringup::engine {

enum class ErrorCode {
  kInvalid,     // an argument that makes no sense here
  kMissing,     // no such node, name, value
  kBusy,        // a transaction is open, or none is
  kPass,        // an edit that a pass must not make
  kExpired,     // a node that was erased
  kDuplicate,   // a name and version that are taken
  kNoProvider,  // the host lacks a provider; the message names it
  kSchema,      // arguments that do not fit their operator
  kFailed,      // a pass, a provider or a library failed
  kInternal,
};
// The bringup_engine_status that the C API gives for it.
int32_t status_of(ErrorCode code);

class EngineError : public std::runtime_error {
 public:
  EngineError(ErrorCode code, const std::string& message)
      : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

// A name as messages show it. (Called quoted, a std::string would be std::quoted's.)
inline std::string in_quotes(std::string_view name) { return concat("'", name, "'"); }

// Throws EngineError with these parts as its message.
template <class... Parts>
[[noreturn]] void throw_error(ErrorCode code, const Parts&... parts) {
  throw EngineError(code, concat(parts...));
}

}  // namespace bringup::engine
