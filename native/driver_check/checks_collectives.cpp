// Communicators of two ranks in this process, on two devices where there are two, by two threads.
#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <thread>

#include "driver_check/suite.h"

namespace bringup::driver_check {
namespace {

constexpr size_t kCount = 100'000;  // int32: more than what fits into most rings
constexpr size_t kBytes = kCount * sizeof(int32_t);
constexpr int64_t kSecond = 1'000'000'000;
constexpr const char* kNeeds = "comm_create";

// One rank; a thread makes and uses it.
struct Rank {
  Rank(Context& of, const bringup_comm_id& id, int32_t number, int64_t limit = 20 * kSecond)
      : context(of),
        rank(number),
        device(number % of.device_count()),
        stream(of, device),
        src(of, device, 2 * kBytes),
        dst(of, device, 2 * kBytes) {
    of.must<&D::comm_create>(device, &id, number, 2, limit, &comm);
  }
  ~Rank() {
    if (comm != nullptr) context.give_back<&D::comm_destroy>(comm);
  }
  Rank& operator=(Rank&&) = delete;

  int32_t peer() const { return 1 - rank; }
  // False: the driver has it not, which all ranks see alike.
  template <auto Member, class... Arguments>
  bool give(const Arguments&... arguments) {
    const int32_t status = context.call<Member>(comm, arguments..., stream);
    if (status == BRINGUP_UNSUPPORTED) return false;
    expect(status == BRINGUP_OK, "a collective", "BRINGUP_OK", status_name(status));
    return true;
  }
  void put(const Bytes& content) { src.upload(content, stream); }
  Bytes result(size_t bytes) { return context.download(device, dst.data(), bytes, stream); }

