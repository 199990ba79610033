#include "engine/graph/providers.h"

#include "engine/graph/tensor_desc.h"
#include "engine/util/error.h"

namespace bringup::engine {
namespace {

std::string dims_text(const std::vector<Dim>& dims) {
  std::string text;
  for (const Dim& dim : dims) {
    text += text.empty() ? "" : ", ";
    text += dim.is_static() ? std::to_string(dim.number) : std::string(Strings::text(dim.symbol));
  }
  return "[" + text + "]";
}

std::string differs(const char* what, std::string_view old, std::string_view now) {
  return concat(what, " differs: expected ", old, ", got ", now);
}

}  // namespace

std::optional<std::string> difference_of(const TensorDesc& old, const TensorDesc& now) {
  if (old.sizes != now.sizes) return differs("shape", dims_text(old.sizes), dims_text(now.sizes));
  if (old.dtype != now.dtype) {
    return differs("dtype", Strings::text(old.dtype), Strings::text(now.dtype));
  }
  if (old.device != now.device) {
    return differs("device", Strings::text(old.device), Strings::text(now.device));
  }
  return std::nullopt;
}

void refuse_missing_provider(const char* name) {
  throw_error(ErrorCode::kNoProvider, "there is no provider of ", name, ": the host gave none");
}

}  // namespace bringup::engine
