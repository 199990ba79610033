// Device code: loading it, launching it, what becomes of a kernel that fails.
#include "driver_check/launches.h"
#include "driver_check/suite.h"

namespace bringup::driver_check {
namespace {

constexpr size_t kCount = 1000;
constexpr size_t kBytes = kCount * sizeof(int32_t);

void launch(Context& context) {
  Module module(context);
  Bytes expected = integers(kCount, 5, 1);
  const Bytes values = integers(kCount, -100, 3);
  const Arrays on(context, expected, values);
  for (const int64_t grid : {1, 3, 7}) {
    const Work work(context, module, on.out.data(), on.x.data(), kCount, grid + 1, grid);
    work.launch(on.stream);
    context.synchronize(0, on.stream);
    expected = accumulated(expected, values, static_cast<int32_t>(grid + 1));
    expect_bytes(on.result(), expected, concat("launch of a kernel over a grid of ", grid));
    work.expect_released(1, "after the launch");
  }
}

void in_order(Context& context) {
  Module module(context);
  const Memory out(context, 0, kBytes);
  const Memory x(context, 0, kBytes);
  const Bytes first = integers(kCount, 1, 1);
  const Bytes second = integers(kCount, 7, -2);
  const Bytes zero(kBytes, 0);
  Bytes result(kBytes);
  const Work one(context, module, out.data(), x.data(), kCount, 10);
  const Work two(context, module, out.data(), x.data(), kCount, 100);
  const Stream stream(context);
  context.copy(BRINGUP_HOST_TO_DEVICE, 0, out.data(), zero.data(), kBytes, stream);
  context.copy(BRINGUP_HOST_TO_DEVICE, 0, x.data(), first.data(), kBytes, stream);
  one.launch(stream);
  context.copy(BRINGUP_HOST_TO_DEVICE, 0, x.data(), second.data(), kBytes, stream);
  two.launch(stream);
  context.copy(BRINGUP_DEVICE_TO_HOST, 0, result.data(), out.data(), kBytes, stream);
  context.synchronize(0, stream);
  expect_bytes(result, accumulated(accumulated(zero, first, 10), second, 100),
               "launch between copies in one stream");
}

void failure(Context& context) {
  Module module(context);
  const Memory out(context, 0, kBytes);
  const Work work = Work::failing(context, module, out.data(), kCount);
  const Stream stream(context);
  work.launch(stream);
  context.must_give<&D::stream_synchronize>(BRINGUP_KERNEL_FAILED, 0, stream);
  const std::string said = context.words();
  expect(said.find(work.name()) != std::string::npos,
         "last_error does not name the operator whose kernel failed", work.name(), said);
  work.expect_released(1, "after the launch of a kernel that fails");
  context.must<&D::stream_synchronize>(0, stream);  // it is reported once
  out.upload(integers(kCount, 1, 1), stream);
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
  module.function(context.has<&D::launch>()
                      ? "check_accumulate"
                      : "check_values");  // of the other load of the same file
}

}  // namespace

std::vector<Check> module_checks() {
  constexpr const char* kNeeds = "module_load module_unload get_function launch|launch_values";
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
