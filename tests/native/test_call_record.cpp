// Records of calls: one that is damaged anywhere is no answer, and nothing is read beyond its end.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "check.h"
#include "runtime/call_record.h"

namespace rt = bringup::runtime;

namespace {

// A folder of its own for each case.
class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "call-record-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

void write(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

std::string stamp(const std::string& path) {
  struct stat status;
  stat(path.c_str(), &status);
  const auto nanoseconds = [](const timespec& time) {
    return std::to_string(time.tv_sec * 1'000'000'000 + time.tv_nsec);
  };
  return std::to_string(status.st_ino) + ' ' + std::to_string(status.st_size) + ' ' +
         nanoseconds(status.st_mtim) + ' ' + nanoseconds(status.st_ctim);
}

std::string joined(const std::vector<std::string>& fields) {
  std::string content;
  for (const std::string& field : fields) content += field + '\0';
  return content;
}

// A record of one file and one place with two names, whose folder has changed.
std::string record(const Folder& folder) {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  write(folder / "header.h", "#define N 1\n");
  return joined({"bringup call 2", "key", "digest", boot, "1", "0", "1", "0", folder / "header.h",
                 stamp(folder / "header.h"), folder / "", "1 2 3 4", "2", "a.h", "b.h", "end"});
}

std::string key_in(const std::string& path, std::string_view proved = "") {
  const auto build = rt::recall_call(path, proved);
  return build ? build->key : "";
}

}  // namespace

TEST(a_record_holds_until_a_file_changes_or_another_one_appears) {
  const Folder folder;
  write(folder / "record", record(folder));
  CHECK_EQ(key_in(folder / "record"), "key");
  CHECK_EQ(rt::recall_call(folder / "record", "")->digest, "digest");
  write(folder / "b.h", "");
  CHECK_EQ(key_in(folder / "record"), "");
  CHECK_EQ(key_in(folder / "record", "key"), "key");  // not one that every call looks at
  CHECK_EQ(key_in(folder / "record", "other"), "");   // another build was proved, not this one
  std::filesystem::remove(folder / "b.h");
  CHECK_EQ(key_in(folder / "record"), "key");
  write(folder / "header.h", "#define N 22\n");
  CHECK_EQ(key_in(folder / "record"), "");
  std::filesystem::remove(folder / "record");
  CHECK_EQ(key_in(folder / "record"), "");
}

TEST(a_file_that_was_there_has_to_be_there_and_a_folder_is_none) {
  const Folder folder;
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  write(folder / "record", joined({"bringup call 2", "key", "digest", boot, "0", "0", "1", "0",
                                   folder / "", "1 2 3 4", "2", "a.h", "/b.h", "end"}));
  CHECK_EQ(key_in(folder / "record"), "");
  write(folder / "b.h", "");
  std::filesystem::create_directory(folder / "a.h");
  CHECK_EQ(key_in(folder / "record"), "key");
  std::filesystem::remove(folder / "b.h");
  CHECK_EQ(key_in(folder / "record"), "");
  std::filesystem::create_directory(folder / "b.h");
  CHECK_EQ(key_in(folder / "record"), "");
}

TEST(a_record_that_is_cut_off_or_goes_on_is_none) {
  const Folder folder;
  const std::string whole = record(folder);
  for (size_t length = 0; length < whole.size(); ++length) {
    write(folder / "record", whole.substr(0, length));
    CHECK_EQ(key_in(folder / "record"), "");
  }
  write(folder / "record", whole + '\0');
  CHECK_EQ(key_in(folder / "record"), "");
  write(folder / "record", std::string(size_t{5} << 20, '\0'));
  CHECK_EQ(key_in(folder / "record"), "");
}

TEST(a_flipped_bit_is_survived) {
  const Folder folder;
  const std::string whole = record(folder);
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    write(folder / "record", flipped);
    const auto build = rt::recall_call(folder / "record", "");
    // Only what is no condition may change without being noticed here.
    if (build) CHECK(build->key.size() == 3 && build->digest.size() == 6);
  }
}
