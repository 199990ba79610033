// Which registration a creator, a plain function, makes an instance of: its thread's context says.
#pragma once

#include <memory>

#include "engine/run/descriptor.h"

namespace bringup::engine {

class Pass;
using Creator = std::unique_ptr<Pass> (*)();

// One registered pass. Sessions hold it, so that what it was made from outlives its instances.
struct Registration {
  PassDescriptor descriptor;
  Creator create = nullptr;
  std::shared_ptr<void> definition;  // what the creator builds from: a class, a table of hooks
  std::shared_ptr<void> library;     // the library with the code of all that; released last
  bool of_host = false;  // written in the host's language: runs on graphs of that host alone

  ~Registration() { definition.reset(); }
};

using RegistrationPtr = std::shared_ptr<const Registration>;

// The registration that the creator running on this thread is for; EngineError outside of one.
const Registration& creating();

// A fresh instance. Creators may make instances of other passes.
std::unique_ptr<Pass> make_instance(const Registration& registration);

// Where what is registered on this thread comes from: set while a plugin is loaded.
struct Origin {
  std::string module_name;
  std::string digest;
  std::shared_ptr<void> library;
};

// The innermost origin of this thread, or nullptr.
const Origin* current_origin();

class OriginScope {
 public:
  explicit OriginScope(const Origin& origin);
  ~OriginScope();
  OriginScope& operator=(OriginScope&&) = delete;

 private:
  const Origin* outer_;
};

}  // namespace bringup::engine
