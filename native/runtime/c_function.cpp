#include "runtime/c_function.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "runtime/tvm_ffi.h"

namespace bringup::runtime {
namespace {

#if defined(__x86_64__)
constexpr size_t kIntRegisters = 6;  // System V ABI, 3.2.3
#elif defined(__aarch64__)
constexpr size_t kIntRegisters = 8;  // AAPCS64, 6.8.2
#else
#error "bringup runs on x86-64 and aarch64"
#endif
constexpr size_t kFloatRegisters = 8;
constexpr size_t kFewWords = 8;
constexpr size_t kMaxWords = 64;
constexpr size_t kMaxParameters = kIntRegisters + kFloatRegisters + kMaxWords;

// --- Where the values of a call lie. Integers fill one set of registers, floating-point numbers
// another, what is left over goes to the stack in order; so one call that fills everything serves
// every signature of scalars and addresses, and a function does not look at what it has not
// declared.

struct Places {
  int64_t integers[kIntRegisters] = {};
  double floats[kFloatRegisters] = {};
  int64_t words[kMaxWords];
  size_t integer_count = 0;
  size_t float_count = 0;
  size_t word_count = 0;

  void put(int64_t integer) {
    if (integer_count < kIntRegisters) {
      integers[integer_count++] = integer;
    } else {
      words[word_count++] = integer;
    }
  }
  void put_floating(double bits) {
    if (float_count < kFloatRegisters) {
      floats[float_count++] = bits;
    } else {
      std::memcpy(&words[word_count++], &bits, sizeof bits);
    }
  }
  void put(double floating) { put_floating(floating); }
  // The low half of the register or word; nobody looks at the other one.
  void put(float floating) {
    double bits = 0;
    std::memcpy(&bits, &floating, sizeof floating);
    put_floating(bits);
  }
};

template <class T, size_t>
using Repeated = T;

template <size_t... I, size_t... F, size_t... W>
int64_t call_with(void* function, const Places& places, std::index_sequence<I...>,
                  std::index_sequence<F...>, std::index_sequence<W...>) {
  using Function =
      int64_t (*)(Repeated<int64_t, I>..., Repeated<double, F>..., Repeated<int64_t, W>...);
  return reinterpret_cast<Function>(function)(places.integers[I]..., places.floats[F]...,
                                              places.words[W]...);
}

int64_t call(void* function, Places& places) {
  const auto integers = std::make_index_sequence<kIntRegisters>();
  const auto floats = std::make_index_sequence<kFloatRegisters>();
  const auto with = [&](auto words) {
    return call_with(function, places, integers, floats, words);
  };
  if (places.word_count == 0) return with(std::make_index_sequence<0>());
  const size_t passed = places.word_count <= kFewWords ? kFewWords : kMaxWords;
  std::memset(places.words + places.word_count, 0, (passed - places.word_count) * sizeof(int64_t));
  if (passed == kFewWords) return with(std::make_index_sequence<kFewWords>());
  return with(std::make_index_sequence<kMaxWords>());
}

// --- Reading arguments. What cannot be read is reported by `refuse`, once.

// A reason that lives until the next one on this thread.
const char* refuse(const std::string& reason) {
  thread_local std::string kept;
  kept = reason;
  return kept.c_str();
}

// Why a parameter cannot hold the value; empty when it can.
std::string out_of_range(const CParameter& parameter, Value value) {
  const std::string& text = parameter.value.text;
  if (parameter.kind == CParameter::Kind::kFloat32) {
    const double largest = std::numeric_limits<float>::max();
    if (!std::isfinite(value.floating) || std::fabs(value.floating) <= largest) return "";
    std::array<char, 32> number;
    std::snprintf(number.data(), number.size(), "%g", value.floating);
    return text + " is " + number.data() + ", beyond the range of a 32-bit float";
  }
  const int64_t given = value.integer;
  if (!parameter.bounded || (parameter.lowest <= given && given <= parameter.highest)) return "";
  return text + " is " + std::to_string(given) + ", outside " + std::to_string(parameter.lowest) +
         " to " + std::to_string(parameter.highest);
}

// --- A bound function, and the calls of it.

struct Bound {
  std::shared_ptr<Library> library;
  void* function;
  CConvention convention;
  std::vector<CParameter> parameters;
  std::vector<std::string> arguments;
  TvmRuntime tvm;

