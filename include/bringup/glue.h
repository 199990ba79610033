/* What generated entries are made of: bringup.jit turns every other entry form into kernel.h's by
 * compiling a few lines around a source. Not for kernels, and not stable. From C11 or C++17.
 */
#ifndef BRINGUP_GLUE_H_
#define BRINGUP_GLUE_H_

#include "bringup/params.h"

#ifndef __cplusplus
#include <stdbool.h>
#endif

#ifdef __cplusplus
#define BRINGUP_GLUE_EXPORT extern "C" __attribute__((visibility("default")))
#else
#define BRINGUP_GLUE_EXPORT __attribute__((visibility("default")))
#endif

/* --- Reading arguments; what is None reads as 0. */

static inline void* bringup_glue_data(const void* arg) {
  return arg != NULL ? ((const DLTensor*)arg)->data : NULL;
}

static inline void* bringup_glue_list_data(const void* arg) {
  return arg != NULL ? (void*)((const bringup_list*)arg)->data : NULL;
}

static inline int64_t bringup_glue_length(const void* arg) {
  return arg != NULL ? ((const bringup_list*)arg)->size : 0;
}

static inline int64_t bringup_glue_ndim(const void* arg) {
  return arg != NULL ? ((const DLTensor*)arg)->ndim : 0;
}

/* Whether a tensor has the dimension `i`, which counts from the end when it is negative. */
static inline int bringup_glue_has_dimension(const void* arg, int64_t i) {
  const int64_t ndim = bringup_glue_ndim(arg);
  return arg == NULL || (-ndim <= i && i < ndim);
}

static inline int64_t bringup_glue_size(const void* arg, int64_t i) {
  return arg != NULL ? ((const DLTensor*)arg)->shape[i < 0 ? i + bringup_glue_ndim(arg) : i] : 0;
}

static inline int64_t bringup_glue_stride(const void* arg, int64_t i) {
  return arg != NULL ? ((const DLTensor*)arg)->strides[i < 0 ? i + bringup_glue_ndim(arg) : i] : 0;
}

/* Of a tensor that has the dimension; else `otherwise`. */
static inline int64_t bringup_glue_size_or(const void* arg, int64_t i, int64_t otherwise) {
  const int has = arg != NULL && bringup_glue_has_dimension(arg, i);
  return has ? bringup_glue_size(arg, i) : otherwise;
}

static inline int64_t bringup_glue_stride_or(const void* arg, int64_t i, int64_t otherwise) {
  const int has = arg != NULL && bringup_glue_has_dimension(arg, i);
  return has ? bringup_glue_stride(arg, i) : otherwise;
}

static inline int64_t bringup_glue_numel(const void* arg) {
  int64_t count = arg != NULL;
  for (int64_t i = 0; i < bringup_glue_ndim(arg); ++i) count *= bringup_glue_size(arg, i);
  return count;
}

/* The dimension that the argument `dim` names; a tensor without dimensions has one of size 1. */
static inline int64_t bringup_glue_along(const void* arg, const void* dim) {
  const int64_t given = dim != NULL ? *(const int64_t*)dim : 0;
  const int64_t ndim = bringup_glue_ndim(arg) == 0 ? 1 : bringup_glue_ndim(arg);
  return given < 0 ? given + ndim : given;
}

static inline int bringup_glue_has_along(const void* arg, const void* dim) {
  const int64_t index = bringup_glue_along(arg, dim), ndim = bringup_glue_ndim(arg);
  return arg == NULL || (0 <= index && index < (ndim == 0 ? 1 : ndim));
}

static inline int64_t bringup_glue_size_along(const void* arg, const void* dim) {
  if (arg == NULL) return 0;
  return bringup_glue_ndim(arg) == 0 ? 1 : bringup_glue_size(arg, bringup_glue_along(arg, dim));
}

static inline int64_t bringup_glue_stride_along(const void* arg, const void* dim) {
  if (arg == NULL) return 0;
  return bringup_glue_ndim(arg) == 0 ? 1 : bringup_glue_stride(arg, bringup_glue_along(arg, dim));
}

