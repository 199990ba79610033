#include "engine/run/creation.h"

#include "engine/run/pass.h"
#include "engine/util/error.h"

namespace bringup::engine {
namespace {

thread_local const Registration* current_registration = nullptr;
thread_local const Origin* innermost_origin = nullptr;

class CreationScope {
 public:
  explicit CreationScope(const Registration& registration) : outer_(current_registration) {
    current_registration = &registration;
  }
  ~CreationScope() { current_registration = outer_; }
  CreationScope& operator=(CreationScope&&) = delete;

 private:
  const Registration* outer_;
};

}  // namespace

const Registration& creating() {
  if (current_registration == nullptr) {
    throw_error(ErrorCode::kInternal, "no pass is being created on this thread");
  }
  return *current_registration;
}

std::unique_ptr<Pass> make_instance(const Registration& registration) {
  const CreationScope scope(registration);
  std::unique_ptr<Pass> instance = registration.create();
  if (instance == nullptr) {
    throw_error(ErrorCode::kFailed, "the creator of pass '", registration.descriptor.pass_name,
                "' made nothing");
  }
  return instance;
}

const Origin* current_origin() { return innermost_origin; }

OriginScope::OriginScope(const Origin& origin) : outer_(innermost_origin) {
  innermost_origin = &origin;
}

OriginScope::~OriginScope() { innermost_origin = outer_; }

}  // namespace bringup::engine
