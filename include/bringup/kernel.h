/* bringup kernel ABI 1: what a kernel file may include. Usable alone, from C99 or C++17; no torch,
 * no Python.
 *
 * A kernel exports one C function, by default called `run`:
 *
 *     int32_t run(void** args, int32_t n, const bringup_ctx* ctx);      // 0 = ok
 *
 * `args` holds the inputs in schema order, then the outputs. By schema type, args[i] is
 *
 *     Tensor                 DLTensor*       strides are never NULL (in elements), byte_offset is 0
 *     int, bool, dtype       int64_t*        a dtype as torch's ScalarType number
 *     Layout, MemoryFormat   int64_t*        as torch's numbers
 *     Device                 DLDevice*       256 + torch's number for what is none of DLPack's
 *     float                  double*
 *     Scalar, complex        bringup_list*   data: const bringup_scalar*, one
 *     Generator              bringup_list*   data: const int64_t*, the seed and the offset of this
 *                                            call (bringup/random.h); None: the device's own
 *     str                    const char*     NUL-terminated UTF-8
 *     int[], bool[]          bringup_list*   data: const int64_t*
 *     float[]                bringup_list*   data: const double*
 *     Tensor[], Tensor?[]    bringup_list*   data: DLTensor* const*, NULL for one that is None
 *     anything that is None  NULL
 *
 * A number that is returned (int, float, bool) is written to a DLTensor* without dimensions, of
 * int64, double or bool.
 *
 * Ownership: everything belongs to the caller and is valid until `run` returns. Threads: `run` may
 * be called from any thread, and from several at once. Append-only within version 1: fields are
 * added at the end of bringup_ctx, and its struct_size says which exist.
 */
#ifndef BRINGUP_KERNEL_H_
#define BRINGUP_KERNEL_H_

#include <stddef.h>
#include <stdint.h>

#define BRINGUP_KERNEL_ABI 1

#ifdef __cplusplus
extern "C" {
#endif

/* DLPack's structures (v1 layout). A file that also uses dlpack.h includes that one first. */
#ifndef DLPACK_DLPACK_H_
typedef struct DLDevice {
  int32_t device_type; /* 1 = cpu, 2 = cuda, 12 = ext_dev (PrivateUse1: the driver's device) */
  int32_t device_id;
} DLDevice;

typedef struct DLDataType {
  /* 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool; of 8 bits 10 e4m3fn, 11 e4m3fnuz,
   * 12 e5m2, 13 e5m2fnuz, 14 e8m0fnu */
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} DLDataType;

typedef struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} DLTensor;
#endif

/* A Scalar: a number of the dtype that was given: bool, int64, double, complex of double, uint64
 * for what no int64 holds. */
typedef struct bringup_scalar {
  double real; /* rounded where it is an integer that no double holds */
  double imaginary;
  int64_t integer; /* of bool, int64 and uint64 (its bits), else 0 */
  DLDataType dtype;
} bringup_scalar;

#ifdef __GNUC__ /* the elements of complex tensors, in C and in C++ */
__extension__ typedef float _Complex bringup_complex64;
__extension__ typedef double _Complex bringup_complex128;
#endif

/* int[], bool[] (int64_t), float[] (double), Tensor[] (DLTensor*). Empty: data may be NULL. */
typedef struct bringup_list {
  const void* data;
  int64_t size;
} bringup_list;

typedef struct bringup_ctx bringup_ctx;

/* One call's surroundings. Valid until `run` returns; not to be kept. */
struct bringup_ctx {
  uint32_t struct_size; /* sizeof(bringup_ctx) of the caller */
  uint32_t abi_version; /* BRINGUP_KERNEL_ABI of the caller */
  void* stream;         /* native stream handle of the driver; NULL on cpu */
  DLDevice device;
  int64_t block_index; /* device code on a grid: this block and the number of blocks; else 0 of 1 */
  int64_t block_count;
  /* Says why the kernel is about to return non-zero. Copies the text. Never NULL. */
  void (*set_error)(const bringup_ctx* ctx, const char* message);
  /* Scratch memory, 64-byte aligned, on the kernel's device, not cleared; the next call returns
   * another region. Valid until `run` returns, and where `run` starts work on `stream`, until that
   * work is done: later work of the same stream may get it then. NULL when there is none left. */
  void* (*workspace)(const bringup_ctx* ctx, size_t bytes);
  /* Calls fn(begin, end, user) so that [0, n) is covered once, in chunks of at least `grain`,
   * perhaps on several threads, and returns when all are done. fn must not throw and must not call
   * parallel_for. */
  void (*parallel_for)(const bringup_ctx* ctx, int64_t n, int64_t grain,
                       void (*fn)(int64_t begin, int64_t end, void* user), void* user);
  void* opaque; /* the caller's own */
  /* --- since 1.1. The vendor's own object behind the device or the stream: `kind` and `handle` are
   * those of native_handle in bringup/driver.h. 0, or another status where there is none. */
  int32_t (*native_handle)(const bringup_ctx* ctx, int32_t kind, void** handle);
};

/* The type of a kernel's entry point. */
typedef int32_t (*bringup_kernel_fn)(void** args, int32_t n, const bringup_ctx* ctx);

/* A kernel's library may also export `bringup_can_implement`, which says whether its kernels can
 * take a call: NULL, or the reason why not, which is raised where the operator was called. It runs
 * on the host before the kernel is started, with the same arguments, and must not read what tensors
 * hold. The text is copied before the next call on the same thread. */
typedef const char* (*bringup_can_implement_fn)(void** args, int32_t n, const bringup_ctx* ctx);

/* Declared here, so that it is exported however it is defined, and no other result compiles. */
__attribute__((visibility("default"))) const char* bringup_can_implement(void** args, int32_t n,
                                                                         const bringup_ctx* ctx);

/* What a C++ view (kernel_views.h) calls over a tensor that it does not fit: `dtype` and `rank` are
 * the view's, a rank of -1 is any. Does not return. */
typedef void (*bringup_view_refusal)(DLDataType dtype, int32_t rank, const DLTensor* tensor);

#ifdef __cplusplus
} /* extern "C" */
#endif

#ifdef __cplusplus
#include "bringup/kernel_views.h"
#endif

#endif /* BRINGUP_KERNEL_H_ */