/* Of a list; what it has not is as None. */
static inline int64_t bringup_glue_element(const void* arg, int64_t i) {
  return i < bringup_glue_length(arg) ? ((const int64_t*)bringup_glue_list_data(arg))[i] : 0;
}

static inline const void* bringup_glue_item(const void* arg, int64_t i) {
  return i < bringup_glue_length(arg) ? ((DLTensor* const*)bringup_glue_list_data(arg))[i] : NULL;
}

/* torch's ScalarType number of a dtype, -1 for one that it has not. */
static inline int64_t bringup_glue_dtype(const void* arg) {
  if (arg == NULL) return 0;
  const DLDataType dtype = ((const DLTensor*)arg)->dtype;
  /* DLPack's code and bits, in the order of the numbers; of those in between a kernel gets none. */
  static const uint8_t kinds[] = {1, 8,  0, 8,  0, 16, 0, 32, 0, 64,  2, 16,
                                  2, 32, 2, 64, 5, 32, 5, 64, 5, 128, 6, 8};
  for (int64_t i = 0; i < 12; ++i) {
    if (dtype.code == kinds[2 * i] && dtype.bits == kinds[2 * i + 1]) return i;
  }
  if (dtype.code == 4 && dtype.bits == 16) return 15;
  static const uint8_t floats[] = {24, 26, 23, 25, 44}; /* of 8 bits, by the codes 10 to 14 */
  if (dtype.bits == 8 && dtype.code >= 10 && dtype.code <= 14) return floats[dtype.code - 10];
  if (dtype.code != 1) return -1;
  return dtype.bits == 16 ? 27 : dtype.bits == 32 ? 28 : dtype.bits == 64 ? 29 : -1;
}

static inline int64_t bringup_glue_dtype_code(const void* arg) {
  return arg != NULL ? ((const DLTensor*)arg)->dtype.code : 0;
}

static inline int64_t bringup_glue_dtype_bits(const void* arg) {
  return arg != NULL ? ((const DLTensor*)arg)->dtype.bits : 0;
}

static inline int64_t bringup_glue_int(const void* arg) {
  return arg != NULL ? *(const int64_t*)arg : 0;
}

static inline double bringup_glue_float(const void* arg) {
  return arg != NULL ? *(const double*)arg : 0;
}

static inline double bringup_glue_real(const void* arg) {
  return arg != NULL ? ((const bringup_scalar*)bringup_glue_list_data(arg))->real : 0;
}

/* Whole numbers for calls that have not been refused: nothing wraps, no divisor is 0. */
static inline int64_t bringup_glue_add(int64_t left, int64_t right) {
  return (int64_t)((uint64_t)left + (uint64_t)right);
}

static inline int64_t bringup_glue_subtract(int64_t left, int64_t right) {
  return (int64_t)((uint64_t)left - (uint64_t)right);
}

static inline int64_t bringup_glue_multiply(int64_t left, int64_t right) {
  return (int64_t)((uint64_t)left * (uint64_t)right);
}

/* Rounded down. */
static inline int64_t bringup_glue_floor_divide(int64_t left, int64_t right) {
  if (right == 0) return 0;
  if (right == -1) return bringup_glue_subtract(0, left);
  const int64_t quotient = left / right;
  return quotient - (left % right != 0 && (left < 0) != (right < 0));
}

/* The remainder has the sign of the divisor. */
static inline int64_t bringup_glue_modulo(int64_t left, int64_t right) {
  if (right == 0 || right == -1) return 0;
  return left - bringup_glue_floor_divide(left, right) * right;
}

/* --- Why a call is refused. */

static inline const char* bringup_glue_dimensions(const char* needed, const void* arg) {
  static __thread char reason[512];
  int used = __builtin_snprintf(reason, sizeof reason, "%s, got shape [", needed);
  for (int64_t i = 0; i < bringup_glue_ndim(arg) && used < (int)sizeof reason - 32; ++i) {
    used += __builtin_snprintf(reason + used, 24, i > 0 ? ", %lld" : "%lld",
                               (long long)bringup_glue_size(arg, i));
  }
  if (used < (int)sizeof reason - 2) __builtin_snprintf(reason + used, 2, "]");
  return reason;
}

