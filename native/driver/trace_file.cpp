#include "driver/trace_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace bringup::driver {
namespace {

[[noreturn]] void refuse(const std::string& path) {
  throw std::runtime_error("the trace " + path + " cannot be written: " + std::strerror(errno));
}

std::string with_process(std::string path) {
  const std::string number = std::to_string(getpid());
  for (size_t at = path.find("%p"); at != std::string::npos; at = path.find("%p", at)) {
    path.replace(at, 2, number);
    at += number.size();
  }
  return path;
}

// Opened and locked, or -1: another process has it.
int open_for_us(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) refuse(path);
  if (flock(file, LOCK_EX | LOCK_NB) == 0) return file;
  close(file);
  return -1;
}

bool write_all(int file, const char* bytes, size_t size) noexcept {
  while (size > 0) {
    const ssize_t done = ::write(file, bytes, size);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    bytes += done;
    size -= static_cast<size_t>(done);
  }
  return true;
}

}  // namespace

TraceFile::TraceFile(const TraceOptions& options)
    : path_(with_process(options.path)), process_(getpid()), limit_(options.limit) {
  lines_ = open_for_us(path_);
  if (lines_ < 0) {
    path_ += '.';
    path_ += std::to_string(process_);
    lines_ = open_for_us(path_);
    if (lines_ < 0) throw std::runtime_error("the trace " + path_ + " is another process's");
  }
  if (ftruncate(lines_, 0) != 0) refuse(path_);
  const std::string payload = path_ + ".payload";
  if (!options.payload) {
    unlink(payload.c_str());  // of a former trace
    return;
  }
  payload_ = ::open(payload.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
  if (payload_ < 0) {
    close(lines_);
    refuse(payload);
  }
}

TraceFile::~TraceFile() {
  close(lines_);
  if (payload_ >= 0) close(payload_);
}

void TraceFile::release() noexcept {
  open_ = false;
  flock(lines_, LOCK_UN);
}

bool TraceFile::take(uint64_t bytes) noexcept {
  return written_.fetch_add(bytes) + bytes <= limit_ || limit_ == 0;
}

void TraceFile::end(const char* why) noexcept {
  if (!open_.exchange(false)) return;
  char line[160];
  const int size = std::snprintf(line, sizeof line, "{\"end\":\"%s\"}\n", why);
  if (!write_all(lines_, line, static_cast<size_t>(size))) {
    std::fprintf(stderr, "bringup: the trace %s ends here: %s\n", path_.c_str(),
                 std::strerror(errno));
  }
}

void TraceFile::write(std::string_view line) noexcept {
  if (!open() || getpid() != process_) return;
  if (!take(line.size())) return end("limit");
  if (!write_all(lines_, line.data(), line.size())) end("it cannot be written");
}

std::optional<uint64_t> TraceFile::keep(const std::string& digest,
                                        std::span<const std::byte> bytes) {
  if (payload_ < 0 || !open() || getpid() != process_) return std::nullopt;
  const std::lock_guard lock(mutex_);
  if (const auto known = kept_.find(digest); known != kept_.end()) return known->second;
  if (!take(bytes.size())) {
    end("limit");
    return std::nullopt;
  }
  if (!write_all(payload_, reinterpret_cast<const char*>(bytes.data()), bytes.size())) {
    end("it cannot be written");
    return std::nullopt;
  }
  const uint64_t begin = payload_end_;
  payload_end_ += bytes.size();
  kept_.emplace(digest, begin);
  return begin;
}

}  // namespace bringup::driver
