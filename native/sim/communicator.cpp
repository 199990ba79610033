#include "sim/communicator.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "engine/util/forever.h"
#include "sim/handles.h"
#include "sim/status.h"

namespace bringup::sim {

struct Message {  // in front of its bytes
  uint64_t bytes;
  std::array<char, 24> name;
};

namespace {

constexpr int32_t kMostRanks = 64;
constexpr size_t kRingBytes = size_t{4} << 20;  // unwritten pages take no memory
constexpr size_t kPiece = kRingBytes / 4;  // of a reduction: few, as each may wait for a thread
constexpr int kLooksBeforeBell = 50;       // a peer that runs answers sooner than a thread wakes up
constexpr std::chrono::milliseconds kSlice{20};  // between two looks whether peers are alive

// What an id holds: where the file is, and which.
struct Ticket {
  uint64_t secret;
  int32_t process;
  int32_t file;
};

struct Registry {
  std::mutex mutex;
  std::map<uint64_t, int> files;  // of ids that this process made and that not all have joined
  std::set<Communicator*> live;
};
Registry& registry() { return forever<Registry>(); }

std::string rank_text(int32_t rank) { return "rank " + std::to_string(rank); }

// An operation that cannot go on.
struct Broken {
  std::string why;
};

class Deadline {
 public:
  explicit Deadline(std::chrono::nanoseconds limit)
      : end_(std::chrono::steady_clock::now() +
             std::min<std::chrono::nanoseconds>(limit, std::chrono::hours(24 * 365))) {}
  bool over() const { return std::chrono::steady_clock::now() >= end_; }

 private:
  const std::chrono::steady_clock::time_point end_;
};

Message message_of(const char* name, size_t bytes) {
  Message message{bytes, {}};
  std::strncpy(message.name.data(), name, message.name.size() - 1);
  return message;
}

}  // namespace

// One writer, one reader.
struct Communicator::Ring {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) std::byte bytes[kRingBytes];
};

struct Communicator::Shared {
  struct Member {
    std::atomic<int32_t> process;  // 0: has not come
    std::atomic<int32_t> left;
  };
  uint64_t secret;
  std::atomic<int32_t> size;
  std::atomic<int32_t> joined;
  std::atomic<uint32_t> bell;  // changes with every progress
  std::atomic<int32_t> sleepers;
  Member members[kMostRanks];

  Ring* rings() { return reinterpret_cast<Ring*>(reinterpret_cast<std::byte*>(this) + kHeader); }
  static constexpr size_t kHeader = 4096;
};

// A part on its way.
struct Communicator::Transfer {
  Part part;
  bool is_send;
  Message message;
  size_t done = 0;  // of message and bytes
  size_t total() const { return sizeof message + part.bytes; }
};

void Communicator::make_id(bringup_comm_id& id) {
  const int file = memfd_create("bringup-communicator", MFD_CLOEXEC);
  const size_t bytes = Shared::kHeader + kMostRanks * kMostRanks * sizeof(Ring);  // sparse
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    if (file >= 0) close(file);
    refuse(BRINGUP_ERROR, "no memory file for a communicator");
  }
  std::random_device random;
  const Ticket place{uint64_t{random()} << 32 | random(), getpid(), file};
  if (pwrite(file, &place.secret, sizeof place.secret, 0) != sizeof place.secret) {
    close(file);
    refuse(BRINGUP_ERROR, "no memory for a communicator");
  }
  id = {};
  std::memcpy(id.bytes, &place, sizeof place);
  const std::lock_guard lock(registry().mutex);
  registry().files[place.secret] = file;
}