  // The value of a parameter. `reason` is set where there is none that it can hold, and lives until
  // the next one on this thread.
  Value value_of(const CParameter& parameter, void** args, const bringup_ctx* ctx, bool allocates,
                 const char*& reason) const {
    Failure failure;
    const Value value = evaluate(parameter.value, args, failure, ctx, allocates);
    if (failure) {
      const std::string name =
          failure.argument < 0 ? "" : arguments[static_cast<size_t>(failure.argument)];
      reason = refuse(describe(failure, parameter.value, name));
    } else if (std::string wrong = out_of_range(parameter, value); !wrong.empty()) {
      reason = refuse(wrong);
    }
    return value;
  }
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

void put(Places& places, const CParameter& parameter, Value value, Referred& referred) {
  using Kind = CParameter::Kind;
  const auto single = [&] { return static_cast<float>(value.floating); };
  if (parameter.by_reference) {
    referred.integer = value.integer;
    if (parameter.kind == Kind::kFloat64) referred.floating = value.floating;
    if (parameter.kind == Kind::kFloat32) referred.single = single();
    return places.put(static_cast<int64_t>(reinterpret_cast<intptr_t>(&referred)));
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
  Places places;
  std::array<Referred, kMaxParameters> referred;
  size_t number = 0;
  for (const CParameter& parameter : bound.parameters) {
    const Value value = bound.value_of(parameter, args, ctx, /*allocates=*/true, reason);
    if (reason != nullptr) return fail(ctx, reason);
    put(places, parameter, value, referred[number++]);
  }
  const int64_t result = call(bound.function, places);
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

int32_t call_tvm(const Bound& bound, void** args, const bringup_ctx* ctx) {
  const char* reason = nullptr;
  std::array<TvmAny, kMaxParameters> given;
  int32_t count = 0;
  for (const CParameter& parameter : bound.parameters) {
    const Value value = bound.value_of(parameter, args, ctx, /*allocates=*/true, reason);
    if (reason != nullptr) return fail(ctx, reason);
    given[static_cast<size_t>(count++)] = any_of(parameter, value, is_none(parameter, args));
  }
  const bool on_device = ctx->device.device_type != 1;
  void* before = on_device ? bound.tvm.set_stream(ctx->device, ctx->stream) : nullptr;
  TvmAny result = TvmAny::none();
  const int status =
      reinterpret_cast<TvmFunction>(bound.function)(nullptr, given.data(), count, &result);
  if (on_device) bound.tvm.set_stream(ctx->device, before);
  if (status != 0) {
    const std::string error = bound.tvm.take_error();
    ctx->set_error(ctx, error.empty() ? "the function has set no error" : error.c_str());
    return status;
  }
  if (bound.tvm.drop(result)) return 0;
  return fail(ctx, ("the function returned an object (tvm-ffi type " + std::to_string(result.type) +
                    "), where it should write its outputs and return nothing")
                       .c_str());
}

// --- Entries. A kernel's entry has no argument for its owner, so there is one for each bound
// function: a fixed number of them, numbered by the compiler, and used again.

constexpr size_t kEntries = 2048;

// What the entries read: written before the entry is handed out, cleared when nobody has it.
Bound* g_bound[kEntries];
std::mutex g_bound_mutex;  // for taking and giving back; calls do not need it

[[gnu::noinline]] int32_t run_bound(const Bound& bound, void** args, const bringup_ctx* ctx) {
  return bound.convention == CConvention::kTvmFfi ? call_tvm(bound, args, ctx)
                                                  : call_c(bound, args, ctx);
}

[[gnu::noinline]] const char* refuse_bound(const Bound& bound, void** args,
                                           const bringup_ctx* ctx) {
  const char* reason = nullptr;
  for (const CParameter& parameter : bound.parameters) {
    bound.value_of(parameter, args, ctx, /*allocates=*/false, reason);
    if (reason != nullptr) break;
  }
  return reason;
}

template <size_t kNumber>
int32_t entry(void** args, int32_t, const bringup_ctx* ctx) {
  return run_bound(*g_bound[kNumber], args, ctx);
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
                         std::vector<CParameter> parameters, std::vector<std::string> arguments) {
  if (parameters.size() > kMaxWords) {
    throw std::runtime_error(symbol + " is given " + std::to_string(parameters.size()) +
                             " arguments, more than the " + std::to_string(kMaxWords) +
                             " that a call carries");
  }
  for (const CParameter& parameter : parameters) check_program(parameter.value);
  auto holder = std::make_shared<Holder>();
  auto library = Library::open(path);
  void* function = library->symbol(symbol);
  TvmRuntime tvm = convention == CConvention::kTvmFfi ? TvmRuntime(*library) : TvmRuntime();
  holder->bound = {std::move(library),   function, convention, std::move(parameters),
                   std::move(arguments), tvm};
  holder->slot = take_slot(&holder->bound);
  const Entry& entry = kEntryTable[holder->slot];
  // No library in the kernel: a driver would look there for an entry of the symbol's name.
  holder->kernel = {symbol, entry.run, KernelKind::kHostEntry, nullptr, entry.can_implement};
  const Kernel* kernel = &holder->kernel;
  return KernelTable::instance().add(std::shared_ptr<const Kernel>(std::move(holder), kernel));
}

}  // namespace bringup::runtime