/* The reason lives until the next one on this thread. */
static inline const char* bringup_glue_outside(const char* item, int64_t value, int64_t lowest,
                                               int64_t highest) {
  static __thread char reason[256];
  __builtin_snprintf(reason, sizeof reason, "%s is %lld, outside %lld to %lld", item,
                     (long long)value, (long long)lowest, (long long)highest);
  return reason;
}

static inline const char* bringup_glue_not_single(const char* item, double value) {
  static __thread char reason[256];
  __builtin_snprintf(reason, sizeof reason, "%s is %g, beyond the range of a 32-bit float", item,
                     value);
  return reason;
}

/* Of a list that the function takes as unsigned numbers. NULL when all are such. */
static inline const char* bringup_glue_list_outside(const char* item, const void* arg) {
  const bringup_list* list = (const bringup_list*)arg;
  for (int64_t i = 0; list != NULL && i < list->size; ++i) {
    const int64_t number = ((const int64_t*)list->data)[i];
    if (number < 0) return bringup_glue_outside(item, number, 0, INT64_MAX);
  }
  return NULL;
}

static inline const char* bringup_glue_changed(const char* item, int64_t value) {
  static __thread char reason[256];
  __builtin_snprintf(reason, sizeof reason, "%s is %lld, which the function's type does not hold",
                     item, (long long)value);
  return reason;
}

static inline int bringup_glue_fits_single(double value) {
  return !__builtin_isfinite(value) || __builtin_fabs(value) <= 3.4028234663852886e38;
}

/* A type that only the compiler knows: whether it is one of whole numbers, is like a known one, or
 * makes another number of a value. */
#define BRINGUP_GLUE_CLASS(type) __builtin_classify_type(*(type*)0)
#define BRINGUP_GLUE_IS_WHOLE(type) (BRINGUP_GLUE_CLASS(type) >= 1 && BRINGUP_GLUE_CLASS(type) <= 4)
#define BRINGUP_GLUE_IS_LIKE(type, known) \
  (sizeof(type) == sizeof(known) && BRINGUP_GLUE_IS_WHOLE(type) == BRINGUP_GLUE_IS_WHOLE(known))
#ifdef __cplusplus
#define BRINGUP_GLUE_ASSERT(condition, words) static_assert(condition, words)
#define BRINGUP_GLUE_CHANGES(type, value) bringup::glue::changes<type>(value)
extern "C++" {
namespace bringup {
namespace glue {
template <class Type>
bool changes(int64_t value) {
  if constexpr (BRINGUP_GLUE_IS_WHOLE(Type)) {
    const auto made = static_cast<Type>(value);
    return static_cast<int64_t>(made) != value || (made > 0) != (value > 0);
  } else {
    return false;
  }
}
}  // namespace glue
}  // namespace bringup
}  // extern "C++"
#else
#define BRINGUP_GLUE_ASSERT(condition, words) _Static_assert(condition, words)
#define BRINGUP_GLUE_CHANGES(type, value) \
  (BRINGUP_GLUE_IS_WHOLE(type) &&         \
   ((int64_t)(type)(value) != (value) || ((type)(value) > 0) != ((value) > 0)))
#endif

/* The source reads fields, and what it gets the address of, under types of its own (unsigned long
 * long is no uint64_t): they have to be in memory by then. */
static inline void bringup_glue_settle(void* read) {
  __asm__ volatile("" : : "r"(read) : "memory");
}

/* --- The workspace. Non-zero when there is none left, and the context knows why. */

static inline int bringup_glue_workspace(bringup_params* params, uint64_t bytes) {
  if (bytes == 0) return 0;
  params->workspace = params->ctx->workspace(params->ctx, (size_t)bytes);
  params->workspace_size = bytes;
  if (params->workspace != NULL) return 0;
  char message[96];
  __builtin_snprintf(message, sizeof message,
                     "there is no memory left for its workspace of %llu bytes",
                     (unsigned long long)bytes);
  params->ctx->set_error(params->ctx, message);
  return 1;
}