Communicator::Communicator(int32_t device, const bringup_comm_id& id, int32_t rank, int32_t size,
                           int64_t nanoseconds)
    : device_(device),
      rank_(rank),
      size_(size),
      limit_(std::max<int64_t>(nanoseconds, 0)),
      processes_(static_cast<size_t>(std::clamp(size, 0, kMostRanks)), -1) {
  static_assert(sizeof(Shared) <= Shared::kHeader);
  require(size >= 1 && rank >= 0 && rank < size, "a rank that the communicator does not have");
  if (size > kMostRanks) {
    refuse(BRINGUP_UNSUPPORTED, "the simulated NPU has no communicator of more than ", kMostRanks,
           " ranks");
  }
  Ticket place{};
  std::memcpy(&place, id.bytes, sizeof place);
  const std::string path =
      "/proc/" + std::to_string(place.process) + "/fd/" + std::to_string(place.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  uint64_t secret = 0;
  const bool is_there = file >= 0 && pread(file, &secret, sizeof secret, 0) == sizeof secret &&
                        secret == place.secret;
  if (is_there) map(file);
  if (file >= 0) close(file);
  if (shared_ == nullptr)
    refuse(BRINGUP_ERROR, "the id of the communicator is none, or its maker has ended");
  try {
    join();
    watch_peers();
  } catch (...) {
    leave();
    throw;
  }
  const std::lock_guard lock(registry().mutex);
  registry().live.insert(this);
  if (const auto made = registry().files.extract(place.secret)) close(made.mapped());
}

Communicator::~Communicator() {
  {
    const std::lock_guard lock(registry().mutex);
    registry().live.erase(this);
  }
  leave();
}

void Communicator::map(int file) {
  const size_t bytes =
      Shared::kHeader + static_cast<size_t>(size_) * static_cast<size_t>(size_) * sizeof(Ring);
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (address == MAP_FAILED) refuse(BRINGUP_ERROR, "no address space for a communicator");
  shared_ = static_cast<Shared*>(address);
  mapped_ = bytes;
}

void Communicator::join() {
  const Deadline deadline(limit_);
  int32_t size = 0;
  if (!shared_->size.compare_exchange_strong(size, size_) && size != size_) {
    refuse(BRINGUP_ERROR, "a communicator of ", size, " ranks was joined as one of ", size_);
  }
  int32_t none = 0;
  if (!shared_->members[rank_].process.compare_exchange_strong(none, getpid())) {
    refuse(BRINGUP_ERROR, rank_text(rank_), " is in the communicator already");
  }
  is_member_ = true;
  shared_->joined.fetch_add(1);
  ring_bell();
  for (;;) {
    const uint32_t seen = shared_->bell.load();
    if (shared_->joined.load() == size_) return;
    for (int32_t peer = 0; peer < size_; ++peer) {
      if (shared_->members[peer].left.load() != 0) {
        refuse(BRINGUP_ERROR, rank_text(peer),
               " left the communicator before all ranks had joined it");
      }
    }
    if (deadline.over()) {
      refuse(BRINGUP_ERROR, shared_->joined.load(), " of ", size_,
             " ranks joined the communicator in time");
    }
    sleep_until_bell(seen);
  }
}

// A process that ended can be seen even where its number is used again.
void Communicator::watch_peers() {
  for (int32_t peer = 0; peer < size_; ++peer) {
    const int32_t process = shared_->members[peer].process.load();
    if (process == getpid()) continue;
    processes_[static_cast<size_t>(peer)] = static_cast<int>(syscall(SYS_pidfd_open, process, 0u));
  }
}

void Communicator::leave() {
  if (shared_ == nullptr) return;
  if (is_member_) shared_->members[rank_].left = 1;
  ring_bell();
  for (const int process : processes_) {
    if (process >= 0) close(process);
  }
  munmap(shared_, mapped_);
  shared_ = nullptr;
}

Communicator::Ring& Communicator::ring(int32_t from, int32_t to) const {
  return shared_->rings()[from * size_ + to];
}

void Communicator::ring_bell() {
  shared_->bell.fetch_add(1);
  if (shared_->sleepers.load() > 0) {
    syscall(SYS_futex, &shared_->bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

void Communicator::sleep_until_bell(uint32_t seen) {
  const timespec slice{0, std::chrono::nanoseconds(kSlice).count()};
  shared_->sleepers.fetch_add(1);
  syscall(SYS_futex, &shared_->bell, FUTEX_WAIT, seen, &slice, nullptr, 0);
  shared_->sleepers.fetch_sub(1);
}

bool Communicator::has_left(int32_t peer) const {
  if (shared_->members[peer].left.load() != 0) return true;
  pollfd process{processes_[static_cast<size_t>(peer)], POLLIN, 0};
  return process.fd >= 0 && poll(&process, 1, 0) == 1;
}

int32_t Communicator::lost_peer(const std::vector<Transfer>& open) const {
  for (const Transfer& transfer : open) {
    if (transfer.done < transfer.total() && has_left(transfer.part.peer)) {
      return transfer.part.peer;
    }
  }
  return -1;
}

bool Communicator::send_some(Transfer& to) {
  Ring& ring = this->ring(rank_, to.part.peer);
  bool moved = false;
  while (to.done < to.total()) {
    const uint64_t written = ring.written.load(std::memory_order_relaxed);
    const size_t at = written % kRingBytes;
    const size_t room = kRingBytes - (written - ring.read.load(std::memory_order_acquire));
    const bool in_head = to.done < sizeof to.message;
    const std::byte* from = in_head ? reinterpret_cast<const std::byte*>(&to.message) + to.done
                                    : to.part.address + (to.done - sizeof to.message);
    const size_t left = (in_head ? sizeof to.message : to.total()) - to.done;
    const size_t bytes = std::min({left, room, kRingBytes - at, kPiece});
    if (bytes == 0) break;
    std::memcpy(ring.bytes + at, from, bytes);
    ring.written.store(written + bytes, std::memory_order_release);
    to.done += bytes;
    moved = true;
    if (left > kPiece) ring_bell();
  }
  return moved;
}

bool Communicator::receive_some(Transfer& from) {
  Ring& ring = this->ring(from.part.peer, rank_);
  bool moved = false;
  while (from.done < from.total()) {
    const uint64_t read = ring.read.load(std::memory_order_relaxed);
    const size_t at = read % kRingBytes;
    const size_t there = ring.written.load(std::memory_order_acquire) - read;
    Message head{};
    const bool in_head = from.done < sizeof head;
    if (in_head && there < sizeof head) break;
    const size_t left = from.total() - from.done;
    const size_t bytes = in_head ? sizeof head : std::min({left, there, kRingBytes - at, kPiece});
    if (bytes == 0) break;
    if (in_head) {
      const size_t first = std::min(sizeof head, kRingBytes - at);
      std::memcpy(&head, ring.bytes + at, first);
      std::memcpy(reinterpret_cast<std::byte*>(&head) + first, ring.bytes, sizeof head - first);
      const bool is_send = head.name == message_of("send", 0).name;
      const bool is_recv = from.message.name == message_of("recv", 0).name;
      if (is_send != is_recv || (!is_send && head.name != from.message.name)) {
        throw Broken{rank_text(from.part.peer) + " is at a " + head.name.data() +
                     " where this rank is at a " + from.message.name.data()};
      }
      if (head.bytes != from.part.bytes) {
        throw Broken{rank_text(from.part.peer) + " sent " + std::to_string(head.bytes) +
                     " bytes where " + std::to_string(from.part.bytes) + " were expected"};
      }
    } else {
      std::memcpy(from.part.address + (from.done - sizeof head), ring.bytes + at, bytes);
    }
    ring.read.store(read + bytes, std::memory_order_release);
    from.done += bytes;
    moved = true;
    if (left > kPiece) ring_bell();
  }
  return moved;
}

// All of them beside each other, so that no order of theirs locks up.
void Communicator::transfer(const char* name, const std::vector<Part>& sends,
                            const std::vector<Part>& receives) {
  std::vector<Transfer> open;
  for (const Part& part : sends) open.push_back({part, true, message_of(name, part.bytes)});
  for (const Part& part : receives) open.push_back({part, false, message_of(name, part.bytes)});
  const Deadline deadline(limit_);
  int32_t lost = -1;
  for (int looks = 0;;) {
    const uint32_t seen = shared_->bell.load();
    bool moved = false;
    bool done = true;
    for (Transfer& transfer : open) {
      moved |= transfer.is_send ? send_some(transfer) : receive_some(transfer);
      done &= transfer.done == transfer.total();
    }
    if (moved) ring_bell();
    if (failed_) throw Broken{*failure()};
    if (done) return;
    if (moved) {
      looks = 0;
      lost = -1;
    } else if (lost >= 0) {  // also what it had written before it went is read
      throw Broken{rank_text(lost) + " left the communicator or ended"};
    } else if (looks >= kLooksBeforeBell && (lost = lost_peer(open)) >= 0) {
      continue;
    } else if (++looks < kLooksBeforeBell) {
      std::this_thread::yield();
    } else {
      if (deadline.over()) {
        const auto late = std::find_if(open.begin(), open.end(), [](const Transfer& transfer) {
          return transfer.done < transfer.total();
        });
        throw Broken{rank_text(late->part.peer) + " did not come in time"};
      }
      sleep_until_bell(seen);
    }
  }
}

template <class Body>
std::optional<std::string> Communicator::guarded(Body body) {
  if (const auto former = failure()) return former;
  try {
    body();
    return std::nullopt;
  } catch (const Broken& broken) {
    abort(broken.why);
  } catch (const std::bad_alloc&) {
    abort("no host memory is left");
  }
  return failure();
}

std::optional<std::string> Communicator::run(const Exchange& exchange) {
  return guarded([&] {
    if (exchange.own_dst != exchange.own_src) {
      std::memmove(exchange.own_dst, exchange.own_src, exchange.own_bytes);
    }
    transfer(exchange.name, exchange.sends, exchange.receives);
  });
}

// In the order of the ranks on each of them, so that all get the same bits.
std::optional<std::string> Communicator::run(const Reduce& reduce) {
  return guarded([&] {
    const auto size = static_cast<size_t>(size_);
    std::vector<std::byte> came(size * std::min(kPiece, reduce.bytes));
    for (size_t begin = 0; begin < reduce.bytes; begin += kPiece) {
      const size_t bytes = std::min(kPiece, reduce.bytes - begin);
      std::vector<Part> sends, receives;
      for (int32_t peer = 0; peer < size_; ++peer) {
        const auto index = static_cast<size_t>(peer);
        auto* from = const_cast<std::byte*>(reduce.src) + index * reduce.stride + begin;
        auto* to = came.data() + index * bytes;
        if (peer == rank_) {
          std::memcpy(to, from, bytes);
        } else {
          sends.push_back({peer, from, bytes});
          receives.push_back({peer, to, bytes});
        }
      }
      transfer(reduce.name, sends, receives);
      for (size_t peer = 1; peer < size; ++peer) {
        reduce.combine(came.data(), came.data() + peer * bytes, bytes);
      }
      std::memcpy(reduce.dst + begin, came.data(), bytes);
    }
  });
}

void Communicator::abort(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = why;
    failed_ = true;
  }
  shared_->members[rank_].left = 1;
  ring_bell();
}

std::optional<std::string> Communicator::failure() {
  if (!failed_) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Communicator::break_all(int32_t device, const std::string& why) {
  const std::lock_guard lock(registry().mutex);
  for (Communicator* live : registry().live) {
    if (device < 0 || live->device() == device) live->abort(why);
  }
}

}  // namespace bringup::sim
