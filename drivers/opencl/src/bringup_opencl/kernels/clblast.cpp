// Products of matrices by CLBlast (the library that the macro CLBLAST names), found when it is
// first needed: `mm` and `bmm` with 3 arguments, `addmm` and `baddbmm` with 5 (in place) or 6.
#include <bringup/driver.h>
#include <bringup/kernel.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <type_traits>

namespace {

using Handle = void*;  // of OpenCL's objects: its headers are not needed
constexpr int kRowMajor = 101, kColumnMajor = 102, kPlain = 111, kTransposed = 112;
constexpr unsigned kHostPointer = 0x1103, kHalfConfig = 0x1033;

using Number = std::conditional_t<sizeof(T) == 2, uint16_t, T>;  // as CLBlast takes one
constexpr char kLetter = sizeof(T) == 2 ? 'H' : sizeof(T) == 4 ? 'S' : 'D';

Number number_of(double value) {
  const T rounded = static_cast<T>(value);
  Number number;
  __builtin_memcpy(&number, &rounded, sizeof number);
  return number;
}

struct Libraries {
  int (*gemm)(int, int, int, size_t, size_t, size_t, Number, Handle, size_t, size_t, Handle, size_t,
              size_t, Number, Handle, size_t, size_t, Handle*, Handle*) = nullptr;
  int (*gemm_batched)(int, int, int, size_t, size_t, size_t, Number, Handle, size_t, size_t, size_t,
                      Handle, size_t, size_t, size_t, Number, Handle, size_t, size_t, size_t,
                      size_t, Handle*, Handle*) = nullptr;
  int (*ger)(int, size_t, size_t, Number, Handle, size_t, size_t, Handle, size_t, size_t, Handle,
             size_t, size_t, Handle*, Handle*) = nullptr;
  int (*object_info)(Handle, unsigned, size_t, void*, size_t*) = nullptr;
  int (*device_info)(Handle, unsigned, size_t, void*, size_t*) = nullptr;
  int (*fill)(Handle, void*, const void*, size_t, size_t, unsigned, const Handle*,
              Handle*) = nullptr;
  int (*copy)(Handle, unsigned, void*, const void*, size_t, unsigned, const Handle*,
              Handle*) = nullptr;
  bool complete = true;

  Libraries() {
    void* const blas = dlopen(CLBLAST, RTLD_NOW | RTLD_LOCAL);
    void* const opencl = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    find_routine(blas, "gemm", gemm);
    find_routine(blas, "gemmStridedBatched", gemm_batched);
    find_routine(blas, "ger", ger);
    find(opencl, "clGetMemObjectInfo", object_info);
    find(opencl, "clGetDeviceInfo", device_info);
    find(opencl, "clEnqueueSVMMemFill", fill);
    find(opencl, "clEnqueueSVMMemcpy", copy);
  }

  template <class Function>
  void find(void* library, const char* name, Function& function) {
    function = library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
    complete = complete && function != nullptr;
  }
  template <class Function>
  void find_routine(void* library, const char* name, Function& function) {
    char whole[64];
    std::snprintf(whole, sizeof whole, "CLBlast%c%s", kLetter, name);
    find(library, whole, function);
  }
};

const Libraries& libraries() {
  static const Libraries found;
  return found;
}

// A matrix, or a batch of them, whose rows or columns lie together.
struct Matrix {
  const DLTensor* tensor;
  size_t rows, columns, leading = 0, batch_stride = 0, batches = 1;
  bool by_rows = false, fits;

  explicit Matrix(const DLTensor* of) : tensor(of) {
    const int last = of->ndim - 1;
    rows = static_cast<size_t>(of->shape[last - 1]);
    columns = static_cast<size_t>(of->shape[last]);
    if (last == 2) {
      batches = static_cast<size_t>(of->shape[0]);
      batch_stride = batches > 1 ? static_cast<size_t>(of->strides[0]) : rows * columns;
    }
    by_rows = lies(of->strides[last], columns, of->strides[last - 1], rows);
    fits = rows * columns * batches > 0 &&
           (by_rows || lies(of->strides[last - 1], rows, of->strides[last], columns));
  }

