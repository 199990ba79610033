// The expression language for Python: its opcodes, and functions bound to what programs compute.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <sstream>
#include <stdexcept>

#include "python/bindings.h"
#include "runtime/c_function.h"
#include "runtime/contract.h"

namespace nb = nanobind;

namespace bringup::python {
namespace {

using runtime::CConvention;
using runtime::CParameter;
using runtime::Expression;
using runtime::LaunchSize;
using runtime::Opcode;

using Steps = std::vector<std::tuple<Opcode, int32_t, int64_t>>;

Expression expression(std::string text, const Steps& program, std::vector<std::string> texts) {
  Expression made{std::move(text), {}, std::move(texts)};
  for (const auto& [opcode, argument, value] : program) {
    made.program.push_back({opcode, argument, value});
  }
  if (!made.program.empty()) runtime::check_program(made);  // a slice of sizes has only its text
  return made;
}

// Binds an enum by the names of its values, which count from 0 to `last`.
template <class Enum>
void bind_enum(nb::module_& module, const char* name, Enum last, const std::string& names) {
  nb::enum_<Enum> bound(module, name, nb::is_arithmetic());
  std::istringstream words(names);
  uint8_t number = 0;
  for (std::string word; words >> word; ++number) {
    bound.value(word.c_str(), static_cast<Enum>(number));
  }
  if (number != static_cast<uint8_t>(last) + 1) throw std::logic_error(names);
}

void bind_opcodes(nb::module_& module) {
  bind_enum(
      module, "Opcode", Opcode::kOr,
      "CONSTANT TEXT INT FLOAT REAL STRING DATA LIST_DATA TENSOR SIZE STRIDE NUMEL NDIM LENGTH "
      "HAS DTYPE DTYPE_CODE DTYPE_BITS SIZE_ALONG STRIDE_ALONG ELEMENT ITEM_DATA "
      "ITEM_NUMEL STREAM DEVICE FAULT WORKSPACE NOT SIZE_OR STRIDE_OR ADD SUBTRACT "
      "MULTIPLY FLOOR_DIVIDE MODULO LESS EQUAL MINIMUM AND OR");
}

void bind_contract(nb::module_& module) {
  using runtime::CheckKind;
  bind_enum(module, "CheckKind", CheckKind::kKernel,
            "SAME_SHAPE SAME_DTYPE SHAPE DTYPE LENGTH RANK KERNEL");
  using runtime::KeyFieldKind;
  bind_enum(module, "KeyFieldKind", KeyFieldKind::kBucket, "DTYPE LAYOUT CHOICE BUCKET");
  using runtime::SourceKind;
  bind_enum(module, "SourceKind", SourceKind::kMask, "GRAD INPUT OUTPUT CONSTANT MASK");
  using runtime::Layout;
  bind_enum(module, "Layout", Layout::kNz, "ROW COLUMN STRIDED NZ");
  module.attr("DTYPE_BITS") = runtime::kDtypeBits;
  module.attr("LAYOUT_BITS") = runtime::kLayoutBits;
  module.attr("FIELD_BITS") = runtime::kFieldBits;
}

}  // namespace

void bind_language(nb::module_& module) {
  bind_opcodes(module);
  bind_contract(module);
  using Kind = CParameter::Kind;
  bind_enum(module, "ValueKind", Kind::kTensors,
            "INT FLOAT64 FLOAT32 POINTER BOOL TEXT TENSOR DTYPE DEVICE INTS FLOATS BOOLS TENSORS");
  bind_enum(module, "Convention", CConvention::kTvmTensor, "STATUS VOID TVM_FFI VALUES TVM_TENSOR");
  nb::class_<Expression>(module, "NativeExpression")
      .def(
          "__init__",
          [](Expression* self, std::string text, const Steps& program,
             std::vector<std::string> texts) {
            new (self) Expression(expression(std::move(text), program, std::move(texts)));
          },
          nb::arg("text"), nb::arg("program"), nb::arg("texts") = std::vector<std::string>());
  nb::class_<CParameter>(module, "NativeParameter")
      .def(
          "__init__",
          [](CParameter* self, Expression value, CParameter::Kind kind, bool by_reference,
             std::optional<std::tuple<int64_t, int64_t>> bounds, bool optional, uint32_t size) {
            const auto [lowest, highest] = bounds.value_or(std::tuple<int64_t, int64_t>(0, 0));
            new (self) CParameter{std::move(value), kind,    by_reference, bounds.has_value(),
                                  lowest,           highest, optional,     size};
          },
          nb::kw_only(), nb::arg("value"), nb::arg("kind"), nb::arg("by_reference"),
          nb::arg("bounds").none(), nb::arg("optional"), nb::arg("size"));
  using Sizes = std::array<Expression, 3>;
  nb::class_<LaunchSize>(module, "NativeLaunchSize")
      .def(
          "__init__",
          [](LaunchSize* self, Sizes grid, Sizes block, Expression shared, bool free_blocks,
             std::array<uint32_t, 3> cluster, bool cooperative) {
            new (self) LaunchSize{std::move(grid),
                                  std::move(block),
                                  std::move(shared),
                                  free_blocks,
                                  {cluster[0], cluster[1], cluster[2]},
                                  cooperative ? BRINGUP_VALUES_COOPERATIVE : 0};
          },
          nb::kw_only(), nb::arg("grid"), nb::arg("block"), nb::arg("shared"),
          nb::arg("free_blocks"), nb::arg("cluster"), nb::arg("cooperative"));
  module.def("bind_c_function", &runtime::bind_c_function, nb::arg("path"), nb::arg("symbol"),
             nb::arg("convention"), nb::arg("parameters"), nb::arg("arguments"),
             nb::arg("size") = nb::none(), nb::arg("opens") = true,
             nb::call_guard<nb::gil_scoped_release>(),
             "Loads the library at `path`, binds its function `symbol` to what the parameters say, "
             "puts it into the kernel table and returns its id.");
}

}  // namespace bringup::python
