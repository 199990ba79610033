// One rank of a communicator: ranks meet in a memory file, where a ring of bytes leads from each to
// each. The file has no name, so it ends with its last process, however that ends.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bringup/driver.h"

namespace bringup::sim {

// What is sent to a rank, or comes from it.
struct Part {
  int32_t peer;
  std::byte* address;
  size_t bytes;
};

// Combines `bytes` of two, into the first.
using Combine = void (*)(std::byte* into, const std::byte* other, size_t bytes);

// Bytes that move.
struct Exchange {
  const char* name;
  std::vector<Part> sends;
  std::vector<Part> receives;
  // What this rank has for itself.
  std::byte* own_dst = nullptr;
  const std::byte* own_src = nullptr;
  size_t own_bytes = 0;
};
// Numbers that are combined; those for `peer` begin at src + peer * stride.
struct Reduce {
  const char* name;
  const std::byte* src;
  size_t stride;
  std::byte* dst;
  size_t bytes;
  Combine combine;
};

class Communicator {
 public:
  static void make_id(bringup_comm_id& id);
  // Waits for all ranks. Throws SimError.
  Communicator(int32_t device, const bringup_comm_id& id, int32_t rank, int32_t size,
               int64_t nanoseconds);
  ~Communicator();
  Communicator& operator=(Communicator&&) = delete;

  int32_t device() const noexcept { return device_; }
  int32_t rank() const noexcept { return rank_; }
  int32_t size() const noexcept { return size_; }
  // Nothing of it works from then on, here and at its peers.
  void abort(const std::string& why);
  std::optional<std::string> failure();
  // On a worker; what went wrong, or nothing.
  std::optional<std::string> run(const Exchange& exchange);
  std::optional<std::string> run(const Reduce& reduce);
  // Breaks all of a device, or of every one: -1.
  static void break_all(int32_t device, const std::string& why);

 private:
  struct Shared;
  struct Ring;
  struct Transfer;
  Ring& ring(int32_t from, int32_t to) const;
  void join();
  void map(int file);
  void watch_peers();
  void leave();
  void transfer(const char* name, const std::vector<Part>& sends,
                const std::vector<Part>& receives);
  bool send_some(Transfer& to);
  bool receive_some(Transfer& from);
  template <class Body>
  std::optional<std::string> guarded(Body body);
  // A rank that does not come any more, for which an open transfer waits; -1: none.
  int32_t lost_peer(const std::vector<Transfer>& open) const;
  bool has_left(int32_t peer) const;
  void ring_bell();
  void sleep_until_bell(uint32_t seen);

  const int32_t device_, rank_, size_;
  const std::chrono::nanoseconds limit_;
  Shared* shared_ = nullptr;
  size_t mapped_ = 0;
  bool is_member_ = false;      // no other took its rank before
  std::vector<int> processes_;  // of the peers; -1: this one's, or not known
  std::mutex mutex_;            // guards failure_
  std::optional<std::string> failure_;
  std::atomic<bool> failed_{false};
};

}  // namespace bringup::sim
