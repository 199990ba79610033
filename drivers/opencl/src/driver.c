/* A bringup driver over OpenCL 2.0 and later: devices with shared virtual memory, so that an
 * address of a tensor is an address of the device. This file has the table, the devices and the
 * failures. Settings of the environment, read once, by init:
 *
 *     BRINGUP_OPENCL_PLATFORM  a part of the platform's name; without it the first with a GPU
 *     BRINGUP_OPENCL_MEMORY    fine or coarse; without it fine where host and device share memory
 *     BRINGUP_OPENCL_DEVICES   into how many devices the first one is divided, for tests
 */
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opencl.h"

#define PLATFORM_NOT_FOUND (-1001) /* CL_PLATFORM_NOT_FOUND_KHR, of the loader */
#define DEVICE_UUID 0x106A         /* CL_DEVICE_UUID_KHR */

ocl_state opencl;
static const char* status_name(cl_int code) {
  /* Of 0, -1, ... and of -30, -31, ... */
  static const char own[] =
      "SUCCESS DEVICE_NOT_FOUND DEVICE_NOT_AVAILABLE COMPILER_NOT_AVAILABLE "
      "MEM_OBJECT_ALLOCATION_FAILURE OUT_OF_RESOURCES OUT_OF_HOST_MEMORY "
      "PROFILING_INFO_NOT_AVAILABLE MEM_COPY_OVERLAP IMAGE_FORMAT_MISMATCH "
      "IMAGE_FORMAT_NOT_SUPPORTED BUILD_PROGRAM_FAILURE MAP_FAILURE "
      "MISALIGNED_SUB_BUFFER_OFFSET EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST "
      "COMPILE_PROGRAM_FAILURE LINKER_NOT_AVAILABLE LINK_PROGRAM_FAILURE "
      "DEVICE_PARTITION_FAILED KERNEL_ARG_INFO_NOT_AVAILABLE";
  static const char invalid[] =
      "VALUE DEVICE_TYPE PLATFORM DEVICE CONTEXT QUEUE_PROPERTIES COMMAND_QUEUE HOST_PTR "
      "MEM_OBJECT IMAGE_FORMAT_DESCRIPTOR IMAGE_SIZE SAMPLER BINARY BUILD_OPTIONS PROGRAM "
      "PROGRAM_EXECUTABLE KERNEL_NAME KERNEL_DEFINITION KERNEL ARG_INDEX ARG_VALUE ARG_SIZE "
      "KERNEL_ARGS WORK_DIMENSION WORK_GROUP_SIZE WORK_ITEM_SIZE GLOBAL_OFFSET EVENT_WAIT_LIST "
      "EVENT OPERATION GL_OBJECT BUFFER_SIZE MIP_LEVEL GLOBAL_WORK_SIZE PROPERTY "
      "IMAGE_DESCRIPTOR COMPILER_OPTIONS LINKER_OPTIONS DEVICE_PARTITION_COUNT PIPE_SIZE "
      "DEVICE_QUEUE SPEC_ID";
  static _Thread_local char made[64];
  const int is_invalid = code <= CL_INVALID_VALUE;
  const char* name = is_invalid ? invalid : own;
  for (int64_t left = (is_invalid ? CL_INVALID_VALUE : 0) - (int64_t)code; left != 0; --left) {
    name = strchr(name, ' ');
    if (name == NULL) {
      snprintf(made, sizeof made, "status %d", code);
      return made;
    }
    ++name;
  }
  snprintf(made, sizeof made, "CL_%s%.*s", is_invalid ? "INVALID_" : "", (int)strcspn(name, " "),
           name);
  return made;
}

static int32_t status_of(cl_int code) {
  switch (code) {
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
    case CL_OUT_OF_RESOURCES:
    case CL_OUT_OF_HOST_MEMORY:
      return BRINGUP_OUT_OF_MEMORY;
    case CL_DEVICE_NOT_AVAILABLE:
      return BRINGUP_DEVICE_LOST;
    default:
      return code <= CL_INVALID_VALUE && code > -100 ? BRINGUP_INVALID : BRINGUP_ERROR;
  }
}

int32_t fail_cl(const char* function, cl_int code) {
  const int32_t status = fail(status_of(code), "%s: %s", function, status_name(code));
  return coded(status, code, status_name(code));
}

int32_t fail_wait(const char* function, cl_int code, bringup_stream stream) {
  int32_t status = fail_cl(function, code);
  if (code == CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST || code == CL_OUT_OF_RESOURCES) {
    status = fail(BRINGUP_KERNEL_FAILED, "work that was given to stream %p failed (%s)",
                  (void*)stream, status_name(code));
    coded(status, code, "");
  }
  if (stream != NULL) about(status, stream->device, stream, "");
  return status;
}