  // Lines of `count` elements side by side, `lines` of them `stride` apart.
  bool lies(int64_t step, size_t count, int64_t stride, size_t lines) {
    leading = lines > 1 ? static_cast<size_t>(stride) : count;
    return (step == 1 || count == 1) && leading >= count;
  }
};

struct Call {
  Matrix a, b, c;
  const DLTensor* added = nullptr;  // to c, times beta; null: nothing
  bool is_row = false;              // it is added to each row
  double alpha = 1, beta = 0;

  Call(void** args, int32_t n)
      : a(tensor(args, n == 3 ? 0 : 1)),
        b(tensor(args, n == 3 ? 1 : 2)),
        c(tensor(args, n == 5 ? 0 : n - 1)) {
    if (n == 3) return;
    beta = *static_cast<const double*>(args[3]);
    alpha = *static_cast<const double*>(args[4]);
    if (beta == 0) return;  // what is added does not count then, NaN included
    added = n == 5 ? nullptr : tensor(args, 0);
    is_row = added != nullptr && added->ndim == 1;
  }

  static const DLTensor* tensor(void** args, int32_t i) {
    return static_cast<const DLTensor*>(args[i]);
  }

  // What is added is a row, or lies as the result and without holes.
  bool takes_added() const {
    if (added == nullptr) return true;
    if (is_row) {
      const auto count = static_cast<size_t>(added->shape[0]);
      return c.tensor->ndim == 2 && c.by_rows && count == c.columns && count > 1 &&
             added->strides[0] > 0;
    }
    int64_t dense = 1;
    for (int d = c.tensor->ndim - 1; d >= 0; --d) {
      if (added->ndim != c.tensor->ndim || added->shape[d] != c.tensor->shape[d]) return false;
      for (const DLTensor* one : {added, c.tensor}) {
        if (one->shape[d] > 1 && one->strides[d] != dense) return false;
      }
      dense *= added->shape[d];
    }
    return true;
  }
};

const char* name_of(int status) {
  switch (status) {
    case -3:
      return "CL_COMPILER_NOT_AVAILABLE";
    case -4:
      return "CL_MEM_OBJECT_ALLOCATION_FAILURE";
    case -5:
      return "CL_OUT_OF_RESOURCES";
    case -6:
      return "CL_OUT_OF_HOST_MEMORY";
    case -11:
      return "CL_BUILD_PROGRAM_FAILURE";
    case -36:
      return "CL_INVALID_COMMAND_QUEUE";
    case -38:
      return "CL_INVALID_MEM_OBJECT";
    case -54:
      return "CL_INVALID_WORK_GROUP_SIZE: a kernel has too many threads for the device";
    case -61:
      return "CL_INVALID_BUFFER_SIZE";
    case -1022:
    case -1021:
    case -1020:
      return "a matrix is no buffer of OpenCL";
    case -1017:
      return "a matrix has no elements";
    case -1016:
    case -1015:
    case -1014:
      return "the rows of a matrix overlap";
    case -1011:
    case -1010:
    case -1009:
    case -1008:
    case -1007:
      return "a matrix goes beyond its buffer";
    case -2046:
      return "the device has too little local memory";
    case -2045:
      return "the device has no half precision";
    case -2044:
      return "the device has no double precision";
    case -2041:
      return "its database has nothing for the device";
    default:
      return "a status of OpenCL or of clblast_c.h";
  }
}

int32_t fail(const bringup_ctx* ctx, const char* function, int status) {
  char words[160];
  std::snprintf(words, sizeof words, "%s failed with %d: %s", function, status, name_of(status));
  ctx->set_error(ctx, words);
  return 1;
}

struct Place {
  Handle object = nullptr;
  size_t offset = 0;  // in elements
};

// Where OpenCL has what lies at an address.
bool find_place(const bringup_ctx* ctx, void* address, Place& place) {
  void* handle = address;
  void* begin = nullptr;
  if (ctx->native_handle(ctx, BRINGUP_NATIVE_MEMORY, &handle) != 0 ||
      libraries().object_info(handle, kHostPointer, sizeof begin, &begin, nullptr) != 0) {
    ctx->set_error(ctx, "the driver has no cl_mem for the memory of a matrix");
    return false;
  }
  const auto bytes = static_cast<const char*>(address) - static_cast<const char*>(begin);
  place = {handle, static_cast<size_t>(bytes) / sizeof(T)};
  return true;
}

int32_t multiply(const Call& call, Handle queue, const Place& a, const Place& b, const Place& c,
                 const bringup_ctx* ctx) {
  const auto orientation = [&](const Matrix& one) {
    return one.by_rows == call.c.by_rows ? kPlain : kTransposed;
  };
  const int layout = call.c.by_rows ? kRowMajor : kColumnMajor;
  const Number alpha = number_of(call.alpha);
  const Number beta = number_of(call.is_row ? 0 : call.beta);
  const Matrix &left = call.a, &right = call.b, &made = call.c;
  const int status =
      made.batches == 1
          ? libraries().gemm(layout, orientation(left), orientation(right), made.rows, made.columns,
                             left.columns, alpha, a.object, a.offset, left.leading, b.object,
                             b.offset, right.leading, beta, c.object, c.offset, made.leading,
                             &queue, nullptr)
          : libraries().gemm_batched(
                layout, orientation(left), orientation(right), made.rows, made.columns,
                left.columns, alpha, a.object, a.offset, left.leading, left.batch_stride, b.object,
                b.offset, right.leading, right.batch_stride, beta, c.object, c.offset, made.leading,
                made.batch_stride, made.batches, &queue, nullptr);
  return status == 0 ? 0 : fail(ctx, "CLBlast's gemm", status);
}

// c += beta * ones * row
int32_t add_row(const Call& call, Handle queue, const Place& c, const bringup_ctx* ctx) {
  const size_t rows = call.c.rows;
  void* const ones = ctx->workspace(ctx, rows * sizeof(T));
  Place left, row;
  if (ones == nullptr) return fail(ctx, "allocating ones", -4);
  if (!find_place(ctx, ones, left) || !find_place(ctx, call.added->data, row)) return 1;
  const Number one = number_of(1);
  int status =
      libraries().fill(queue, ones, &one, sizeof one, rows * sizeof one, 0, nullptr, nullptr);
  if (status != 0) return fail(ctx, "clEnqueueSVMMemFill", status);
  status = libraries().ger(kRowMajor, rows, call.c.columns, number_of(call.beta), left.object,
                           left.offset, 1, row.object, row.offset,
                           static_cast<size_t>(call.added->strides[0]), c.object, c.offset,
                           call.c.leading, &queue, nullptr);
  return status == 0 ? 0 : fail(ctx, "CLBlast's ger", status);
}

}  // namespace

