/* bringup parameter blocks 1: the entry form "params", for kernels that take one pointer to all
 * their run-time values. Usable alone, from C99 or C++17; includes kernel.h.
 *
 * A source of this form defines
 *
 *     int32_t     run(uint32_t block_num, void* stream, const void* params);   // or void; 0 = ok
 *     const char* can_implement(const void* params);                           // optional
 *     uint64_t    workspace_size(const void* params);                          // optional
 *
 * in C++ declared extern "C", where `const void*` should be a pointer to the struct itself: then
 * the compiler checks the struct against `params=`, the types of its fields in order and the place
 * of each member that `params=` names (`n=numel(x)`) or that is called as an argument is. With
 * `const void*`, and in C, that is checked as far as the text shows it plainly. An optional
 * function of another form does not compile.
 *
 * `params` points to a struct that begins with
 * bringup_params; one field of 8 bytes follows for each item that the template declares in
 * `params=`, in that order: a pointer, an int64_t or a double.
 *
 *     jit.Template("scale.cpp", params="ptr(out), ptr(x), n=numel(x), factor")
 *
 *     struct Scale { bringup_params head; float* out; const float* x; int64_t n; double factor; };
 *
 * run            starts the work, in stream order on `stream` where there is one (NULL on cpu), and
 *                does not wait for it. Non-zero: failed; head.ctx->set_error says why.
 * can_implement  NULL when the kernel can do this, otherwise the reason, which is raised where the
 *                operator was called. Called on the host before the outputs are used; it must not
 * read what tensors hold. The text is copied before the next call on the same thread.
 * workspace_size scratch memory that this call needs, in bytes, from its run-time values. It is
 * there as head.workspace when `run` begins, 64-byte aligned, not cleared, and reused by later work
 * of the same stream once this launch has finished. Called before every `run`.
 *
 * Ownership: everything belongs to the caller and is valid until the function returns; a tensor's
 * memory and the workspace until the launched work is done. Threads: any, and several at once.
 * Append-only within version 1: fields are added at the end of bringup_params under a new version.
 */
#ifndef BRINGUP_PARAMS_H_
#define BRINGUP_PARAMS_H_

#include "bringup/kernel.h"

#define BRINGUP_PARAMS_VERSION 1

/* What a macro of `layouts=` is: how the last two dimensions of a tensor lie in memory. Dimensions
 * before them, and distances between rows or columns, are run-time values (`stride(x,i)`).
 *
 *   ROW      elements of a row are adjacent: stride(x,-1) is 1
 *   COLUMN   elements of a column are adjacent: stride(x,-2) is 1, the layout of x.t()
 *   STRIDED  neither
 *   NZ       blocks of 16x16 elements, row-major inside, blocks of one block column adjacent: sizes
 *            [..., columns/16, rows/16, 16, 16], contiguous
 */
#define BRINGUP_LAYOUT_ROW 0
#define BRINGUP_LAYOUT_COLUMN 1
#define BRINGUP_LAYOUT_STRIDED 2
#define BRINGUP_LAYOUT_NZ 3

/* What the macro BRINGUP_KERNEL_KIND is: which cores the kernel is written for. */
#define BRINGUP_KERNEL_KIND_CUBE 1   /* matrix units */
#define BRINGUP_KERNEL_KIND_VECTOR 2 /* vector units */
#define BRINGUP_KERNEL_KIND_MIX 3    /* both */

#ifdef __cplusplus
extern "C" {
#endif

/* What every parameter struct begins with. */
typedef struct bringup_params {
  uint32_t struct_size; /* of the whole struct, fields included */
  uint32_t version;     /* BRINGUP_PARAMS_VERSION of the caller */
  const bringup_ctx* ctx;
  void* workspace; /* NULL in can_implement, in workspace_size, and when none is asked for */
  uint64_t workspace_size; /* bytes at `workspace` */
} bringup_params;

#ifdef __cplusplus
} /* extern "C" */
#endif

/* Where element (row, column) of an NZ matrix with `rows` rows lies, in elements. */
static inline int64_t bringup_nz_offset(int64_t row, int64_t column, int64_t rows) {
  const int64_t block = column / 16 * (rows / 16) + row / 16;
  return block * 256 + row % 16 * 16 + column % 16;
}

#endif /* BRINGUP_PARAMS_H_ */
