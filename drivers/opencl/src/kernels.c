/* Device code: programs from source, from a program binary or from SPIR-V, and launches whose
 * values are compared with what the kernel declares, since OpenCL crashes where they differ.
 *
 * A kernel file is OpenCL C, or three lines and what they describe:
 *
 *     BRINGUPCL1
 *     source | binary | spirv
 *     options of the build
 *     the program, to the end of the file
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opencl.h"

enum { kMaxOptions = 4096 };
static const char kMagic[] = "BRINGUPCL1\n";

typedef struct program_file {
  enum { kSource, kBinary, kSpirv } kind;
  char options[kMaxOptions];
  const unsigned char* data;
  size_t bytes;
} program_file;

typedef enum parameter_kind {
  kUnknown, /* OpenCL has no information about it */
  kPointer,
  kLocal,
  kInteger,
  kFloating,
  kOther /* by value, of a type that is not among the scalars */
} parameter_kind;

typedef struct parameter {
  parameter_kind kind;
  uint32_t size; /* of a scalar */
  uint32_t form; /* kind and bytes of the argument that the kernel has; 0: none */
  uint64_t bits; /* its value */
  char name[64], type[64];
} parameter;

typedef struct function {
  struct function* next;
  cl_kernel kernel;
  int32_t device;
  char name[128];
  size_t max_threads; /* of a block */
  cl_ulong declared_shared_bytes;
  pthread_mutex_t lock; /* from the first argument that is set to the enqueue that reads them */
  uint64_t freed;       /* how many allocations were, when the arguments were set */
  cl_uint count;
  parameter parameters[];
} function;

typedef struct module {
  cl_program program;
  int32_t device;
  pthread_mutex_t lock;
  function* functions; /* under the lock */
} module;

/* --- programs */

/* The rest of a line that ends within the data; NULL where there is none. Moves behind it. */
static const char* take_line(program_file* file, size_t* length) {
  const unsigned char* end = memchr(file->data, '\n', file->bytes);
  if (end == NULL) return NULL;
  const char* line = (const char*)file->data;
  *length = (size_t)(end - file->data);
  file->bytes -= *length + 1;
  file->data = end + 1;
  return line;
}

static int32_t read_header(program_file* file) {
  static const char* const kinds[] = {
      [kSource] = "source", [kBinary] = "binary", [kSpirv] = "spirv"};
  size_t length = 0;
  take_line(file, &length);
  const char* kind = take_line(file, &length);
  size_t known = 0;
  while (kind != NULL && known < 3 &&
         (strlen(kinds[known]) != length || memcmp(kinds[known], kind, length) != 0)) {
    ++known;
  }
  NEED(kind != NULL && known < 3,
       "the second line of a kernel file is 'source', 'binary' or 'spirv', not '%.*s'",
       (int)(length < 40 ? length : 40), kind != NULL ? kind : "");
  file->kind = known;
  const char* options = take_line(file, &length);
  NEED(options != NULL && length < kMaxOptions,
       "the third line of a kernel file has the build's options, less than %d characters",
       kMaxOptions);
  memcpy(file->options, options, length);
  file->options[length] = '\0';
  return BRINGUP_OK;
}

static int32_t parse(const void* data, size_t bytes, program_file* file) {
  *file = (program_file){.kind = kSource, .data = data, .bytes = bytes};
  if (bytes >= sizeof kMagic - 1 && memcmp(data, kMagic, sizeof kMagic - 1) == 0) {
    TRY(read_header(file));
  }
  NEED(file->bytes > 0, "a kernel file without a program");
  NEED(file->kind != kSource || memchr(file->data, '\0', file->bytes) == NULL,
       "a kernel file is OpenCL C, or begins with the line %.10s, and this one is neither: a "
       "library for the host?",
       kMagic);
  return BRINGUP_OK;
}

