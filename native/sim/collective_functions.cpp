#include <algorithm>
#include <bit>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "sim/capability_functions.h"
#include "sim/handles.h"
#include "sim/simulator.h"

namespace bringup::sim {
namespace {

template <class T, class Op>
void combine(std::byte* into, const std::byte* other, size_t bytes) {
  T* const to = reinterpret_cast<T*>(into);
  const T* const from = reinterpret_cast<const T*>(other);
  for (size_t i = 0; i < bytes / sizeof(T); ++i) to[i] = static_cast<T>(Op()(to[i], from[i]));
}

struct Least {
  template <class T>
  T operator()(T a, T b) const {
    return std::min(a, b);
  }
};
struct Most {
  template <class T>
  T operator()(T a, T b) const {
    return std::max(a, b);
  }
};

template <class T>
Combine combine_bits(int32_t reduction) {
  if (reduction == BRINGUP_REDUCE_BAND) return combine<T, std::bit_and<>>;
  if (reduction == BRINGUP_REDUCE_BOR) return combine<T, std::bit_or<>>;
  if (reduction == BRINGUP_REDUCE_BXOR) return combine<T, std::bit_xor<>>;
  return nullptr;
}

// Sums of signed integers wrap as those of unsigned ones.
template <class T, class Sum = T>
Combine combine_numbers(int32_t reduction) {
  if (reduction == BRINGUP_REDUCE_SUM) return combine<Sum, std::plus<>>;
  if (reduction == BRINGUP_REDUCE_PRODUCT) return combine<Sum, std::multiplies<>>;
  if (reduction == BRINGUP_REDUCE_MIN) return combine<T, Least>;
  if (reduction == BRINGUP_REDUCE_MAX) return combine<T, Most>;
  return nullptr;
}

template <class T, class Sum = T>
std::pair<Combine, size_t> of_integers(int32_t reduction) {
  const Combine bits = combine_bits<T>(reduction);
  return {bits != nullptr ? bits : combine_numbers<T, Sum>(reduction), sizeof(T)};
}

// How numbers of a dtype are combined, and how large they are; null where they are not.
std::pair<Combine, size_t> combination(uint64_t dtype, int32_t reduction) {
  if (dtype == BRINGUP_DTYPE_UINT8) return of_integers<uint8_t>(reduction);
  if (dtype == BRINGUP_DTYPE_INT8) return of_integers<int8_t>(reduction);
  if (dtype == BRINGUP_DTYPE_INT16) return of_integers<int16_t>(reduction);
  if (dtype == BRINGUP_DTYPE_INT32) return of_integers<int32_t, uint32_t>(reduction);
  if (dtype == BRINGUP_DTYPE_INT64) return of_integers<int64_t, uint64_t>(reduction);
  if (dtype == BRINGUP_DTYPE_UINT32) return of_integers<uint32_t>(reduction);
  if (dtype == BRINGUP_DTYPE_UINT64) return of_integers<uint64_t>(reduction);
  if (dtype == BRINGUP_DTYPE_FLOAT32) return {combine_numbers<float>(reduction), sizeof(float)};
  if (dtype == BRINGUP_DTYPE_FLOAT64) return {combine_numbers<double>(reduction), sizeof(double)};
  return {nullptr, 0};
}

std::byte* range(const void* address, size_t bytes, const char* role) {
  return bytes == 0 ? nullptr : simulator().range(address, bytes, role);
}
std::byte* source(const void* address, size_t bytes) {
  return range(address, bytes, "the source of a collective");
}
std::byte* target(void* address, size_t bytes) {
  return range(address, bytes, "the target of a collective");
}

template <class Work>
void give(bringup_comm handle, bringup_stream stream, Work work) {
  const auto& comm = comm_of(handle);
  simulator()
      .stream(comm->device(), stream)
      ->enqueue(CommTask{comm, std::make_shared<const CommTask::Operation>(std::move(work))});
}

void check_peer(const Communicator& comm, int32_t peer, const char* text) {
  require(peer >= 0 && peer < comm.size() && peer != comm.rank(), text);
}

void reduce(const char* name, bringup_comm handle, const void* src, void* dst, size_t count,
            size_t parts, uint64_t dtype, int32_t reduction, bringup_stream stream) {
  const auto [combine, size] = combination(dtype, reduction);
  if (combine == nullptr) {
    throw SimError(BRINGUP_UNSUPPORTED,
                   "the simulated NPU does not combine numbers of the dtype with bit " +
                       std::to_string(dtype == 0 ? -1 : std::countr_zero(dtype)) +
                       " by reduction " + std::to_string(reduction));
  }
  require(
      reinterpret_cast<uintptr_t>(src) % size == 0 && reinterpret_cast<uintptr_t>(dst) % size == 0,
      "a collective of numbers that are not aligned");
  const size_t bytes = count * size;
  const std::byte* from = source(src, parts * bytes);
  give(handle, stream,
       Reduce{name, from, parts == 1 ? 0 : bytes, target(dst, bytes), bytes, combine});
}

}  // namespace

void comm_id(bringup_comm_id* id) {
  simulator();
  Communicator::make_id(*id);
}

void comm_create(int32_t device, const bringup_comm_id* id, int32_t rank, int32_t size,
                 int64_t nanoseconds, bringup_comm* comm) {
  may_wait();
  simulator().memory(device);
  auto holder = std::make_unique<std::shared_ptr<Communicator>>(
      std::make_shared<Communicator>(device, *id, rank, size, nanoseconds));
  *comm = reinterpret_cast<bringup_comm>(holder.release());
}

void comm_destroy(bringup_comm comm) {
  const std::unique_ptr<std::shared_ptr<Communicator>> holder(&comm_of(comm));
  comm_of(comm)->abort("the communicator was destroyed");  // a graph may hold it still
}

void comm_abort(bringup_comm comm) { comm_of(comm)->abort("the communicator was aborted"); }

void comm_query(bringup_comm comm) {
  if (const auto failure = comm_of(comm)->failure()) throw SimError(BRINGUP_ERROR, *failure);
}

void all_reduce(bringup_comm comm, const void* src, void* dst, size_t count, uint64_t dtype,
                int32_t reduction, bringup_stream stream) {
  reduce("all_reduce", comm, src, dst, count, 1, dtype, reduction, stream);
}

void reduce_scatter(bringup_comm comm, const void* src, void* dst, size_t count, uint64_t dtype,
                    int32_t reduction, bringup_stream stream) {
  reduce("reduce_scatter", comm, src, dst, count, static_cast<size_t>(comm_of(comm)->size()), dtype,
         reduction, stream);
}

void all_gather(bringup_comm handle, const void* src, void* dst, size_t bytes,
                bringup_stream stream) {
  const Communicator& comm = *comm_of(handle);
  std::byte* const from = source(src, bytes);
  std::byte* const to = target(dst, bytes * static_cast<size_t>(comm.size()));
  Exchange work{"all_gather", {}, {}, nullptr, from, bytes};
  for (int32_t peer = 0; peer < comm.size(); ++peer) {
    std::byte* const part = to + static_cast<size_t>(peer) * bytes;
    if (peer == comm.rank()) {
      work.own_dst = part;
    } else {
      work.sends.push_back({peer, from, bytes});
      work.receives.push_back({peer, part, bytes});
    }
  }
  give(handle, stream, std::move(work));
}

void broadcast(bringup_comm handle, void* address, size_t bytes, int32_t root,
               bringup_stream stream) {
  const Communicator& comm = *comm_of(handle);
  require(root >= 0 && root < comm.size(), "a root that the communicator does not have");
  std::byte* const at = target(address, bytes);
  Exchange work{"broadcast", {}, {}};
  if (comm.rank() != root) work.receives.push_back({root, at, bytes});
  for (int32_t peer = 0; comm.rank() == root && peer < comm.size(); ++peer) {
    if (peer != root) work.sends.push_back({peer, at, bytes});
  }
  give(handle, stream, std::move(work));
}

void send(bringup_comm comm, const void* src, size_t bytes, int32_t peer, bringup_stream stream) {
  check_peer(*comm_of(comm), peer, "a send to a rank that is no peer");
  give(comm, stream, Exchange{"send", {{peer, source(src, bytes), bytes}}, {}});
}

void recv(bringup_comm comm, void* dst, size_t bytes, int32_t peer, bringup_stream stream) {
  check_peer(*comm_of(comm), peer, "a receive from a rank that is no peer");
  give(comm, stream, Exchange{"recv", {}, {{peer, target(dst, bytes), bytes}}});
}

void all_to_all(bringup_comm handle, const void* src, const size_t* src_bytes, void* dst,
                const size_t* dst_bytes, bringup_stream stream) {
  const Communicator& comm = *comm_of(handle);
  const auto size = static_cast<size_t>(comm.size());
  std::byte* from = source(src, std::accumulate(src_bytes, src_bytes + size, size_t{0}));
  std::byte* to = target(dst, std::accumulate(dst_bytes, dst_bytes + size, size_t{0}));
  Exchange work{"all_to_all", {}, {}};
  for (size_t peer = 0; peer < size; ++peer) {
    const auto rank = static_cast<int32_t>(peer);
    if (rank == comm.rank()) {
      require(src_bytes[peer] == dst_bytes[peer], "a rank sends itself other than it receives");
      work.own_dst = to;
      work.own_src = from;
      work.own_bytes = src_bytes[peer];
    } else {
      work.sends.push_back({rank, from, src_bytes[peer]});
      work.receives.push_back({rank, to, dst_bytes[peer]});
    }
    from += src_bytes[peer];
    to += dst_bytes[peer];
  }
  give(handle, stream, std::move(work));
}

}  // namespace bringup::sim