/* Scratch memory for a parameter. Non-zero when there is none, and the context knows why. */
static inline int bringup_glue_scratch(const bringup_ctx* ctx, int64_t bytes, void** region) {
  *region = bytes > 0 ? ctx->workspace(ctx, (size_t)bytes) : NULL;
  if (*region != NULL || bytes == 0) return 0;
  char message[96];
  __builtin_snprintf(message, sizeof message,
                     bytes < 0 ? "its workspace would have %lld bytes"
                               : "there is no memory left for its workspace of %lld bytes",
                     (long long)bytes);
  ctx->set_error(ctx, message);
  return 1;
}

/* --- Calling the source's functions. */

#ifdef __cplusplus

extern "C++" {
namespace bringup {
namespace glue {
/* What is returned where the source defines no such function. */
struct Absent {};
}  // namespace glue
}  // namespace bringup

/* Taken when the source defines no such function: an ellipsis is the worst match. */
static inline bringup::glue::Absent can_implement(...) { return {}; }
static inline bringup::glue::Absent workspace_size(...) { return {}; }

namespace bringup {
namespace glue {

template <class First, class Second>
struct is_same {
  static constexpr bool value = false;
};
template <class Type>
struct is_same<Type, Type> {
  static constexpr bool value = true;
};

template <bool condition>
struct enable_if {};
template <>
struct enable_if<true> {
  typedef int type;
};

template <class Type>
constexpr bool is_number =
    is_same<Type, long>::value || is_same<Type, long long>::value ||
    is_same<Type, unsigned long>::value || is_same<Type, unsigned long long>::value;

/* What fields are filled with; each converts only to the types that a field for it may have. */
struct ANumber {
  template <class Type,
            typename enable_if<sizeof(Type) == 8 && (is_number<Type> || __is_enum(Type))>::type = 0>
  operator Type() const;
};
struct AFraction {
  template <class Type, typename enable_if<is_same<Type, double>::value>::type = 0>
  operator Type() const;
};
struct AnAddress {
  template <class Element>
  operator Element*() const;
  operator unsigned long() const;
  operator unsigned long long() const;
};
struct AText {
  operator const char*() const;
  operator const unsigned char*() const;
  operator const void*() const;
};

template <class Type>
Type value_of() noexcept;

/* Whether a struct begins with bringup_params and then takes these, in this order. */
template <class Declared, class... Values>
constexpr auto accepts(int)
    -> decltype((void)Declared{value_of<bringup_params>(), value_of<Values>()...}, true) {
  return true;
}
template <class Declared, class... Values>
constexpr bool accepts(...) {
  return false;
}

/* Specialised for the fields of each generated entry. */
template <class Declared, class Fields>
struct Fits;

#define BRINGUP_GLUE_FITS_SIZE(Declared, Fields)                                          \
  static_assert(                                                                          \
      __is_aggregate(Declared),                                                           \
      "the kernel's parameter struct has a constructor, a virtual function or a private " \
      "member");                                                                          \
  static_assert(                                                                          \
      sizeof(Declared) == sizeof(Fields),                                                 \
      "the kernel's parameter struct is not bringup_params and one field of 8 bytes for " \
      "each item that the template declares in params=");                                 \
  static_assert(bringup::glue::accepts<Declared>(0),                                      \
                "the kernel's parameter struct does not begin with bringup_params")

/* Where a struct has the member `name`; `expected` when it has none. */
#define BRINGUP_GLUE_MEMBER(name)                                                          \
  template <class Declared>                                                                \
  constexpr auto bringup_glue_at_##name(int)->decltype((void)sizeof(((Declared*)0)->name), \
                                                       sizeof(0)) {                        \
    return __builtin_offsetof(Declared, name);                                             \
  }                                                                                        \
  template <class Declared>                                                                \
  constexpr decltype(sizeof(0)) bringup_glue_at_##name(...) {                              \
    return ~decltype(sizeof(0)){0};                                                        \
  }
#define BRINGUP_GLUE_HAS_AT(name, field) \
  (bringup_glue_at_##name<Declared>(0) == __builtin_offsetof(bringup_glue_fields, field))
#define BRINGUP_GLUE_IS_AT(name, field)                              \
  (bringup_glue_at_##name<Declared>(0) == ~decltype(sizeof(0)){0} || \
   BRINGUP_GLUE_HAS_AT(name, field))

/* Converts to the parameter of any function. */
struct Anything {
  template <class Type>
  operator Type() const;
  template <class Type>
  operator Type&() const;
};

/* What a source's optional function is found to be, once the source has been read. A call that is
 * ambiguous or wrong in another way is one of a function that is there. */
#define BRINGUP_GLUE_HOOK(name)                                                               \
  extern "C++" {                                                                              \
  namespace bringup {                                                                         \
  namespace glue {                                                                            \
  template <class... Values>                                                                  \
  auto call_##name(int) -> decltype(::name(value_of<Values>()...));                           \
  template <class... Values>                                                                  \
  void call_##name(...);                                                                      \
  template <class... Values>                                                                  \
  constexpr bool takes_##name = !is_same<decltype(call_##name<Values...>(0)), Absent>::value; \
  }                                                                                           \
  }                                                                                           \
  }                                                                                           \
  static_assert(                                                                              \
      bringup::glue::takes_##name<bringup::glue::Params<bringup_glue_fields>> ||              \
          !(bringup::glue::takes_##name<> ||                                                  \
            bringup::glue::takes_##name<bringup::glue::Anything> ||                           \
            bringup::glue::takes_##name<const bringup_glue_fields*> ||                        \
            bringup::glue::takes_##name<bringup::glue::Anything, bringup::glue::Anything> ||  \
            bringup::glue::takes_##name<bringup::glue::Anything, bringup::glue::Anything,     \
                                        bringup::glue::Anything>),                            \
      #name                                                                                   \
      " is defined, but not as a function that takes one pointer to constant "                \
      "parameters: " #name "(const P* p), where P is the parameter struct")

/* The parameters as whichever pointer a function of the source declares. */
template <class Fields>
struct Params {
  const Fields* fields;
  template <class Declared>
  operator const Declared*() const {
    (void)sizeof(Fits<Declared, Fields>);
    return reinterpret_cast<const Declared*>(fields);
  }
};

/* An address as whatever a function of the source declares for it. */
struct Address {
  void* address;
  template <class Element>
  operator Element*() const {
    return static_cast<Element*>(address);
  }
  operator uint64_t() const { return reinterpret_cast<uint64_t>(address); }
};

template <class Result>
struct is_void {
  static constexpr bool value = false;
};
template <>
struct is_void<void> {
  static constexpr bool value = true;
};

template <class Result>
struct is_floating {
  static constexpr bool value = false;
};
template <>
struct is_floating<float> {
  static constexpr bool value = true;
};
template <>
struct is_floating<double> {
  static constexpr bool value = true;
};
template <>
struct is_floating<long double> {
  static constexpr bool value = true;
};

template <class Result>
struct is_pointer {
  static constexpr bool value = false;
};
template <class Pointed>
struct is_pointer<Pointed*> {
  static constexpr bool value = true;
};

/* What a call gives as a status; a function that returns nothing cannot fail. */
template <class Call>
int32_t status(const Call& call) {
  if constexpr (is_void<decltype(call())>::value) {
    call();
    return 0;
  } else {
    static_assert(!is_floating<decltype(call())>::value,
                  "the function returns a floating-point number, which is no status");
    static_assert(!is_pointer<decltype(call())>::value,
                  "the function returns a pointer, which is no status");
    const auto wide = call();
    const auto narrow = static_cast<int32_t>(wide);
    /* What is not 0 stays so, also where only the upper half says it. */
    return narrow == 0 && wide != decltype(call()){} ? -1 : narrow;
  }
}

/* What can_implement says; NULL where there is none. */
template <class Call, class Given>
const char* reason_of(const Call& call, const Given& params) {
  if constexpr (is_same<decltype(call(params)), Absent>::value) {
    return nullptr;
  } else {
    static_assert(is_same<decltype(call(params)), const char*>::value ||
                      is_same<decltype(call(params)), char*>::value,
                  "can_implement does not return a const char*: NULL, or the reason why not");
    return call(params);
  }
}

/* What workspace_size says; 0 where there is none. */
template <class Call, class Given>
uint64_t bytes_of(const Call& call, const Given& params) {
  if constexpr (is_same<decltype(call(params)), Absent>::value) {
    return 0;
  } else {
    static_assert(!is_void<decltype(call(params))>::value &&
                      !is_floating<decltype(call(params))>::value &&
                      !is_pointer<decltype(call(params))>::value &&
                      !is_same<decltype(call(params)), bool>::value,
                  "workspace_size does not return a number of bytes");
    return static_cast<uint64_t>(call(params));
  }
}

}  // namespace glue
}  // namespace bringup
}  // extern "C++"