static int32_t create_program(cl_device_id id, const program_file* file, cl_program* program) {
  cl_int code = CL_SUCCESS;
  cl_int of_binary = CL_SUCCESS;
  const unsigned char* data = file->data;
  const char* text = (const char*)data;
  char versions[128] = "";
  switch (file->kind) {
    case kSource:
      *program = clCreateProgramWithSource(opencl.context, 1, &text, &file->bytes, &code);
      return code == CL_SUCCESS ? BRINGUP_OK : fail_cl("clCreateProgramWithSource", code);
    case kBinary:
      *program =
          clCreateProgramWithBinary(opencl.context, 1, &id, &file->bytes, &data, &of_binary, &code);
      if (code == CL_SUCCESS && of_binary == CL_SUCCESS) return BRINGUP_OK;
      if (*program != NULL) clReleaseProgram(*program);
      return fail_cl("clCreateProgramWithBinary", of_binary != CL_SUCCESS ? of_binary : code);
    case kSpirv:
      clGetDeviceInfo(id, CL_DEVICE_IL_VERSION, sizeof versions, versions, NULL);
      if (strstr(versions, "SPIR-V") == NULL) {
        return fail(BRINGUP_UNSUPPORTED, "this device takes no SPIR-V: give it OpenCL C");
      }
      *program = clCreateProgramWithIL(opencl.context, file->data, file->bytes, &code);
      return code == CL_SUCCESS ? BRINGUP_OK : fail_cl("clCreateProgramWithIL", code);
  }
  return fail(BRINGUP_ERROR, "an unknown kind of program");
}

/* Not BRINGUP_INVALID: what does not compile from memory would be tried again from its file. */
static int32_t build(cl_program program, cl_device_id id, const program_file* file) {
  char options[kMaxOptions + 32];
  snprintf(options, sizeof options, "%s -cl-kernel-arg-info", file->options);
  const cl_int code = clBuildProgram(program, 1, &id, options, NULL, NULL);
  if (code == CL_SUCCESS) return BRINGUP_OK;
  size_t bytes = 0;
  clGetProgramBuildInfo(program, id, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes);
  char* log = calloc(1, bytes + 1);
  if (log != NULL) clGetProgramBuildInfo(program, id, CL_PROGRAM_BUILD_LOG, bytes, log, NULL);
  fail_cl("clBuildProgram", code);
  fail(BRINGUP_ERROR, "the program does not build:\n%s", log != NULL ? log : "(no log)");
  free(log);
  return BRINGUP_ERROR;
}

int32_t module_load_data(int32_t device, const void* data, size_t bytes, void** loaded) {
  TRY(enter(device));
  program_file* file = malloc(sizeof *file);
  module* made = calloc(1, sizeof *made);
  int32_t status = file != NULL && made != NULL
                       ? parse(data, bytes, file)
                       : fail(BRINGUP_OUT_OF_MEMORY, "no host memory for a module");
  const cl_device_id id = opencl.devices[device].id;
  if (status == BRINGUP_OK) status = create_program(id, file, &made->program);
  if (status == BRINGUP_OK) {
    status = build(made->program, id, file);
    if (status != BRINGUP_OK) clReleaseProgram(made->program);
  }
  free(file);
  if (status != BRINGUP_OK) {
    free(made);
    return status;
  }
  made->device = device;
  pthread_mutex_init(&made->lock, NULL);
  *loaded = made;
  return BRINGUP_OK;
}

int32_t module_unload(void* loaded) {
  TRY(usable());
  module* old = loaded;
  for (function *fn = old->functions, *next; fn != NULL; fn = next) {
    next = fn->next;
    clReleaseKernel(fn->kernel);
    pthread_mutex_destroy(&fn->lock);
    free(fn);
  }
  clReleaseProgram(old->program);
  pthread_mutex_destroy(&old->lock);
  free(old);
  return BRINGUP_OK;
}

/* --- functions, and what they declare */

static void read_scalar(parameter* of) {
  static const struct {
    const char* type;
    parameter_kind kind;
    uint32_t size;
  } scalars[] = {
      {"char", kInteger, 1},    {"uchar", kInteger, 1}, {"short", kInteger, 2},
      {"ushort", kInteger, 2},  {"int", kInteger, 4},   {"uint", kInteger, 4},
      {"long", kInteger, 8},    {"ulong", kInteger, 8}, {"float", kFloating, 4},
      {"double", kFloating, 8},
  };
  of->kind = kOther;
  for (size_t i = 0; i < sizeof scalars / sizeof *scalars; ++i) {
    if (strcmp(of->type, scalars[i].type) != 0) continue;
    of->kind = scalars[i].kind;
    of->size = scalars[i].size;
  }
}

static void read_parameter(cl_kernel kernel, cl_uint number, parameter* of) {
  cl_kernel_arg_address_qualifier space = CL_KERNEL_ARG_ADDRESS_PRIVATE;
  if (clGetKernelArgInfo(kernel, number, CL_KERNEL_ARG_ADDRESS_QUALIFIER, sizeof space, &space,
                         NULL) != CL_SUCCESS) {
    return;
  }
  clGetKernelArgInfo(kernel, number, CL_KERNEL_ARG_NAME, sizeof of->name, of->name, NULL);
  clGetKernelArgInfo(kernel, number, CL_KERNEL_ARG_TYPE_NAME, sizeof of->type, of->type, NULL);
  if (space == CL_KERNEL_ARG_ADDRESS_LOCAL) {
    of->kind = kLocal;
  } else if (space == CL_KERNEL_ARG_ADDRESS_PRIVATE) {
    read_scalar(of);
  } else {
    const int is_image = strncmp(of->type, "image", 5) == 0 || strcmp(of->type, "pipe") == 0;
    of->kind = is_image ? kOther : kPointer;
  }
}

