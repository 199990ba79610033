#include "driver/call.h"

#include <cstdio>
#include <cstring>

#include "engine/util/forever.h"

namespace bringup::driver {
namespace {

thread_local char t_words[kWords];
thread_local bringup_error_detail t_detail;  // of a failure that was kept

}  // namespace

State& state() { return forever<State>(); }

char* words() noexcept { return t_words; }

const bringup_error_detail& kept_detail() noexcept { return t_detail; }

int32_t fail(int32_t status, const std::string& what) {
  t_detail = {};
  t_detail.device = -1;
  std::snprintf(t_words, sizeof t_words, "%s", what.c_str());
  return status;
}

int32_t too_long(const char* function, const std::string& what) {
  char text[kWords];
  std::snprintf(text, sizeof text, "%s: %s has not ended after %.1f s (BRINGUP_WAIT_TIMEOUT)",
                function, what.c_str(), static_cast<double>(wait_limit().count()) / 1e9);
  return fail(BRINGUP_ERROR, text);
}

void keep_words() {
  if (t_words[0] != '\0') return;
  const char* said = real().last_error != nullptr ? real().last_error() : nullptr;
  const std::string text = said != nullptr ? std::string(said, strnlen(said, kWords - 1)) : "";
  bringup_error_detail detail{};
  detail.struct_size = sizeof detail;
  const bool has_detail =
      real().error_detail != nullptr && real().error_detail(&detail) == BRINGUP_OK;
  fail(BRINGUP_ERROR, text);
  if (!has_detail) return;
  detail.kernel[sizeof detail.kernel - 1] = detail.text[sizeof detail.text - 1] = '\0';
  t_detail = detail;
}

int32_t known(const char* function, int32_t status, bool is_query) {
  if (status == BRINGUP_OK) return status;
  if (status < BRINGUP_OK || status > BRINGUP_ERROR) {
    return broken(function, "returned the status ", status, ", which there is not");
  }
  if (status == BRINGUP_NOT_READY && !is_query) {
    return broken(function, "returned BRINGUP_NOT_READY, which only queries may");
  }
  return status;
}

int32_t loaded(const char* function, int32_t status, void* module) {
  if (status != BRINGUP_OK) return status;
  if (module == nullptr) return broken(function, "returned BRINGUP_OK and no module");
  state().modules.add(module);
  return BRINGUP_OK;
}

}  // namespace bringup::driver
