// Failures: the right status, and words that end.
#include <thread>

#include "driver_check/suite.h"

namespace bringup::driver_check {
namespace {

void device_numbers(Context& context) {
  const int32_t count = context.device_count();
  for (const int32_t device : {count, -1, 1 << 20}) {
    bringup_device_props props{};
    props.struct_size = sizeof props;
    void* address = nullptr;
    bringup_stream stream = nullptr;
    bringup_event event = nullptr;
    context.must_give<&D::device_props>(BRINGUP_INVALID, device, &props);
    context.must_give<&D::mem_alloc>(BRINGUP_INVALID, device, size_t{64}, &address);
    context.must_give<&D::stream_create>(BRINGUP_INVALID, device, 0, &stream);
    context.must_give<&D::event_create>(BRINGUP_INVALID, device, 0, &event);
  }
}

void copy_kinds(Context& context) {
  const Memory memory(context, 0, 64);
  const Bytes content = pattern(64, 1);
  for (const int kind : {0, 4}) {
    context.must_give<&D::copy_async>(BRINGUP_INVALID, static_cast<bringup_copy_kind>(kind), 0,
                                      memory.data(), 0, content.data(), size_t{64}, nullptr);
  }
}

void fail_once(Context& context) {
  void* address = nullptr;
  context.must_give<&D::mem_alloc>(BRINGUP_INVALID, context.device_count(), size_t{64}, &address);
}

// Past the kit's table of checks, which cuts text that does not end.
std::string own_words(Context& context) {
  constexpr size_t kMost = 4096;
  set_activity("last_error");
  const char* text = context.raw().last_error();
  expect(text != nullptr, "last_error returned NULL after a failure", "words", "NULL");
  const size_t length = strnlen(text, kMost);
  set_activity(nullptr);
  expect(length < kMost, "last_error gave a text that does not end",
         concat("NUL within ", kMost, " characters"), "none");
  return {text, length};
}

void words(Context& context) {
  fail_once(context);
  const std::string said = own_words(context);
  expect(!said.empty(), "last_error has no words for the failure of mem_alloc", "why it failed",
         "an empty text");
}

// Each thread has its own failure.
void words_of_threads(Context& context) {
  fail_once(context);
  const std::string said = own_words(context);
  std::string others;
  std::thread([&] {
    set_activity("last_error");
    const char* text = context.raw().last_error();
    set_activity(nullptr);
    if (text != nullptr) others.assign(text, strnlen(text, 4096));
  }).join();
  expect(others != said,
         "last_error of a thread that made no call gives the failure of another thread",
         "words for the calling thread", others);
  expect(own_words(context) == said, "last_error changed although this thread made no other call",
         said, own_words(context));
}

}  // namespace

std::vector<Check> error_checks() {
  return {
      {"errors.device_numbers", "mem_alloc",
       "Device numbers run from 0 to device_count - 1; a wrong argument is BRINGUP_INVALID.",
       device_numbers},
      {"errors.copy_kinds", "copy_async", "A wrong argument is BRINGUP_INVALID.", copy_kinds},
      {"errors.words", "last_error", "After a failure last_error() says why, in words.", words,
       "last_error"},
      {"errors.words_of_threads", "last_error",
       "last_error() is about the last failure on the calling thread.", words_of_threads,
       "last_error"},
  };
}

}  // namespace bringup::driver_check
