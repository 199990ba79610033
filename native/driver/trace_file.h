// The file that a trace of a driver's calls goes to: lines of JSON, and beside it the bytes that
// were copied. docs/devices/trace.md is the description of the format.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

namespace bringup::driver {

struct TraceOptions {
  std::string path;      // "%p" in it becomes the process's number
  bool payload = false;  // keep the bytes of copies, not only their digests
  uint64_t limit = 0;    // bytes of both files together; 0: none
};

// Each line is one write() to a file opened for appending: what was written before the process is
// killed stays, and threads do not mix. A forked child writes nothing.
class TraceFile {
 public:
  // Takes the file for this process; one that another living process writes stays its own, and
  // this one gets ".<number of the process>" behind its name. Throws std::runtime_error.
  explicit TraceFile(const TraceOptions& options);
  TraceFile& operator=(TraceFile&&) = delete;
  ~TraceFile();

  const std::string& path() const noexcept { return path_; }
  bool keeps_payload() const noexcept { return payload_ >= 0; }
  bool open() const noexcept { return open_.load(std::memory_order_relaxed); }

  // Writes no more, and lets another trace have the file.
  void release() noexcept;

  // `line` ends with a newline. Over the limit, or when it cannot be written, a last line says so
  // and the file is closed for good.
  void write(std::string_view line) noexcept;

  // Where in the payload file these bytes lie; bytes with the digest of former ones are theirs.
  std::optional<uint64_t> keep(const std::string& digest, std::span<const std::byte> bytes);

 private:
  bool take(uint64_t bytes) noexcept;
  void end(const char* why) noexcept;

  std::string path_;
  int lines_ = -1;
  int payload_ = -1;
  int process_;
  uint64_t limit_;
  std::atomic<bool> open_{true};
  std::atomic<uint64_t> written_{0};
  std::mutex mutex_;  // guards kept_ and payload_end_
  std::unordered_map<std::string, uint64_t> kept_;
  uint64_t payload_end_ = 0;
};

}  // namespace bringup::driver
