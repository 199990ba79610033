#include "runtime/call_record.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <string_view>

namespace bringup::runtime {
namespace {

constexpr std::string_view kMagic = "bringup call 2";
constexpr std::string_view kEnd = "end";
constexpr const char* kBootId = "/proc/sys/kernel/random/boot_id";
constexpr size_t kLargest = size_t{4} << 20;
constexpr int64_t kNanoseconds = 1'000'000'000;

class Descriptor {
 public:
  explicit Descriptor(const char* path) : number_(open(path, O_RDONLY | O_CLOEXEC)) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor& operator=(Descriptor&&) = delete;
  int number() const noexcept { return number_; }

 private:
  int number_;
};

// A file's content, unless it is unreadable or too large for a record; a short read is its end.
std::optional<std::string> read_whole(const char* path) {
  const Descriptor file(path);
  if (file.number() < 0) return std::nullopt;
  std::string content(size_t{16} << 10, '\0');
  size_t filled = 0;
  while (true) {
    const size_t room = content.size() - filled;
    const ssize_t count = read(file.number(), content.data() + filled, room);
    if (count < 0) return std::nullopt;
    filled += static_cast<size_t>(count);
    if (static_cast<size_t>(count) < room) break;
    if (filled >= kLargest) return std::nullopt;
    content.resize(2 * filled);
  }
  content.resize(filled);
  return content;
}

// Reads the fields in order. After the first one that is not what it has to be, `ok` is false.
class Fields {
 public:
  explicit Fields(std::string_view content) : rest_(content) {}

  // The next one, as a C string too: its NUL is in the record.
  std::string_view next() {
    const size_t length = rest_.find('\0');
    if (length == std::string_view::npos) {
      ok_ = false;
      return "";
    }
    const std::string_view field = rest_.substr(0, length);
    rest_.remove_prefix(length + 1);
    return field;
  }

  int64_t number() {
    const std::string_view field = next();
    int64_t value = 0;
    const char* end = field.data() + field.size();
    const auto [stop, error] = std::from_chars(field.data(), end, value);
    if (error != std::errc() || stop != end || value < 0) ok_ = false;
    return value;
  }

  bool ok() const noexcept { return ok_; }
  bool at_end() const noexcept { return ok_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

// Whether the path, a C string, leads to something with this stamp.
bool has_stamp(std::string_view path, std::string_view stamp) {
  struct stat status;
  if (stat(path.data(), &status) != 0) return false;
  const uint64_t numbers[] = {
      static_cast<uint64_t>(status.st_ino), static_cast<uint64_t>(status.st_size),
      static_cast<uint64_t>(status.st_mtim.tv_sec * kNanoseconds + status.st_mtim.tv_nsec),
      static_cast<uint64_t>(status.st_ctim.tv_sec * kNanoseconds + status.st_ctim.tv_nsec)};
  char text[4 * 21];
  char* end = text;
  for (const uint64_t number : numbers) {
    if (end != text) *end++ = ' ';
    end = std::to_chars(end, text + sizeof text, number).ptr;
  }
  return std::string_view(text, static_cast<size_t>(end - text)) == stamp;
}

// The first `looked_at` of `count` files; the others are only passed.
bool files_hold(Fields& fields, int64_t count, int64_t looked_at) {
  for (int64_t i = 0; i < count; ++i) {
    const std::string_view path = fields.next();
    const std::string_view stamp = fields.next();
    if (!fields.ok() || (i < looked_at && !has_stamp(path, stamp))) return false;
  }
  return true;
}

bool place_holds(Fields& fields, bool look) {
  const std::string_view folder = fields.next();
  const std::string_view stamp = fields.next();
  const int64_t names = fields.number();
  if (!fields.ok()) return false;
  const bool untouched = !look || (!stamp.empty() && has_stamp(folder, stamp));
  std::string path(folder);
  if (!path.ends_with('/')) path += '/';
  const size_t prefix = path.size();
  for (int64_t i = 0; i < names; ++i) {
    const std::string_view name = fields.next();
    if (!fields.ok()) return false;
    if (untouched) continue;
    const bool was_there = name.starts_with('/');
    path.replace(prefix, std::string::npos, was_there ? name.substr(1) : name);
    struct stat status;
    const bool is_there = stat(path.c_str(), &status) == 0 && !S_ISDIR(status.st_mode);
    if (is_there != was_there) return false;
  }
  return true;
}

// Which boot of which machine this is; "" where the kernel does not say.
std::string boot_id() {
  std::string id = read_whole(kBootId).value_or("");
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id;
}

}  // namespace

std::optional<RecordedBuild> recall_call(const std::string& path, std::string_view proved) {
  const std::optional<std::string> content = read_whole(path.c_str());
  if (!content) return std::nullopt;
  Fields fields(*content);
  if (fields.next() != kMagic) return std::nullopt;
  RecordedBuild build;
  build.key = fields.next();
  build.digest = fields.next();
  const std::string_view boot = fields.next();
  const bool again = build.key == proved;
  if (!again && boot != boot_id()) return std::nullopt;
  const int64_t files = fields.number();
  const int64_t every_file = fields.number();
  const int64_t places = fields.number();
  const int64_t every_place = fields.number();
  if (!fields.ok() || every_file > files || every_place > places) return std::nullopt;
  if (!files_hold(fields, files, again ? every_file : files)) return std::nullopt;
  for (int64_t i = 0; i < places; ++i) {
    if (!place_holds(fields, !again || i < every_place)) return std::nullopt;
  }
  if (fields.next() != kEnd || !fields.at_end()) return std::nullopt;
  return build;
}

}  // namespace bringup::runtime