  Context& context;
  const int32_t rank, device;
  const Stream stream;
  const Memory src, dst;
  bringup_comm comm = nullptr;
};

// Runs it as both ranks at once; what one of them finds fails the check.
void as_ranks(Context& context, const std::function<void(Rank&)>& body,
              int64_t limit = 20 * kSecond) {
  bringup_comm_id id{};
  context.must<&D::comm_id>(&id);
  std::exception_ptr found[2];
  const auto run = [&](int32_t number) {
    try {
      Rank rank(context, id, number, limit);
      body(rank);
    } catch (...) {
      found[number] = std::current_exception();
    }
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  for (const auto& error : found) {
    if (error) std::rethrow_exception(error);
  }
}

int32_t number_at(int32_t rank, size_t at) {
  return static_cast<int32_t>(at % 1000) * (rank + 1) - rank;
}

Bytes numbers(size_t count, const std::function<int32_t(size_t)>& number) {
  Bytes bytes(count * sizeof(int32_t));
  for (size_t at = 0; at < count; ++at) {
    const int32_t value = number(at);
    std::copy_n(reinterpret_cast<const uint8_t*>(&value), sizeof value,
                bytes.data() + at * sizeof value);
  }
  return bytes;
}

void ids(Context& context) {
  bringup_comm_id first{}, second{};
  context.must<&D::comm_id>(&first);
  context.must<&D::comm_id>(&second);
  expect(!std::equal(std::begin(first.bytes), std::end(first.bytes), std::begin(second.bytes)),
         "comm_id gave one id twice", "two ids", "one");
  bringup_comm comm = nullptr;
  context.must_fail<&D::comm_create>("for a rank that there is not", 0, &first, 2, 2, kSecond,
                                     &comm);
  context.must_fail<&D::comm_create>("without the other rank", 0, &second, 0, 2, kSecond / 5,
                                     &comm);
}

void reductions(Context& context) {
  as_ranks(context, [](Rank& of) {
    const auto value = [&](size_t at) { return number_at(of.rank, at); };
    const auto sum = [](size_t at) { return number_at(0, at) + number_at(1, at); };
    of.put(numbers(2 * kCount, value));
    if (of.give<&D::all_reduce>(of.src.data(), of.dst.data(), kCount, BRINGUP_DTYPE_INT32,
                                BRINGUP_REDUCE_SUM)) {
      expect_bytes(of.result(kBytes), numbers(kCount, sum), "all_reduce of int32, sum");
    }
    if (of.give<&D::all_reduce>(of.src.data(), of.src.data(), kCount, BRINGUP_DTYPE_INT32,
                                BRINGUP_REDUCE_MAX)) {
      of.context.copy(BRINGUP_DEVICE_TO_DEVICE, of.device, of.dst.data(), of.src.data(), kBytes,
                      of.stream);
      const auto most = [](size_t at) { return std::max(number_at(0, at), number_at(1, at)); };
      expect_bytes(of.result(kBytes), numbers(kCount, most), "all_reduce in place, maximum");
      of.put(numbers(2 * kCount, value));
    }
    if (of.give<&D::reduce_scatter>(of.src.data(), of.dst.data(), kCount, BRINGUP_DTYPE_INT32,
                                    BRINGUP_REDUCE_SUM)) {
      const size_t begin = static_cast<size_t>(of.rank) * kCount;
      expect_bytes(of.result(kBytes), numbers(kCount, [&](size_t at) { return sum(begin + at); }),
                   "reduce_scatter of int32, sum");
    }
  });
}

void moves(Context& context) {
  as_ranks(context, [](Rank& of) {
    const Bytes mine = pattern(kBytes, static_cast<uint64_t>(of.rank));
    const Bytes other = pattern(kBytes, static_cast<uint64_t>(of.peer()));
    Bytes both = of.rank == 0 ? mine : other;
    const Bytes& second = of.rank == 0 ? other : mine;
    both.insert(both.end(), second.begin(), second.end());
    of.put(mine);
    if (of.give<&D::all_gather>(of.src.data(), of.dst.data(), kBytes)) {
      expect_bytes(of.result(2 * kBytes), both, "all_gather");
    }
    of.dst.upload(mine, of.stream);
    if (of.give<&D::broadcast>(of.dst.data(), kBytes, 1)) {
      expect_bytes(of.result(kBytes), of.rank == 1 ? mine : other, "broadcast");
    }
    const bool sends = of.rank == 0;
    if (sends ? of.give<&D::send>(of.src.data(), kBytes, 1)
              : of.give<&D::recv>(of.dst.data(), kBytes, 0)) {
      if (!sends) expect_bytes(of.result(kBytes), other, "recv of what the other rank sent");
      of.context.synchronize(of.device, of.stream);
    }
  });
}

// Rank 0 keeps one part of four and sends three; rank 1 the other way round.
void splits(Context& context) {
  as_ranks(context, [](Rank& of) {
    const size_t part = kBytes / 4;
    const Bytes mine = pattern(kBytes, static_cast<uint64_t>(of.rank));
    const Bytes other = pattern(kBytes, static_cast<uint64_t>(of.peer()));
    const size_t src_bytes[2] = {part, 3 * part};
    const size_t from_each = of.rank == 0 ? part : 3 * part;
    const size_t dst_bytes[2] = {from_each, from_each};
    of.put(mine);
    if (!of.give<&D::all_to_all>(of.src.data(), src_bytes, of.dst.data(), dst_bytes)) return;
    Bytes wanted;
    for (const Bytes* sent : {of.rank == 0 ? &mine : &other, of.rank == 0 ? &other : &mine}) {
      const auto begin = sent->begin() + static_cast<ptrdiff_t>(of.rank == 0 ? 0 : part);
      wanted.insert(wanted.end(), begin, begin + static_cast<ptrdiff_t>(from_each));
    }
    expect_bytes(of.result(2 * from_each), wanted, "all_to_all with splits");
  });
}

// What the stream was given before is seen, and what it is given behind it sees the result.
void order(Context& context) {
  as_ranks(context, [](Rank& of) {
    for (uint64_t round = 0; round < 20; ++round) {
      const auto seed = [&](int32_t rank) { return 2 * round + static_cast<uint64_t>(rank); };
      of.put(pattern(kBytes, seed(of.rank)));
      if (!of.give<&D::all_gather>(of.src.data(), of.dst.data(), kBytes)) return;
      of.context.copy(BRINGUP_DEVICE_TO_DEVICE, of.device, of.src.data(), of.dst.data(), kBytes,
                      of.stream);
      of.src.expect(pattern(kBytes, seed(0)), "all_gather between two copies of one stream",
                    of.stream);
    }
  });
}

// Rank 1 is there, and does nothing.
void absent(Context& context) {
  std::atomic<bool> over{false};
  as_ranks(
      context,
      [&](Rank& of) {
        if (of.rank == 1) {
          while (!over) pause_milliseconds(1);
          return;
        }
        const std::unique_ptr<std::atomic<bool>, void (*)(std::atomic<bool>*)> end(
            &over, [](std::atomic<bool>* flag) { *flag = true; });
        if (!of.give<&D::broadcast>(of.dst.data(), kBytes, 1)) return;
        of.context.must_give<&D::stream_synchronize>(BRINGUP_KERNEL_FAILED, of.device, of.stream);
        of.context.must_fail<&D::comm_query>("after a peer did not come", of.comm);
      },
      kSecond / 2);
}

void aborted(Context& context) {
  as_ranks(context, [](Rank& of) {
    if (of.rank == 1) {
      std::thread([&] { of.context.must<&D::comm_abort>(of.comm); }).join();
    } else if (of.give<&D::broadcast>(of.dst.data(), kBytes, 1)) {
      of.context.must<&D::comm_abort>(of.comm);
      of.context.must_give<&D::stream_synchronize>(BRINGUP_KERNEL_FAILED, of.device, of.stream);
    }
    of.context.must_fail<&D::comm_query>("after comm_abort", of.comm);
  });
}

}  // namespace

std::vector<Check> collective_checks() {
  return {
      {"collectives.ids", "comm_create",
       "comm_id makes a new id on each call; comm_create waits no longer than it may.", ids,
       kNeeds},
      {"collectives.reductions", "all_reduce",
       "all_reduce and reduce_scatter, in place too, give what the numbers of all ranks sum up to.",
       reductions, kNeeds},
      {"collectives.moves", "all_gather",
       "all_gather, broadcast, send and recv bring the bytes where they belong.", moves, kNeeds},
      {"collectives.splits", "all_to_all", "Each rank gets what the others have for it.", splits,
       kNeeds},
      {"collectives.order", "all_gather", "Operations are work of their stream, in its order.",
       order, kNeeds},
      {"collectives.absent", "broadcast",
       "A peer that does not come is a failure of the stream after the time that comm_create was "
       "given, never a wait without end.",
       absent, kNeeds},
      {"collectives.abort", "comm_abort",
       "What is pending in a communicator fails, and nothing works afterwards.", aborted, kNeeds},
  };
}

}  // namespace bringup::driver_check
