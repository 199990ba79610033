#include "runtime/loader.h"

#include <dlfcn.h>

#include <stdexcept>

namespace bringup::runtime {

std::shared_ptr<Library> Library::open(const std::string& path) {
  // dlopen takes an empty path for the program itself.
  if (path.empty()) throw std::runtime_error("cannot load a library from an empty path");
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    throw std::runtime_error(reason != nullptr ? reason : "cannot load " + path);
  }
  return std::shared_ptr<Library>(new Library(handle, path));
}

std::shared_ptr<Library> Library::unopened(const std::string& path) {
  return std::shared_ptr<Library>(new Library(nullptr, path));
}

Library::~Library() {
  if (handle_ != nullptr) dlclose(handle_);
}

void* Library::find_symbol(const std::string& name) const noexcept {
  return handle_ == nullptr ? nullptr : dlsym(handle_, name.c_str());
}

void* Library::symbol(const std::string& name) const {
  if (void* address = find_symbol(name)) return address;
  throw std::runtime_error(path_ + " exports no symbol '" + name + "'");
}

}  // namespace bringup::runtime