static int32_t make_function(module* from, cl_kernel kernel, const char* name, function** made) {
  const cl_device_id id = opencl.devices[from->device].id;
  cl_uint count = 0;
  TRY_CL(clGetKernelInfo, kernel, CL_KERNEL_NUM_ARGS, sizeof count, &count, NULL);
  function* fn = calloc(1, sizeof *fn + count * sizeof *fn->parameters);
  if (fn == NULL) return fail(BRINGUP_OUT_OF_MEMORY, "no host memory for a function");
  fn->kernel = kernel;
  fn->device = from->device;
  fn->count = count;
  snprintf(fn->name, sizeof fn->name, "%s", name);
  clGetKernelWorkGroupInfo(kernel, id, CL_KERNEL_WORK_GROUP_SIZE, sizeof fn->max_threads,
                           &fn->max_threads, NULL);
  clGetKernelWorkGroupInfo(kernel, id, CL_KERNEL_LOCAL_MEM_SIZE, sizeof fn->declared_shared_bytes,
                           &fn->declared_shared_bytes, NULL);
  int locals = 0;
  for (cl_uint i = 0; i < count; ++i) {
    read_parameter(kernel, i, &fn->parameters[i]);
    locals += fn->parameters[i].kind == kLocal;
  }
  if (locals > 1) {
    free(fn);
    return fail(BRINGUP_UNSUPPORTED,
                "kernel '%s' has %d local pointers, and a launch has one size for shared memory: "
                "expected one at most",
                name, locals);
  }
  pthread_mutex_init(&fn->lock, NULL);
  *made = fn;
  return BRINGUP_OK;
}

int32_t get_function(void* loaded, const char* name, bringup_kernel_fn* fn) {
  TRY(usable());
  module* from = loaded;
  cl_int code = CL_SUCCESS;
  cl_kernel kernel = clCreateKernel(from->program, name, &code);
  if (code == CL_INVALID_KERNEL_NAME) {
    char names[1024] = "";
    clGetProgramInfo(from->program, CL_PROGRAM_KERNEL_NAMES, sizeof names, names, NULL);
    return fail(BRINGUP_INVALID, "the program has no kernel '%s': it has '%s'", name, names);
  }
  if (code != CL_SUCCESS) return fail_cl("clCreateKernel", code);
  function* made = NULL;
  const int32_t status = make_function(from, kernel, name, &made);
  if (status != BRINGUP_OK) {
    clReleaseKernel(kernel);
    return status;
  }
  pthread_mutex_lock(&from->lock);
  made->next = from->functions;
  from->functions = made;
  pthread_mutex_unlock(&from->lock);
  *fn = (bringup_kernel_fn)(void*)made;
  return BRINGUP_OK;
}

/* --- launches */

static int32_t check_value(const bringup_launch_values_args* launch, const function* fn,
                           cl_uint number, const bringup_value* value) {
  static const char* const kinds[] = {"nothing", "an address", "an integer", "a floating number"};
  const parameter* of = &fn->parameters[number];
  NEED(value->kind >= BRINGUP_VALUE_ADDRESS && value->kind <= BRINGUP_VALUE_FLOAT &&
           value->size >= 1 && value->size <= 8,
       "%s: value of kind %u and %u bytes", name_of(launch), value->kind, value->size);
  const int is_pointer = of->kind == kPointer;
  const int is_address = value->kind == BRINGUP_VALUE_ADDRESS;
  int fits = is_pointer == is_address;
  if (of->kind == kInteger) fits = value->kind == BRINGUP_VALUE_INT && value->size == of->size;
  if (of->kind == kFloating) fits = value->kind == BRINGUP_VALUE_FLOAT && value->size == of->size;
  if (of->kind == kUnknown) fits = 1;
  if (fits) return BRINGUP_OK;
  return fail(BRINGUP_INVALID, "%s: parameter %u of kernel '%s' is '%s %s', got %s of %u bytes",
              name_of(launch), number, fn->name, of->type, of->name, kinds[value->kind],
              value->size);
}