int32_t enter(int32_t device) { return check_device(device); }

/* --- finding the devices */

static const char* setting(const char* name) {
  const char* value = getenv(name);
  return value != NULL && *value != '\0' ? value : NULL;
}

/* A number or flag of the device; 0 where it does not know the question. */
#define ASK(type, id, question) (*(const type*)ask(id, question, sizeof(type), &(type){0}))
static const void* ask(cl_device_id id, cl_device_info question, size_t size, void* answer) {
  if (clGetDeviceInfo(id, question, size, answer, NULL) != CL_SUCCESS) memset(answer, 0, size);
  return answer;
}

static void ask_text(cl_device_id id, cl_device_info question, char* text, size_t room) {
  char* answer = NULL;
  size_t bytes = 0;
  *text = '\0';
  if (clGetDeviceInfo(id, question, 0, NULL, &bytes) != CL_SUCCESS) return;
  answer = calloc(1, bytes + 1);
  if (answer == NULL) return;
  if (clGetDeviceInfo(id, question, bytes, answer, NULL) == CL_SUCCESS) {
    snprintf(text, room, "%s", answer);
  }
  free(answer);
}

static int has_memory(cl_device_id id, cl_device_svm_capabilities kind) {
  return (ASK(cl_device_svm_capabilities, id, CL_DEVICE_SVM_CAPABILITIES) & kind) != 0;
}

static int can_be_used(cl_device_id id) {
  return ASK(cl_bool, id, CL_DEVICE_AVAILABLE) && ASK(cl_bool, id, CL_DEVICE_ENDIAN_LITTLE) &&
         ASK(cl_uint, id, CL_DEVICE_ADDRESS_BITS) == 64 &&
         has_memory(id, CL_DEVICE_SVM_COARSE_GRAIN_BUFFER);
}

/* The platform's devices of these types that can be used. */
static int32_t take_devices(cl_platform_id platform, cl_device_type types) {
  cl_device_id all[kMaxDevices];
  cl_uint count = 0;
  opencl.count = 0;
  if (clGetDeviceIDs(platform, types, kMaxDevices, all, &count) != CL_SUCCESS) return 0;
  for (cl_uint i = 0; i < count && i < kMaxDevices; ++i) {
    if (can_be_used(all[i])) opencl.devices[opencl.count++].id = all[i];
  }
  return opencl.count;
}

static int is_wanted(cl_platform_id platform) {
  char name[256] = "";
  const char* part = setting("BRINGUP_OPENCL_PLATFORM");
  clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof name, name, NULL);
  return part == NULL || strstr(name, part) != NULL;
}

/* One platform's: memory is shared within a context, and a context is one platform's. */
static int32_t find_devices(cl_platform_id* platform) {
  enum { kMaxPlatforms = 32 };
  static const cl_device_type preferred[] = {
      CL_DEVICE_TYPE_GPU | CL_DEVICE_TYPE_ACCELERATOR | CL_DEVICE_TYPE_CUSTOM, CL_DEVICE_TYPE_ALL};
  cl_platform_id all[kMaxPlatforms];
  cl_uint count = 0;
  const cl_int code = clGetPlatformIDs(kMaxPlatforms, all, &count);
  if (code == PLATFORM_NOT_FOUND || (code == CL_SUCCESS && count == 0)) {
    return fail(BRINGUP_ERROR,
                "there is no OpenCL platform: expected a vendor's OpenCL driver, or PoCL for the "
                "processor (apt-get install pocl-opencl-icd)");
  }
  if (code != CL_SUCCESS) return fail_cl("clGetPlatformIDs", code);
  for (size_t types = 0; types < 2; ++types) {
    for (cl_uint i = 0; i < count && i < kMaxPlatforms; ++i) {
      *platform = all[i];
      if (is_wanted(all[i]) && take_devices(all[i], preferred[types]) > 0) return BRINGUP_OK;
    }
  }
  const char* part = setting("BRINGUP_OPENCL_PLATFORM");
  return fail(BRINGUP_ERROR,
              "no OpenCL device can be used: expected one of 64 bits with shared virtual memory "
              "(OpenCL 2.0) on one of %u platforms%s%s",
              count, part != NULL ? " whose name has BRINGUP_OPENCL_PLATFORM=" : "",
              part != NULL ? part : "");
}

