// The call context: error slot, workspace as a stack of calls, parallel_for, and the kernel's own
// threads.
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "runtime/context.h"
#include "runtime/error_slot.h"

namespace rt = bringup::runtime;

namespace {

void* take(const rt::HostContext& context, size_t bytes) {
  return context.get()->workspace(context.get(), bytes);
}

// Calls fn on two other threads and on this one, as a thread pool may.
void three_threads(int64_t n, int64_t, void (*fn)(int64_t, int64_t, void*), void* user) {
  std::thread first(fn, 0, n / 3, user);
  std::thread second(fn, n / 3, n / 3 * 2, user);
  fn(n / 3 * 2, n, user);
  first.join();
  second.join();
}

struct PoolInstalled {
  PoolInstalled() { rt::set_parallel_for(&three_threads); }
  ~PoolInstalled() { rt::set_parallel_for(nullptr); }
};

TEST(a_context_says_what_it_is) {
  int stream = 0;
  const rt::HostContext context({12, 3}, &stream, 4, 9);
  const bringup_ctx* ctx = context.get();
  CHECK_EQ(ctx->struct_size, sizeof(bringup_ctx));
  CHECK_EQ(ctx->abi_version, BRINGUP_KERNEL_ABI);
  CHECK_EQ(ctx->stream, static_cast<void*>(&stream));
  CHECK_EQ(ctx->device.device_type, 12);
  CHECK_EQ(ctx->device.device_id, 3);
  CHECK_EQ(ctx->block_index, 4);
  CHECK_EQ(ctx->block_count, 9);
}

TEST(the_error_slot_belongs_to_its_thread) {
  rt::set_last_error("mine");
  std::thread([] {
    CHECK_EQ(rt::take_last_error(), "");
    rt::set_last_error("theirs");
  }).join();
  CHECK_EQ(rt::take_last_error(), "mine");
}

TEST(a_null_message_clears_the_slot) {
  rt::set_last_error("old");
  const rt::HostContext context;
  context.get()->set_error(context.get(), nullptr);
  CHECK_EQ(rt::take_last_error(), "");
}

TEST(workspace_regions_are_aligned_and_apart) {
  const rt::HostContext context;
  auto* first = static_cast<std::byte*>(take(context, 1));
  auto* second = static_cast<std::byte*>(take(context, 100));
  auto* third = static_cast<std::byte*>(take(context, 0));
  auto* large = static_cast<std::byte*>(take(context, 5 << 20));
  for (std::byte* region : {first, second, third, large}) {
    CHECK_EQ(reinterpret_cast<uintptr_t>(region) % 64, 0u);
  }
  CHECK(second >= first + 64 || first >= second + 128);
  CHECK(third != second && third != large);
  std::memset(large, 1, 5 << 20);
}

TEST(a_context_serves_calls_one_after_the_other) {
  rt::HostContext context;
  void* before = take(context, 100);
  take(context, 5 << 20);
  std::thread([&] { take(context, 64); }).join();
  context.end_call();
  CHECK_EQ(take(context, 100), before);
  {
    rt::HostContext inner;
    CHECK(take(inner, 100) != before);
    inner.end_call();
  }
  context.end_call();
  context.end_call();
  CHECK_EQ(take(context, 100), before);
}

TEST(workspace_is_given_back_with_its_call) {
  void* before = nullptr;
  {
    const rt::HostContext context;
    before = take(context, 1000);
  }
  const rt::HostContext context;
  CHECK_EQ(take(context, 1000), before);
}

TEST(an_inner_call_leaves_the_workspace_of_the_outer_one_alone) {
  const rt::HostContext outer;
  auto* mine = static_cast<char*>(take(outer, 256));
  std::memset(mine, 'm', 256);
  {
    const rt::HostContext inner;
    std::memset(take(inner, 256), 'i', 256);
  }
  { const rt::HostContext inner_that_takes_nothing; }
  std::memset(take(outer, 256), 'n', 256);
  CHECK_EQ(std::string(mine, 256), std::string(256, 'm'));
}

TEST(workspace_that_cannot_exist_is_null) {
  const rt::HostContext context;
  CHECK(take(context, SIZE_MAX) == nullptr);
  CHECK(take(context, SIZE_MAX / 2) == nullptr);
  CHECK(take(context, 64) != nullptr);
}

TEST(ten_thousand_calls_reuse_one_arena) {
  void* first = nullptr;
  for (int i = 0; i < 10000; ++i) {
    const rt::HostContext context;
    take(context, 4096);
    void* region = take(context, 300 << 10);
    if (i == 1) first = region;
    if (i > 1) CHECK_EQ(region, first);
  }
}

TEST(parallel_for_runs_serially_without_a_pool) {
  const rt::HostContext context;
  std::vector<std::pair<int64_t, int64_t>> chunks;
  const auto record = [](int64_t begin, int64_t end, void* user) {
    static_cast<std::vector<std::pair<int64_t, int64_t>>*>(user)->emplace_back(begin, end);
  };
  context.get()->parallel_for(context.get(), 10, 1, record, &chunks);
  context.get()->parallel_for(context.get(), 0, 1, record, &chunks);
  CHECK_EQ(chunks.size(), 1u);
  CHECK(chunks.front() == std::make_pair(int64_t{0}, int64_t{10}));
}

TEST(small_work_stays_on_the_calling_thread) {
  const PoolInstalled pool;
  const rt::HostContext context;
  std::thread::id ran_on;
  context.get()->parallel_for(
      context.get(), 8, 8,
      [](int64_t, int64_t, void* user) {
        *static_cast<std::thread::id*>(user) = std::this_thread::get_id();
      },
      &ran_on);
  CHECK(ran_on == std::this_thread::get_id());
}

TEST(threads_of_a_kernel_share_its_context) {
  const PoolInstalled pool;
  struct Work {
    const bringup_ctx* ctx;
    std::vector<int64_t> covered = std::vector<int64_t>(300);
  };
  {
    const rt::HostContext context;
    Work work{context.get()};
    work.ctx->parallel_for(
        work.ctx, 300, 1,
        [](int64_t begin, int64_t end, void* user) {
          auto* work = static_cast<Work*>(user);
          auto* scratch = static_cast<int64_t*>(work->ctx->workspace(work->ctx, 300 * 8));
          for (int64_t i = begin; i < end; ++i) scratch[i] = i + 1;
          for (int64_t i = begin; i < end; ++i) work->covered[i] = scratch[i];
          work->ctx->set_error(work->ctx, "a chunk failed");
        },
        &work);
    for (int64_t i = 0; i < 300; ++i) CHECK_EQ(work.covered[i], i + 1);
  }
  CHECK_EQ(rt::take_last_error(), "a chunk failed");
}

}  // namespace
