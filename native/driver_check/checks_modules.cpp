// Device code: loading it, launching it, what becomes of a kernel that fails.
#include "driver_check/launches.h"
#include "driver_check/suite.h"

namespace bringup::driver_check {
namespace {

constexpr size_t kCount = 1000;
constexpr size_t kBytes = kCount * sizeof(int32_t);

void launch(Context& context) {
  Module module(context);
  const bringup_kernel_fn fn = module.function("check_accumulate");
  Bytes expected = integers(kCount, 5, 1);
  const Bytes values = integers(kCount, -100, 3);
  const Arrays on(context, expected, values);
  for (const int64_t grid : {1, 3, 7}) {
    const Accumulate work(fn, on.out.data(), on.x.data(), kCount, grid + 1, grid);
    context.must<&D::launch>(0, on.stream, work.launch());
    context.synchronize(0, on.stream);
    expected = accumulated(expected, values, static_cast<int32_t>(grid + 1));
    expect_bytes(on.result(), expected,
                 "launch of a kernel over a grid of " + std::to_string(grid));
    expect(work.released() == 1,
           "launch called release " + std::to_string(work.released()) + " times", "once",
           std::to_string(work.released()));
  }
}

void in_order(Context& context) {
  Module module(context);
  const bringup_kernel_fn fn = module.function("check_accumulate");
  const Memory out(context, 0, kBytes);
  const Memory x(context, 0, kBytes);
  const Bytes first = integers(kCount, 1, 1);
  const Bytes second = integers(kCount, 7, -2);
  const Bytes zero(kBytes, 0);
  Bytes result(kBytes);
  const Accumulate one(fn, out.data(), x.data(), kCount, 10);
  const Accumulate two(fn, out.data(), x.data(), kCount, 100);
  const Stream stream(context);
  context.copy(BRINGUP_HOST_TO_DEVICE, 0, out.data(), zero.data(), kBytes, stream);
  context.copy(BRINGUP_HOST_TO_DEVICE, 0, x.data(), first.data(), kBytes, stream);
  context.must<&D::launch>(0, stream, one.launch());
  context.copy(BRINGUP_HOST_TO_DEVICE, 0, x.data(), second.data(), kBytes, stream);
  context.must<&D::launch>(0, stream, two.launch());
  context.copy(BRINGUP_DEVICE_TO_HOST, 0, result.data(), out.data(), kBytes, stream);
  context.synchronize(0, stream);
  expect_bytes(result, accumulated(accumulated(zero, first, 10), second, 100),
               "launch between copies in one stream");
}

void failure(Context& context) {
  Module module(context);
  const bringup_kernel_fn fn = module.function("check_fail");
  const Memory out(context, 0, kBytes);
  const Accumulate work(fn, out.data(), out.data(), kCount, 1, 1);
  const Stream stream(context);
  context.must<&D::launch>(0, stream, work.launch());
  context.must_give<&D::stream_synchronize>(BRINGUP_KERNEL_FAILED, 0, stream);
  const std::string said = context.words();
  expect(said.find("check::accumulate") != std::string::npos,
         "last_error does not name the operator whose kernel failed", "check::accumulate", said);
  expect(work.released() == 1, "launch of a kernel that fails does not call release once", "once",
         std::to_string(work.released()));
  context.must<&D::stream_synchronize>(0, stream);  // it is reported once
  context.upload(0, out.data(), integers(kCount, 1, 1), stream);
}

void unknown(Context& context) {
  void* handle = nullptr;
  context.must_fail<&D::module_load>("for a file that does not exist", 0, "/nonexistent/kernels.so",
                                     &handle);
  Module module(context);
  bringup_kernel_fn fn = nullptr;
  void* loaded = nullptr;
  context.must<&D::module_load>(0, context.kernels(), &loaded);
  context.must_fail<&D::get_function>("for a function that the module does not have", loaded,
                                      "no_such_function", &fn);
  context.must<&D::module_unload>(loaded);
  module.function("check_accumulate");  // of the other load of the same file
}

}  // namespace

std::vector<Check> module_checks() {
  constexpr const char* kNeeds = "module_load module_unload get_function launch";
  return {
      {"modules.launch", "launch",
       "A kernel runs once for each block of the grid; release is called exactly once.", launch,
       kNeeds},
      {"modules.in_order", "launch", "Work given to one stream runs in the order given.", in_order,
       kNeeds},
      {"modules.failure", "launch",
       "A kernel that fails is BRINGUP_KERNEL_FAILED, reported once, by the next synchronisation "
       "of its stream; last_error() names the operator.",
       failure, kNeeds},
      {"modules.unknown", "module_load", "What is not there is a failure, and nothing is thrown.",
       unknown, kNeeds},
  };
}

}  // namespace bringup::driver_check
