#include "runtime/c_function.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "grid/grid_run.h"
#include "runtime/fault_rules.h"
#include "runtime/tvm_ffi.h"

namespace bringup::runtime {
namespace {

constexpr size_t kMaxParameters = grid::kMaxWords;

// --- A bound function, and the calls of it.

struct Bound {
  std::shared_ptr<Library> library;
  void* function;
  CConvention convention;
  std::vector<CParameter> parameters;
  std::vector<std::string> arguments;
  TvmRuntime tvm;
  std::shared_ptr<const ValuesCode> values;  // of kValues
};

int32_t fail(const bringup_ctx* ctx, const char* reason) {
  ctx->set_error(ctx, reason);
  return 1;
}

// By reference, as Fortran passes: the number in memory of its own type (little-endian machines).
union Referred {
  int64_t integer;
  double floating;
  float single;
};

void put(grid::Places& places, const CParameter& parameter, Value value, Referred& referred) {
  using Kind = CParameter::Kind;
  const auto single = [&] { return static_cast<float>(value.floating); };
  if (parameter.by_reference) {
    referred.integer = value.integer;
    if (parameter.kind == Kind::kFloat64) referred.floating = value.floating;
    if (parameter.kind == Kind::kFloat32) referred.single = single();
    return places.put(static_cast<const void*>(&referred));
  }
  switch (parameter.kind) {
    case Kind::kFloat64:
      return places.put(value.floating);
    case Kind::kFloat32:
      return places.put(single());
    default:
      return places.put(value.integer);
  }
}

int32_t call_c(const Bound& bound, void** args, const bringup_ctx* ctx) {
  const char* reason = nullptr;
  grid::Places places;
  std::array<Referred, kMaxParameters> referred;
  size_t number = 0;
  for (const CParameter& parameter : bound.parameters) {
    const Value value =
        read_parameter(parameter, bound.arguments, args, ctx, /*allocates=*/true, reason);
    if (reason != nullptr) return fail(ctx, reason);
    put(places, parameter, value, referred[number++]);
  }
  const int64_t result = places.call(bound.function);
  if (bound.convention == CConvention::kVoid) return 0;
  const auto status = static_cast<int32_t>(result);
  if (status != 0) {
    ctx->set_error(ctx,
                   "the function returned that; if it returns nothing, declare returns=\"void\"");
  }
  return status;
}

TvmAny any_of(const CParameter& parameter, Value value, bool is_none) {
  using Kind = CParameter::Kind;
  TvmAny any = TvmAny::none();
  if (is_none) return any;
  switch (parameter.kind) {
    case Kind::kInt:
      any.type = TvmAny::kInt;
      any.integer = value.integer;
      break;
    case Kind::kBool:
      any.type = TvmAny::kBool;
      any.integer = value.integer != 0;
      break;
    case Kind::kFloat64:
    case Kind::kFloat32:
      any.type = TvmAny::kFloat;
      any.floating = value.floating;
      break;
    case Kind::kDevice:  // a DLDevice, by its bits
      any.type = TvmAny::kDevice;
      any.integer = value.integer;
      break;
    case Kind::kDtype:
      any.type = TvmAny::kDataType;
      any.integer = 0;
      any.dtype = data_type(value.integer);
      break;
    default:
      any.type = parameter.kind == Kind::kTensor ? TvmAny::kDLTensor
                 : parameter.kind == Kind::kText ? TvmAny::kRawText
                                                 : TvmAny::kOpaquePointer;
      if (value.pointer == nullptr) any.type = TvmAny::kNone;
      any.pointer = value.pointer;
  }
  return any;
}

// Only a parameter that is one argument as it is can be None.
bool is_none(const CParameter& parameter, void** args) {
  return parameter.optional && args[parameter.value.program.front().argument] == nullptr;
}

TvmAny::Type element_of(CParameter::Kind kind) {
  using Kind = CParameter::Kind;
  return kind == Kind::kInts     ? TvmAny::kInt
         : kind == Kind::kFloats ? TvmAny::kFloat
         : kind == Kind::kBools  ? TvmAny::kBool
                                 : TvmAny::kTensor;
}

// The arguments of a call; its arrays go with it.
struct TvmArguments {
  explicit TvmArguments(const TvmRuntime& runtime) : runtime(runtime) {}
  ~TvmArguments() {
    for (size_t i = 0; i < count; ++i) runtime.release(values[i]);
  }
  TvmArguments& operator=(TvmArguments&&) = delete;