extern "C" const char* bringup_can_implement(void** args, int32_t n, const bringup_ctx* ctx) {
  const Call call(args, n);
  if (!libraries().complete) return "there is no CLBlast";
  if (!call.a.fits || !call.b.fits || !call.c.fits) return "neither rows nor columns lie together";
  if (!call.takes_added()) return "what is added is neither a row nor as the result";
  if (sizeof(T) != 2) return nullptr;
  Handle device = nullptr;
  uint64_t halves = 0;
  ctx->native_handle(ctx, BRINGUP_NATIVE_DEVICE, &device);
  libraries().device_info(device, kHalfConfig, sizeof halves, &halves, nullptr);
  return halves != 0 ? nullptr : "the device has no half precision";
}

BRINGUP_EXPORT int32_t run(void** args, int32_t n, const bringup_ctx* ctx) {
  const Call call(args, n);
  Handle queue = nullptr;
  Place a, b, c;
  if (ctx->native_handle(ctx, BRINGUP_NATIVE_QUEUE, &queue) != 0) {
    ctx->set_error(ctx, "the driver gives no cl_command_queue");
    return 1;
  }
  if (!find_place(ctx, call.a.tensor->data, a) || !find_place(ctx, call.b.tensor->data, b) ||
      !find_place(ctx, call.c.tensor->data, c)) {
    return 1;
  }
  if (call.added != nullptr && !call.is_row) {
    const size_t bytes = call.c.rows * call.c.columns * call.c.batches * sizeof(T);
    const int status = libraries().copy(queue, 0, call.c.tensor->data, call.added->data, bytes, 0,
                                        nullptr, nullptr);
    if (status != 0) return fail(ctx, "clEnqueueSVMMemcpy", status);
  }
  const int32_t failed = multiply(call, queue, a, b, c, ctx);
  return failed != 0 || !call.is_row ? failed : add_row(call, queue, c, ctx);
}