static int32_t check_values(const bringup_launch_values_args* launch, const function* fn) {
  int32_t next = 0;
  for (cl_uint i = 0; i < fn->count; ++i) {
    if (fn->parameters[i].kind == kLocal) {
      NEED(launch->shared_bytes > 0,
           "%s: kernel '%s' has shared memory, '%s %s', and the launch gives it no shared_bytes",
           name_of(launch), fn->name, fn->parameters[i].type, fn->parameters[i].name);
      continue;
    }
    NEED(next < launch->nvalues, "%s: kernel '%s' has more parameters than the %d values given",
         name_of(launch), fn->name, launch->nvalues);
    TRY(check_value(launch, fn, i, &launch->values[next++]));
  }
  NEED(next == launch->nvalues, "%s: kernel '%s' takes %d values, got %d", name_of(launch),
       fn->name, next, launch->nvalues);
  return BRINGUP_OK;
}

int32_t check_launch(int32_t device, const bringup_launch_values_args* launch) {
  const function* fn = (const function*)(const void*)launch->fn;
  NEED(fn != NULL && fn->device == device, "%s: the function is not of device %d", name_of(launch),
       device);
  int32_t status =
      check_blocks(device, launch, fn->name, fn->max_threads, fn->declared_shared_bytes);
  if (status == BRINGUP_OK) status = check_values(launch, fn);
  return status == BRINGUP_OK ? status : about(status, device, NULL, name_of(launch));
}

static int32_t set_argument(const function* fn, cl_uint number, const bringup_value* value) {
  const int is_address = value->kind == BRINGUP_VALUE_ADDRESS;
  if (is_address && value->value.address != NULL) {
    TRY_CL(clSetKernelArgSVMPointer, fn->kernel, number, value->value.address);
  } else if (is_address) { /* with the other NVIDIA keeps the former */
    TRY_CL(clSetKernelArg, fn->kernel, number, sizeof(cl_mem), NULL);
  } else {
    TRY_CL(clSetKernelArg, fn->kernel, number, value->size, value->value.bytes);
  }
  return BRINGUP_OK;
}

/* Under the function's lock. A kernel keeps its arguments: those that it has are not set again,
 * unless memory was freed since, as an address may be of other memory now. */
static int32_t set_arguments(function* fn, const bringup_launch_values_args* launch) {
  const bringup_value* value = launch->values;
  const uint64_t freed = opencl.freed;
  for (cl_uint i = 0; i < fn->count && fn->freed != freed; ++i) fn->parameters[i].form = 0;
  fn->freed = freed;
  for (cl_uint i = 0; i < fn->count; ++i) {
    parameter* of = &fn->parameters[i];
    if (of->kind == kLocal) {
      TRY_CL(clSetKernelArg, fn->kernel, i, launch->shared_bytes, NULL);
      continue;
    }
    const uint32_t form = value->kind << 8 | value->size;
    uint64_t bits = 0;
    memcpy(&bits, value->value.bytes, value->size);
    if (of->form != form || of->bits != bits) {
      of->form = 0;
      TRY(set_argument(fn, i, value));
      of->form = form;
      of->bits = bits;
    }
    ++value;
  }
  return BRINGUP_OK;
}

/* Whether the runtime divides the threads into groups. */

static int32_t set_and_enqueue(bringup_stream stream, function* fn,
                               const bringup_launch_values_args* launch, cl_event* event) {
  const size_t block[] = {launch->block.x, launch->block.y, launch->block.z};
  const size_t threads[] = {launch->grid.x * block[0], launch->grid.y * block[1],
                            launch->grid.z * block[2]};
  TRY(set_arguments(fn, launch));
  TRY_CL(clEnqueueNDRangeKernel, stream->queue, fn->kernel, 3, NULL, threads,
         whole(launch).work_items.x != 0 ? NULL : block, 0, NULL, event);
  return BRINGUP_OK;
}

int32_t enqueue_launch(bringup_stream stream, const bringup_launch_values_args* launch,
                       cl_event* event) {
  function* fn = (function*)(void*)launch->fn;
  pthread_mutex_lock(&fn->lock);
  const int32_t status = set_and_enqueue(stream, fn, launch, event);
  pthread_mutex_unlock(&fn->lock);
  return status == BRINGUP_OK ? status : about(status, fn->device, stream, name_of(launch));
}

int32_t launch_values(int32_t device, bringup_stream stream,
                      const bringup_launch_values_args* launch) {
  TRY(stream_of(device, &stream));
  TRY(check_launch(device, launch));
  cl_event event = NULL;
  TRY(enqueue_launch(stream, launch, recorded_event(stream, &event)));
  return finish_work(stream, BRINGUP_RECORD_KERNEL, event, event, 0, launch->name);
}