  // A reason, or null.
  const char* read(const Bound& bound, void** args, const bringup_ctx* ctx) {
    const char* reason = nullptr;
    for (const CParameter& parameter : bound.parameters) {
      const Value value =
          read_parameter(parameter, bound.arguments, args, ctx, /*allocates=*/true, reason);
      if (reason != nullptr) return reason;
      const bool none = is_none(parameter, args);
      const bool list = parameter.kind >= CParameter::Kind::kInts && !none;
      values[count] = list ? runtime.array(*static_cast<const bringup_list*>(value.pointer),
                                           element_of(parameter.kind), reason)
                           : any_of(parameter, value, none);
      if (reason != nullptr) return reason;
      ++count;
    }
    return nullptr;
  }

  const TvmRuntime& runtime;
  std::array<TvmAny, kMaxParameters> values;
  size_t count = 0;
};

// Why a returned tensor is not what the output rule says, or "".
std::string copy_returned(const DLTensor& from, const DLTensor& to) {
  if (from.device.device_type != 1 || to.device.device_type != 1) {
    return "the function returned a tensor, which is copied on the CPU alone: take the output as "
           "an argument and write it";
  }
  const bool same = from.ndim == to.ndim && from.dtype.code == to.dtype.code &&
                    from.dtype.bits == to.dtype.bits && from.dtype.lanes == to.dtype.lanes &&
                    std::equal(from.shape, from.shape + from.ndim, to.shape);
  const bool dense = from.strides == nullptr || bringup::is_contiguous(from);
  if (!same || !dense || !bringup::is_contiguous(to)) {
    return "the function returned a tensor of another shape or dtype than outputs= says, or one "
           "that is not contiguous";
  }
  const auto bytes = static_cast<size_t>(bringup::numel(from)) * from.dtype.bits / 8;
  if (bytes > 0) {
    std::memcpy(to.data, static_cast<const std::byte*>(from.data) + from.byte_offset, bytes);
  }
  return "";
}

int32_t call_tvm(const Bound& bound, void** args, int32_t n, const bringup_ctx* ctx) {
  TvmArguments given(bound.tvm);
  if (const char* reason = given.read(bound, args, ctx)) return fail(ctx, reason);
  const bool on_device = ctx->device.device_type != 1;
  void* before = on_device ? bound.tvm.set_stream(ctx->device, ctx->stream) : nullptr;
  TvmAny result = TvmAny::none();
  const int status = reinterpret_cast<TvmFunction>(bound.function)(
      nullptr, given.values.data(), static_cast<int32_t>(given.count), &result);
  if (on_device) bound.tvm.set_stream(ctx->device, before);
  if (status != 0) {
    const std::string error = bound.tvm.take_error();
    ctx->set_error(ctx, error.empty() ? "the function has set no error" : error.c_str());
    return status;
  }
  if (bound.convention == CConvention::kTvmTensor) {
    if (result.type != TvmAny::kTensor) {
      bound.tvm.release(result);
      return fail(ctx, "the function returned no tensor, and does not get its output");
    }
    const std::string wrong =
        copy_returned(tensor_in(result), *static_cast<const DLTensor*>(args[n - 1]));
    bound.tvm.release(result);
    return wrong.empty() ? 0 : fail(ctx, wrong.c_str());
  }
  const std::string returned = bound.tvm.drop(result);
  if (returned.empty()) return 0;
  return fail(ctx, ("the function returned " + returned +
                    ", which nothing reads: it should write its outputs and return nothing")
                       .c_str());
}

// Device code on the host: the whole grid, before this returns.
int32_t call_grid(const Bound& bound, void** args, const bringup_ctx* ctx) {
  int32_t fault = 0;
  ValuesLaunch launch;
  launch.fault = &fault;
  if (const char* reason = bound.values->lower(args, ctx, launch)) return fail(ctx, reason);
  if (launch.cluster.x != 0 || launch.flags != 0) {
    return fail(ctx, "cluster= and cooperative= are for devices that have them, not for the host");
  }
  const auto index = [](const bringup_dim3& dim) { return bringup_index{dim.x, dim.y, dim.z}; };
  grid::GridRun run{bound.function,      index(launch.grid),       index(launch.block),
                    launch.shared_bytes, launch.work_items.x != 0, {}};
  run.arguments.put(static_cast<const void*>(nullptr));  // the position
  for (const bringup_value& value : launch.values) put_value(run.arguments, value);
  grid::run_grid(run);
  if (fault == 0) return 0;
  fail(ctx, broken_rule(bound.values->rules(), fault).c_str());
  return fault;
}

// --- Entries, without an argument for their owner: a fixed number, one a bound function at a time.

constexpr size_t kEntries = 2048;

// What the entries read: written before the entry is handed out, cleared when nothing has it.
Bound* g_bound[kEntries];
std::mutex g_bound_mutex;  // for taking and giving back; calls do not need it

[[gnu::noinline]] int32_t run_bound(const Bound& bound, void** args, int32_t n,
                                    const bringup_ctx* ctx) {
  switch (bound.convention) {
    case CConvention::kTvmFfi:
    case CConvention::kTvmTensor:
      return call_tvm(bound, args, n, ctx);
    case CConvention::kValues:
      return call_grid(bound, args, ctx);
    default:
      return call_c(bound, args, ctx);
  }
}

[[gnu::noinline]] const char* refuse_bound(const Bound& bound, void** args,
                                           const bringup_ctx* ctx) {
  const char* reason = nullptr;
  if (bound.values != nullptr) {
    ValuesLaunch launch;
    return bound.values->lower(args, ctx, launch);
  }
  for (const CParameter& parameter : bound.parameters) {
    read_parameter(parameter, bound.arguments, args, ctx, /*allocates=*/false, reason);
    if (reason != nullptr) break;
  }
  return reason;
}

template <size_t kNumber>
int32_t entry(void** args, int32_t n, const bringup_ctx* ctx) {
  return run_bound(*g_bound[kNumber], args, n, ctx);
}

template <size_t kNumber>
const char* can_implement(void** args, int32_t, const bringup_ctx* ctx) {
  return refuse_bound(*g_bound[kNumber], args, ctx);
}

struct Entry {
  bringup_kernel_fn run;
  bringup_can_implement_fn can_implement;
};

template <size_t... kNumbers>
constexpr std::array<Entry, kEntries> entries(std::index_sequence<kNumbers...>) {
  return {{{&entry<kNumbers>, &can_implement<kNumbers>}...}};
}

constexpr std::array<Entry, kEntries> kEntryTable = entries(std::make_index_sequence<kEntries>());

size_t take_slot(Bound* bound) {
  std::lock_guard lock(g_bound_mutex);
  for (size_t number = 0; number < kEntries; ++number) {
    if (g_bound[number] != nullptr) continue;
    g_bound[number] = bound;
    return number;
  }
  throw std::runtime_error("this process has bound " + std::to_string(kEntries) +
                           " functions, more than there are entries for; define operators once "
                           "and keep them");
}

// The kernel of a bound function with all that it needs. Its last holder closes the library.
struct Holder {
  Bound bound;
  size_t slot = kEntries;
  Kernel kernel;