/* Parts of the first device in the place of all devices. */
static int32_t divide(int32_t parts) {
  const cl_device_id whole = opencl.devices[0].id;
  const cl_uint units = ASK(cl_uint, whole, CL_DEVICE_MAX_COMPUTE_UNITS);
  NEED(parts >= 2 && parts <= kMaxDevices && (cl_uint)parts <= units,
       "BRINGUP_OPENCL_DEVICES: expected 1 to the %u compute units of the first device", units);
  cl_device_partition_property counts[kMaxDevices + 3] = {CL_DEVICE_PARTITION_BY_COUNTS};
  for (int32_t i = 0; i < parts; ++i) counts[i + 1] = (intptr_t)(units / (cl_uint)parts);
  counts[parts + 1] = CL_DEVICE_PARTITION_BY_COUNTS_LIST_END;
  cl_device_id made[kMaxDevices];
  TRY_CL(clCreateSubDevices, whole, counts, (cl_uint)parts, made, NULL);
  opencl.count = parts;
  for (int32_t i = 0; i < parts; ++i) opencl.devices[i].id = made[i];
  return BRINGUP_OK;
}

/* Sets opencl.fine. */
static int32_t choose_memory(void) {
  const char* wanted = setting("BRINGUP_OPENCL_MEMORY");
  int possible = 1;
  int unified = 1;
  for (int32_t i = 0; i < opencl.count; ++i) {
    const cl_device_id id = opencl.devices[i].id;
    possible = possible && has_memory(id, CL_DEVICE_SVM_FINE_GRAIN_BUFFER);
    unified = unified && ASK(cl_bool, id, CL_DEVICE_HOST_UNIFIED_MEMORY);
  }
  opencl.fine = possible && unified;
  if (wanted == NULL) return BRINGUP_OK;
  opencl.fine = strcmp(wanted, "fine") == 0;
  NEED(opencl.fine || strcmp(wanted, "coarse") == 0,
       "BRINGUP_OPENCL_MEMORY=%s: expected fine or coarse", wanted);
  if (opencl.fine && !possible) {
    return fail(BRINGUP_UNSUPPORTED,
                "BRINGUP_OPENCL_MEMORY=fine: not all devices have fine-grained memory");
  }
  return BRINGUP_OK;
}

/* --- properties */

static uint64_t mixed(uint64_t hash, const char* text) { /* FNV-1a, with the NUL */
  do {
    hash = (hash ^ (uint8_t)*text) * UINT64_C(0x100000001b3);
  } while (*text++ != '\0');
  return hash;
}

/* What a program is built for: the same for devices that may share a binary, and for no others.
 * Nothing that may change from process to process, as the size of memory does. */
static void name_architecture(cl_device_id id, char* arch, size_t room) {
  static const cl_device_info parts[] = {CL_DEVICE_VENDOR, CL_DEVICE_NAME, CL_DEVICE_VERSION,
                                         CL_DRIVER_VERSION};
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < sizeof parts / sizeof *parts; ++i) {
    char text[512];
    ask_text(id, parts[i], text, sizeof text);
    hash = mixed(hash, text);
  }
  snprintf(arch, room, "opencl-%016llx", (unsigned long long)hash);
}

static uint32_t at_most_32_bits(uint64_t number) {
  return number > UINT32_MAX ? UINT32_MAX : (uint32_t)number;
}

