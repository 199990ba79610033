// The loader: a shared library that stays mapped while it is held.
#pragma once

#include <memory>
#include <string>

#include "runtime/export.h"

namespace bringup::runtime {

class BRINGUP_API Library {
 public:
  // dlopen(path, RTLD_NOW | RTLD_LOCAL). Throws std::runtime_error with the loader's text.
  static std::shared_ptr<Library> open(const std::string& path);
  // A file that is no library of this machine and is never opened: it exports nothing here.
  static std::shared_ptr<Library> unopened(const std::string& path);

  ~Library();
  Library& operator=(Library&&) = delete;

  // The address of `name`; throws std::runtime_error naming library and symbol when there is none.
  void* symbol(const std::string& name) const;
  // The same, or nullptr.
  void* find_symbol(const std::string& name) const noexcept;
  const std::string& path() const noexcept { return path_; }

 private:
  Library(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}

  void* handle_;  // null: never opened
  std::string path_;
};

}  // namespace bringup::runtime