  ~Holder() {
    if (slot == kEntries) return;
    std::lock_guard lock(g_bound_mutex);
    g_bound[slot] = nullptr;
  }
};

}  // namespace

KernelId bind_c_function(const std::string& path, const std::string& symbol, CConvention convention,
                         std::vector<CParameter> parameters, std::vector<std::string> arguments,
                         std::optional<LaunchSize> size, bool opens) {
  if (parameters.size() > kMaxParameters) {
    throw std::runtime_error(symbol + " is given " + std::to_string(parameters.size()) +
                             " arguments, more than the " + std::to_string(kMaxParameters) +
                             " that a call carries");
  }
  for (const CParameter& parameter : parameters) check_program(parameter.value);
  auto holder = std::make_shared<Holder>();
  auto library = opens || !size ? Library::open(path) : Library::unopened(path);
  void* function = opens || !size ? library->symbol(symbol) : nullptr;
  const bool is_tvm = convention == CConvention::kTvmFfi || convention == CConvention::kTvmTensor;
  TvmRuntime tvm = is_tvm ? TvmRuntime(*library) : TvmRuntime();
  std::shared_ptr<const ValuesCode> values;
  if (size) values = ValuesCode::make(parameters, arguments, std::move(*size));
  const bool is_values = values != nullptr;
  holder->bound = {is_values ? nullptr : library, function, convention, std::move(parameters),
                   std::move(arguments),          tvm,      values};
  holder->slot = take_slot(&holder->bound);
  const Entry& entry = kEntryTable[holder->slot];
  // Without a library in the kernel: a driver would look there for an entry of this name.
  holder->kernel = {symbol,
                    entry.run,
                    is_values ? KernelKind::kDeviceCode : KernelKind::kHostEntry,
                    is_values ? std::move(library) : nullptr,
                    entry.can_implement,
                    std::move(values)};
  const Kernel* kernel = &holder->kernel;
  return KernelTable::instance().add(std::shared_ptr<const Kernel>(std::move(holder), kernel));
}

}  // namespace bringup::runtime
