// How the simulator reports: an exception inside, a status and this thread's message at the C
// border.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

#include "bringup/driver.h"
#include "engine/util/concat.h"

namespace bringup::sim {

// What error_detail tells beyond the text.
struct ErrorDetail {
  int64_t code = 0;  // what a kernel returned
  int32_t device = -1;
  void* stream = nullptr;
  std::string kernel;
  std::string text;
};

// A refused call or a failed piece of work.
class SimError : public std::exception {
 public:
  SimError(bringup_status status, std::string text, ErrorDetail detail = {})
      : status_(status), text_(std::move(text)), detail_(std::move(detail)) {}

  bringup_status status() const noexcept { return status_; }
  const char* what() const noexcept override { return text_.c_str(); }
  const ErrorDetail& detail() const noexcept { return detail_; }

 private:
  bringup_status status_;
  std::string text_;
  ErrorDetail detail_;
};

template <class... Parts>
[[noreturn]] void refuse(bringup_status status, const Parts&... parts) {
  throw SimError(status, concat(parts...));
}

// This thread's message for last_error() and its detail; kept until its next failure.
std::string& last_error_text();
ErrorDetail& last_error_detail();

// Runs `body` behind the C border: nothing is thrown over it. `body` returns a status.
template <typename Body>
int32_t guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (const SimError& error) {
    last_error_text() = error.what();
    last_error_detail() = error.detail();
    return error.status();
  } catch (const std::bad_alloc&) {
    last_error_text() = "the simulated NPU ran out of host memory";
    last_error_detail() = {};
    return BRINGUP_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    last_error_text() = error.what();
    last_error_detail() = {};
    return BRINGUP_ERROR;
  }
}

template <auto kFunction>
struct Guarded;

template <class Status, class... Arguments, Status (*kFunction)(Arguments...)>
struct Guarded<kFunction> {
  static int32_t call(Arguments... arguments) noexcept {
    return guarded([&]() -> int32_t {
      if constexpr (std::is_void_v<Status>) {
        kFunction(arguments...);
        return BRINGUP_OK;
      } else {
        return kFunction(arguments...);
      }
    });
  }
};

// The function of the driver's table that calls `kFunction`, which throws failures; what returns
// nothing succeeds.
template <auto kFunction>
constexpr auto guarded_call = &Guarded<kFunction>::call;

}  // namespace bringup::sim
