// The vendor's own objects behind devices, streams and memory.
#include "driver_check/suite.h"

namespace bringup::driver_check {
namespace {

void* handle_of(Context& context, int32_t kind, bringup_stream stream, void* handle = nullptr) {
  context.must<&D::native_handle>(0, stream, kind, &handle);
  return handle;
}

void handles(Context& context) {
  const Stream one(context);
  const Stream other(context);
  for (const int32_t kind : {BRINGUP_NATIVE_CONTEXT, BRINGUP_NATIVE_DEVICE, BRINGUP_NATIVE_QUEUE}) {
    const void* first = handle_of(context, kind, one);
    const void* again = handle_of(context, kind, one);
    expect(first == again,
           concat("native_handle gives another object of kind ", kind, " each time"), hex(first),
           hex(again));
  }
  const void* queue = handle_of(context, BRINGUP_NATIVE_QUEUE, one);
  for (const bringup_stream stream : {static_cast<bringup_stream>(other), bringup_stream{}}) {
    expect(handle_of(context, BRINGUP_NATIVE_QUEUE, stream) != queue,
           "native_handle gives two streams the same queue", "a queue of each", hex(queue));
  }
}

void absent(Context& context) {
  void* handle = nullptr;
  context.must_give<&D::native_handle>(BRINGUP_UNSUPPORTED, 0, bringup_stream{}, 0, &handle);
  context.must_give<&D::native_handle>(BRINGUP_UNSUPPORTED, 0, bringup_stream{}, 1000, &handle);
}

// Where memory has objects: one for each allocation.
void memory(Context& context) {
  const Memory held(context, 0, 4096);
  void* first = held.data();
  void* inside = held.data() + 1000;
  const int32_t status =
      context.call<&D::native_handle>(0, bringup_stream{}, BRINGUP_NATIVE_MEMORY, &first);
  if (status == BRINGUP_UNSUPPORTED) throw Skipped{"memory of this runtime has no objects"};
  context.must<&D::native_handle>(0, bringup_stream{}, BRINGUP_NATIVE_MEMORY, &inside);
  expect(first == inside, "native_handle gives two objects for addresses of one allocation",
         hex(first), hex(inside));
  void* outside = &context;
  context.must_give<&D::native_handle>(BRINGUP_UNSUPPORTED, 0, bringup_stream{},
                                       BRINGUP_NATIVE_MEMORY, &outside);
}

}  // namespace

std::vector<Check> native_checks() {
  return {
      {"native.handles", "native_handle",
       "The object lives as long as what it stands for; each stream has its queue.", handles,
       "native_handle"},
      {"native.absent", "native_handle", "A kind that the runtime has not is BRINGUP_UNSUPPORTED.",
       absent, "native_handle"},
      {"native.memory", "native_handle",
       "MEMORY: the object of an address; of no allocation, BRINGUP_UNSUPPORTED.", memory,
       "native_handle"},
  };
}

}  // namespace bringup::driver_check
