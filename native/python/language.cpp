// The expression language for Python: its opcodes, and functions bound to what programs compute.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

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

void bind_opcodes(nb::module_& module) {
  nb::enum_<Opcode>(module, "Opcode", nb::is_arithmetic())
      .value("CONSTANT", Opcode::kConstant)
      .value("TEXT", Opcode::kText)
      .value("INT", Opcode::kInt)
      .value("FLOAT", Opcode::kFloat)
      .value("STRING", Opcode::kString)
      .value("DATA", Opcode::kData)
      .value("LIST_DATA", Opcode::kListData)
      .value("TENSOR", Opcode::kTensor)
      .value("SIZE", Opcode::kSize)
      .value("STRIDE", Opcode::kStride)
      .value("NUMEL", Opcode::kNumel)
      .value("NDIM", Opcode::kNdim)
      .value("LENGTH", Opcode::kLength)
      .value("HAS", Opcode::kHas)
      .value("DTYPE", Opcode::kDtype)
      .value("DTYPE_CODE", Opcode::kDtypeCode)
      .value("DTYPE_BITS", Opcode::kDtypeBits)
      .value("SIZE_ALONG", Opcode::kSizeAlong)
      .value("STRIDE_ALONG", Opcode::kStrideAlong)
      .value("ELEMENT", Opcode::kElement)
      .value("ITEM_DATA", Opcode::kItemData)
      .value("ITEM_NUMEL", Opcode::kItemNumel)
      .value("STREAM", Opcode::kStream)
      .value("DEVICE", Opcode::kDevice)
      .value("FAULT", Opcode::kFault)
      .value("WORKSPACE", Opcode::kWorkspace)
      .value("NOT", Opcode::kNot)
      .value("SIZE_OR", Opcode::kSizeOr)
      .value("STRIDE_OR", Opcode::kStrideOr)
      .value("ADD", Opcode::kAdd)
      .value("SUBTRACT", Opcode::kSubtract)
      .value("MULTIPLY", Opcode::kMultiply)
      .value("FLOOR_DIVIDE", Opcode::kFloorDivide)
      .value("MODULO", Opcode::kModulo)
      .value("LESS", Opcode::kLess)
      .value("EQUAL", Opcode::kEqual)
      .value("MINIMUM", Opcode::kMinimum)
      .value("AND", Opcode::kAnd)
      .value("OR", Opcode::kOr);
}

void bind_contract(nb::module_& module) {
  using runtime::CheckKind;
  nb::enum_<CheckKind>(module, "CheckKind", nb::is_arithmetic(),
                       "What a check of an input contract compares; KERNEL is left to the kernel.")
      .value("SAME_SHAPE", CheckKind::kSameShape)
      .value("SAME_DTYPE", CheckKind::kSameDtype)
      .value("SHAPE", CheckKind::kShape)
      .value("DTYPE", CheckKind::kDtype)
      .value("LENGTH", CheckKind::kLength)
      .value("RANK", CheckKind::kRank)
      .value("KERNEL", CheckKind::kKernel);
  using runtime::KeyFieldKind;
  nb::enum_<KeyFieldKind>(module, "KeyFieldKind", nb::is_arithmetic(),
                          "What a field of a variant's key holds.")
      .value("DTYPE", KeyFieldKind::kDtype)
      .value("LAYOUT", KeyFieldKind::kLayout)
      .value("CHOICE", KeyFieldKind::kChoice)
      .value("BUCKET", KeyFieldKind::kBucket);
  using runtime::SourceKind;
  nb::enum_<SourceKind>(module, "SourceKind", nb::is_arithmetic(),
                        "Where an argument of a backward operator comes from.")
      .value("GRAD", SourceKind::kGrad)
      .value("INPUT", SourceKind::kInput)
      .value("OUTPUT", SourceKind::kOutput)
      .value("CONSTANT", SourceKind::kConstant)
      .value("MASK", SourceKind::kMask);
  using runtime::Layout;
  nb::enum_<Layout>(module, "Layout", nb::is_arithmetic(),
                    "How the last two dimensions of a tensor lie in memory.")
      .value("ROW", Layout::kRow)
      .value("COLUMN", Layout::kColumn)
      .value("STRIDED", Layout::kStrided)
      .value("NZ", Layout::kNz);
  module.attr("DTYPE_BITS") = runtime::kDtypeBits;
  module.attr("LAYOUT_BITS") = runtime::kLayoutBits;
  module.attr("FIELD_BITS") = runtime::kFieldBits;
}

}  // namespace

void bind_language(nb::module_& module) {
  bind_opcodes(module);
  bind_contract(module);
  using Kind = CParameter::Kind;
  nb::enum_<Kind>(module, "ValueKind", nb::is_arithmetic())
      .value("INT", Kind::kInt)
      .value("FLOAT64", Kind::kFloat64)
      .value("FLOAT32", Kind::kFloat32)
      .value("POINTER", Kind::kPointer)
      .value("BOOL", Kind::kBool)
      .value("TEXT", Kind::kText)
      .value("TENSOR", Kind::kTensor)
      .value("DTYPE", Kind::kDtype);
  nb::enum_<CConvention>(module, "Convention", nb::is_arithmetic())
      .value("STATUS", CConvention::kStatus)
      .value("VOID", CConvention::kVoid)
      .value("TVM_FFI", CConvention::kTvmFfi)
      .value("VALUES", CConvention::kValues);
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
          [](LaunchSize* self, Sizes grid, Sizes block, Expression shared, bool free_blocks) {
            new (self)
                LaunchSize{std::move(grid), std::move(block), std::move(shared), free_blocks};
          },
          nb::kw_only(), nb::arg("grid"), nb::arg("block"), nb::arg("shared"),
          nb::arg("free_blocks"));
  module.def("bind_c_function", &runtime::bind_c_function, nb::arg("path"), nb::arg("symbol"),
             nb::arg("convention"), nb::arg("parameters"), nb::arg("arguments"),
             nb::arg("size") = nb::none(), nb::arg("opens") = true,
             nb::call_guard<nb::gil_scoped_release>(),
             "Loads the library at `path`, binds its function `symbol` to what the parameters say, "
             "puts it into the kernel table and returns its id.");
}

}  // namespace bringup::python
