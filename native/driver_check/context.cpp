#include "driver_check/context.h"

#include <algorithm>
#include <chrono>
#include <random>

namespace bringup::driver_check {
namespace {

constexpr double kHoldSeconds = 2;
constexpr size_t kMostWords = 4096;
const char kBroken[] = "the driver breaks the contract of bringup/driver.h: ";

}  // namespace

const char* status_name(int32_t status) {
  constexpr const char* kNames[] = {
      "BRINGUP_OK",          "BRINGUP_INVALID",     "BRINGUP_OUT_OF_MEMORY", "BRINGUP_NOT_READY",
      "BRINGUP_UNSUPPORTED", "BRINGUP_DEVICE_LOST", "BRINGUP_KERNEL_FAILED", "BRINGUP_ERROR",
      "BRINGUP_TIMEOUT"};
  if (status >= 0 && status < static_cast<int32_t>(std::size(kNames))) return kNames[status];
  thread_local char text[32];
  std::snprintf(text, sizeof text, "status %d", status);
  return text;
}

std::string hex(const void* address) {
  if (address == nullptr) return "NULL";
  char text[32];
  std::snprintf(text, sizeof text, "%p", address);
  return text;
}

std::string next_name(const char*& names) {
  const size_t length = std::strcspn(names, " ");
  std::string name(names, length);
  names += length + (names[length] == ' ' ? 1 : 0);
  return name;
}

Failure::Failure(std::string why, std::string wanted, std::string had)
    : reason(std::move(why)), expected(std::move(wanted)), got(std::move(had)) {
  if (Journal* journal = current_journal()) journal->note_failure(reason, expected, got);
}

std::string Context::words() {
  if (table_.last_error == nullptr) return "";
  set_activity("last_error");
  const char* text = table_.last_error();
  set_activity(nullptr);
  return text != nullptr ? std::string(text, strnlen(text, kMostWords)) : "";
}

void Context::require_honest(const Field&, int32_t status) {
  if (status != BRINGUP_ERROR) return;
  const std::string said = words();
  if (said.rfind(kBroken, 0) != 0) return;
  throw Failure{said.substr(sizeof kBroken - 1), "an answer that driver.h allows", said};
}

void Context::refuse(const Field& field, int32_t status, const char* expected) {
  std::string got = status_name(status);
  if (status != BRINGUP_OK) {
    if (const std::string said = words(); !said.empty()) got += " (" + said + ")";
  }
  throw Failure{std::string(field.name) + " returned " + got, expected, got};
}

int32_t Context::device_count() {
  int32_t count = 0;
  must<&D::device_count>(&count);
  return count;
}

bringup_device_props Context::props(int32_t device) {
  bringup_device_props props{};
  props.struct_size = sizeof props;
  must<&D::device_props>(device, &props);
  return props;
}

size_t Context::at_most(size_t bytes) { return std::min<size_t>(bytes, props(0).total_memory / 8); }

const char* Context::kernels() {
  if (!kernels_.device.empty()) return kernels_.device.c_str();
  return props(0).runs_host_code != 0 ? kernels_.host.c_str() : "";
}

size_t Context::alignment(int32_t device) { return std::max<size_t>(props(device).alignment, 64); }

void Context::copy(bringup_copy_kind kind, int32_t device, void* dst, const void* src, size_t bytes,
                   bringup_stream stream) {
  must<&D::copy_async>(kind, device, dst, device, src, bytes, stream);
}

void Context::upload(int32_t device, void* dst, const Bytes& from, bringup_stream stream) {
  copy(BRINGUP_HOST_TO_DEVICE, device, dst, from.data(), from.size(), stream);
  synchronize(device, stream);
}

Bytes Context::download(int32_t device, const void* src, size_t bytes, bringup_stream stream) {
  Bytes into(bytes, 0xcd);
  copy(BRINGUP_DEVICE_TO_HOST, device, into.data(), src, bytes, stream);
  synchronize(device, stream);
  return into;
}

void Context::synchronize(int32_t device, bringup_stream stream) {
  must<&D::stream_synchronize>(device, stream);
}

void Context::wait_done(bringup_event event, double seconds) {
  const double deadline = now_seconds() + seconds;
  while (true) {
    const int32_t status = call<&D::event_query>(event);
    if (status == BRINGUP_OK) return;
    if (status != BRINGUP_NOT_READY) must_give<&D::event_query>(BRINGUP_OK, event);
    if (now_seconds() > deadline) {
      char text[96];
      std::snprintf(text, sizeof text,
                    "event_query still returns BRINGUP_NOT_READY %.0f s after the record", seconds);
      throw Failure{text, "BRINGUP_OK once the work before the record is done",
                    "BRINGUP_NOT_READY"};
    }
    pause_milliseconds(1);
  }
}

Memory::Memory(Context& context, int32_t device, size_t bytes)
    : Held(context), device_(device), bytes_(bytes) {
  context_.must<&D::mem_alloc>(device, bytes, &address_);
}
Memory::~Memory() { context_.give_back<&D::mem_free>(device_, address_); }

void Memory::expect(const Bytes& content, const std::string& what, bringup_stream stream) const {
  expect_bytes(context_.download(device_, address_, bytes_, stream), content, what);
}

Stream::Stream(Context& context, int32_t device, int32_t priority)
    : Held(context), device_(device) {
  context_.must<&D::stream_create>(device, priority, &handle_);
}
Stream::~Stream() {
  context_.give_back<&D::stream_synchronize>(device_, handle_);
  if (context_.has<&D::stream_destroy>()) context_.give_back<&D::stream_destroy>(handle_);
}

Event::Event(Context& context, int32_t device, int32_t timing) : Held(context) {
  context_.must<&D::event_create>(device, timing, &handle_);
}
Event::~Event() { context_.give_back<&D::event_destroy>(handle_); }

Gate::Gate(Context& context, int32_t device, bringup_stream stream) {
  auto* held = new std::shared_ptr<State>(state_);  // of the function, which may run late
  try {
    context.must<&D::host_func>(device, stream, &Gate::hold, static_cast<void*>(held));
  } catch (...) {
    open();  // whether the driver still runs it is not known, so `held` stays
    throw;
  }
}

void Gate::hold(void* user) {
  const std::unique_ptr<std::shared_ptr<State>> held(static_cast<std::shared_ptr<State>*>(user));
  State& state = **held;
  const bool is_caller = state.caller == std::this_thread::get_id();
  const double deadline = now_seconds() + kHoldSeconds;
  while (!is_caller && !state.open && now_seconds() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  state.ended = true;
}

void Gate::require_holding() const {
  if (state_->ended) {
    throw Skipped{"the driver runs host functions before host_func returns: nothing is pending"};
  }
}

void Gate::open() { state_->open = true; }

Bytes pattern(size_t bytes, uint64_t seed) {
  Bytes made(bytes);
  std::mt19937_64 numbers(seed * 2654435761u + 17);
  size_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    const uint64_t next = numbers();
    std::memcpy(&made[at], &next, 8);
  }
  const uint64_t next = numbers();
  for (size_t i = 0; at + i < bytes; ++i) made[at + i] = static_cast<uint8_t>(next >> (8 * i));
  return made;
}

void expect_bytes(const uint8_t* got, const uint8_t* expected, size_t bytes,
                  const std::string& what) {
  if (bytes == 0 || std::memcmp(got, expected, bytes) == 0) return;
  const size_t at = static_cast<size_t>(std::mismatch(got, got + bytes, expected).first - got);
  size_t wrong = 0;
  for (size_t i = 0; i < bytes; ++i) wrong += got[i] != expected[i];
  char text[160];
  std::snprintf(text, sizeof text, ": %zu of %zu bytes are wrong, the first at %zu", wrong, bytes,
                at);
  char want[32];
  char had[32];
  std::snprintf(want, sizeof want, "0x%02x at byte %zu", expected[at], at);
  std::snprintf(had, sizeof had, "0x%02x", got[at]);
  throw Failure{what + text, want, had};
}

void expect_bytes(const Bytes& got, const Bytes& expected, const std::string& what) {
  expect_bytes(got.data(), expected.data(), expected.size(), what);
}

void pause_milliseconds(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

}  // namespace bringup::driver_check