#define BRINGUP_GLUE_PARAMS(p) \
  bringup::glue::Params<bringup_glue_fields> { p }
#define BRINGUP_GLUE_CAN_IMPLEMENT(p)                                                \
  bringup::glue::reason_of([](const auto& params) { return can_implement(params); }, \
                           BRINGUP_GLUE_PARAMS(p))
#define BRINGUP_GLUE_WORKSPACE_SIZE(p)                                               \
  bringup::glue::bytes_of([](const auto& params) { return workspace_size(params); }, \
                          BRINGUP_GLUE_PARAMS(p))
#define BRINGUP_GLUE_STATUS(call) bringup::glue::status([&] { return call; })
#define BRINGUP_GLUE_ADDRESS(address) \
  bringup::glue::Address { address }

#else /* C */

/* Null when the source defines no such function. Hidden, so that no other library's is taken. */
const char* can_implement(const void* params) __attribute__((weak, visibility("hidden")));
uint64_t workspace_size(const void* params) __attribute__((weak, visibility("hidden")));

/* What is not 0 stays so, also where only the upper half says it. */
static inline int32_t bringup_glue_status(int64_t status) {
  const int32_t narrow = (int32_t)status;
  return narrow == 0 && status != 0 ? -1 : narrow;
}

#define BRINGUP_GLUE_PARAMS(p) ((const void*)(p))
#define BRINGUP_GLUE_CAN_IMPLEMENT(p) (can_implement != NULL ? can_implement(p) : NULL)
#define BRINGUP_GLUE_WORKSPACE_SIZE(p) (workspace_size != NULL ? workspace_size(p) : 0)
#define BRINGUP_GLUE_IS_VOID(call) __builtin_types_compatible_p(__typeof__(call), void)
/* GCC's number for the kind of its type (clang has the same ones); an integer for none at all. */
#define BRINGUP_GLUE_KIND(call) \
  __builtin_classify_type(__builtin_choose_expr(BRINGUP_GLUE_IS_VOID(call), 0, (call)))
#define BRINGUP_GLUE_POINTER 5
#define BRINGUP_GLUE_FLOATING 8
#define BRINGUP_GLUE_STATUS(call)                                                        \
  ((void)sizeof(struct {                                                                 \
     _Static_assert(BRINGUP_GLUE_KIND(call) != BRINGUP_GLUE_FLOATING,                    \
                    "the function returns a floating-point number, which is no status"); \
     _Static_assert(BRINGUP_GLUE_KIND(call) != BRINGUP_GLUE_POINTER,                     \
                    "the function returns a pointer, which is no status");               \
     int unused;                                                                         \
   }),                                                                                   \
   bringup_glue_status(__builtin_choose_expr(BRINGUP_GLUE_IS_VOID(call), ((call), 0), (call))))
#define BRINGUP_GLUE_ADDRESS(address) (address)

#endif

#endif /* BRINGUP_GLUE_H_ */