static void describe(ocl_device* device, int32_t parts) {
  bringup_device_props* props = &device->props;
  const cl_device_id id = device->id;
  char text[4096];
  size_t block[3] = {0};
  ask_text(id, CL_DEVICE_NAME, props->name, sizeof props->name);
  name_architecture(id, props->arch, sizeof props->arch);
  props->total_memory = ASK(cl_ulong, id, CL_DEVICE_GLOBAL_MEM_SIZE) / (uint64_t)parts;
  const uint64_t largest = ASK(cl_ulong, id, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
  props->max_allocation = largest < props->total_memory ? largest : props->total_memory;
  props->core_count = ASK(cl_uint, id, CL_DEVICE_MAX_COMPUTE_UNITS);
  props->supports_float64 = ASK(cl_device_fp_config, id, CL_DEVICE_DOUBLE_FP_CONFIG) != 0;
  ask_text(id, CL_DEVICE_PROFILE, text, sizeof text);
  props->supports_int64 = strcmp(text, "EMBEDDED_PROFILE") != 0;
  props->host_visible_memory = (uint32_t)opencl.fine;
  props->alignment = 64; /* of clSVMAlloc: the size of the largest vector, int16 at least */
  ask_text(id, CL_DEVICE_EXTENSIONS, text, sizeof text);
  if (strstr(text, "cl_khr_priority_hints") != NULL) {
    props->greatest_priority = -1;
    props->least_priority = 1;
  }
  if (parts == 1 && strstr(text, "cl_khr_device_uuid") != NULL) {
    ask(id, DEVICE_UUID, sizeof props->uuid, props->uuid);
  }
  ask_text(id, CL_DRIVER_VERSION, props->driver_version, sizeof props->driver_version);
  ask(id, CL_DEVICE_MAX_WORK_ITEM_SIZES, sizeof block, block);
  for (int i = 0; i < 3; ++i) props->max_block[i] = at_most_32_bits(block[i]);
  props->max_block_threads = at_most_32_bits(ASK(size_t, id, CL_DEVICE_MAX_WORK_GROUP_SIZE));
  props->max_shared_bytes = at_most_32_bits(ASK(cl_ulong, id, CL_DEVICE_LOCAL_MEM_SIZE));
}

static int32_t init(void) {
  cl_platform_id platform = NULL;
  TRY(find_devices(&platform));
  const char* text = setting("BRINGUP_OPENCL_DEVICES");
  const int32_t parts = text != NULL ? atoi(text) : 1;
  if (parts != 1) TRY(divide(parts));
  TRY(choose_memory());
  cl_device_id ids[kMaxDevices];
  for (int32_t i = 0; i < opencl.count; ++i) ids[i] = opencl.devices[i].id;
  const cl_context_properties of[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)platform, 0};
  cl_int code = CL_SUCCESS;
  opencl.context = clCreateContext(of, (cl_uint)opencl.count, ids, NULL, NULL, &code);
  if (code != CL_SUCCESS) return fail_cl("clCreateContext", code);
  for (int32_t i = 0; i < opencl.count; ++i) {
    describe(&opencl.devices[i], parts);
    TRY(open_stream(&opencl.devices[i].default_stream, i, 0));
  }
  return BRINGUP_OK;
}

static int32_t native_handle(int32_t device, bringup_stream stream, int32_t kind, void** handle) {
  TRY(enter(device));
  switch (kind) {
    case BRINGUP_NATIVE_CONTEXT:
      *handle = opencl.context;
      return BRINGUP_OK;
    case BRINGUP_NATIVE_DEVICE:
      *handle = opencl.devices[device].id;
      return BRINGUP_OK;
    case BRINGUP_NATIVE_QUEUE:
      TRY(stream_of(device, &stream));
      stream->lent = 1;
      *handle = stream->queue;
      return BRINGUP_OK;
    case BRINGUP_NATIVE_MEMORY:
      return memory_object(*handle, handle);
    default:
      return fail(BRINGUP_UNSUPPORTED, "this driver has no native object of kind %d", kind);
  }
}

static const bringup_driver driver = {
    .struct_size = sizeof(bringup_driver),
    .abi_version = BRINGUP_DRIVER_ABI,
    .device_name = "ocl",
    .description = "OpenCL devices with shared virtual memory",
    /* clang-format off */
    HAS(device_count), HAS(device_props), HAS(mem_alloc), HAS(mem_free), HAS(mem_info),
    HAS(copy_async), HAS(fill_async), HAS(stream_create), HAS(stream_destroy),
    HAS(stream_synchronize), HAS(event_create), HAS(event_destroy), HAS(event_record),
    HAS(event_wait), HAS(event_query), HAS(event_synchronize), HAS(event_elapsed),
    HAS(stream_query), HAS(last_error), HAS(host_view), HAS(host_func), HAS(module_load),
    HAS(module_unload), HAS(get_function), HAS(graph_create), HAS(graph_destroy), HAS(graph_add_copy),
    HAS(graph_add_host_func), HAS(graph_launch),
    .capabilities = BRINGUP_HAS_LIFECYCLE | BRINGUP_HAS_ERROR_DETAIL | BRINGUP_HAS_TIMED_WAITS |
                    BRINGUP_HAS_POINTERS | BRINGUP_HAS_WIDE_FILL | BRINGUP_HAS_MODULE_DATA |
                    BRINGUP_HAS_LAUNCH_VALUES | BRINGUP_HAS_PROFILER | BRINGUP_HAS_NATIVE,
    HAS(init), HAS(shutdown), HAS(error_detail), HAS(stream_wait_for), HAS(event_wait_for),
    HAS(pointer_info), HAS(fill_wide_async), HAS(module_load_data), HAS(launch_values),
    HAS(graph_add_values), HAS(graph_update_values), HAS(profiler_start), HAS(profiler_stop),
    HAS(profiler_read), HAS(native_handle),
    /* clang-format on */
};

#define DRIVER_PARTS
#include <bringup/driver_parts.h>
