/* The part of CUDA's driver API (cuda.h) that the driver calls, declared here so that it builds
 * where there is no toolkit, and found at run time, so that it links with nothing. The names are
 * cuda.h's; tests compare each declaration with it. */
#ifndef BRINGUP_CUDA_API_H_
#define BRINGUP_CUDA_API_H_

#include <stddef.h>
#include <stdint.h>

/* clang-format off */
typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st* CUcontext; typedef struct CUmod_st* CUmodule;
typedef struct CUfunc_st* CUfunction; typedef struct CUkern_st* CUkernel;
typedef struct CUstream_st* CUstream; typedef struct CUevent_st* CUevent;
typedef struct CUgraph_st* CUgraph; typedef struct CUgraphExec_st* CUgraphExec;
typedef struct CUgraphNode_st* CUgraphNode; typedef struct CUarray_st* CUarray;
typedef void (*CUhostFn)(void* user);
typedef struct CUuuid { char bytes[16]; } CUuuid;
typedef struct CUipcMemHandle { char reserved[64]; } CUipcMemHandle;

enum { /* CUresult */
  CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_DEVICE_UNAVAILABLE = 46, CUDA_ERROR_NO_DEVICE = 100, CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_CONTEXT = 201, CUDA_ERROR_ECC_UNCORRECTABLE = 214,
  CUDA_ERROR_NVLINK_UNCORRECTABLE = 220, CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_NOT_FOUND = 500, CUDA_ERROR_NOT_READY = 600, CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701, CUDA_ERROR_LAUNCH_TIMEOUT = 702,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709, CUDA_ERROR_ASSERT = 710,
  CUDA_ERROR_HARDWARE_STACK_ERROR = 714, CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE = 720, CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_INVALID_CLUSTER_SIZE = 912
};

enum { /* CUdevice_attribute */
  CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X = 2,
  CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X = 5, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED = 78,
  CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH = 95,
  CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
  CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH = 120
};

enum { /* CUfunction_attribute */
  CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
  CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
};

enum { /* CUpointer_attribute and CUmemorytype */
  CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11, CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
  CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2, CU_MEMORYTYPE_UNIFIED = 4
};

enum { /* flags and options of the functions below */
  CU_STREAM_NON_BLOCKING = 1, CU_EVENT_DISABLE_TIMING = 2, CU_MEMHOSTALLOC_PORTABLE = 1,
  CU_MEMHOSTREGISTER_PORTABLE = 1, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1,
  CU_STREAM_CAPTURE_MODE_RELAXED = 2, CU_STREAM_CAPTURE_STATUS_NONE = 0,
  CU_STREAM_CAPTURE_STATUS_ACTIVE = 1, CU_JIT_ERROR_LOG_BUFFER = 5,
  CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6
};

enum { /* CUlaunchAttributeID */
  CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 2, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4
};

typedef struct CUDA_MEMCPY2D {
  size_t srcXInBytes, srcY; unsigned srcMemoryType; const void* srcHost;
  CUdeviceptr srcDevice; CUarray srcArray; size_t srcPitch;
  size_t dstXInBytes, dstY; unsigned dstMemoryType; void* dstHost;
  CUdeviceptr dstDevice; CUarray dstArray; size_t dstPitch;
  size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

typedef struct CUDA_MEMCPY3D {
  size_t srcXInBytes, srcY, srcZ, srcLOD; unsigned srcMemoryType; const void* srcHost;
  CUdeviceptr srcDevice; CUarray srcArray; void* reserved0; size_t srcPitch, srcHeight;
  size_t dstXInBytes, dstY, dstZ, dstLOD; unsigned dstMemoryType; void* dstHost;
  CUdeviceptr dstDevice; CUarray dstArray; void* reserved1; size_t dstPitch, dstHeight;
  size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;

typedef struct CUDA_KERNEL_NODE_PARAMS {
  CUfunction func;
  unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
  void** kernelParams; void** extra; CUkernel kern; CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;

typedef union CUlaunchAttributeValue {
  char pad[64]; int cooperative; struct { unsigned x, y, z; } clusterDim;
} CUlaunchAttributeValue;

typedef struct CUlaunchAttribute {
  int id; char pad[4]; CUlaunchAttributeValue value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig {
  unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
  CUstream hStream; CUlaunchAttribute* attrs; unsigned numAttrs;
} CUlaunchConfig;

typedef struct CUDA_HOST_NODE_PARAMS { CUhostFn fn; void* userData; } CUDA_HOST_NODE_PARAMS;

/* NEW(name, version, parameters) of each function; `version` is what the library's symbol has
 * behind the name, as cuda.h's macros say. */
#define CUDA_FUNCTIONS(NEW) \
  NEW(cuInit, , (unsigned flags)) \
  NEW(cuDriverGetVersion, , (int* version)) \
  NEW(cuGetErrorName, , (CUresult code, const char* * text)) \
  NEW(cuGetErrorString, , (CUresult code, const char* * text)) \
  NEW(cuDeviceGetCount, , (int* count)) \
  NEW(cuDeviceGet, , (CUdevice* device, int number)) \
  NEW(cuDeviceGetName, , (char* name, int room, CUdevice device)) \
  NEW(cuDeviceGetUuid, _v2, (CUuuid* uuid, CUdevice device)) \
  NEW(cuDeviceTotalMem, _v2, (size_t* bytes, CUdevice device)) \
  NEW(cuDeviceGetAttribute, , (int* value, int attribute, CUdevice device)) \
  NEW(cuDevicePrimaryCtxRetain, , (CUcontext* context, CUdevice device)) \
  NEW(cuCtxSetCurrent, , (CUcontext context)) \
  NEW(cuCtxSynchronize, , (void)) \
  NEW(cuMemGetInfo, _v2, (size_t* free_bytes, size_t* total)) \
  NEW(cuMemAlloc, _v2, (CUdeviceptr* address, size_t bytes)) \
  NEW(cuMemFree, _v2, (CUdeviceptr address)) \
  NEW(cuMemGetAddressRange, _v2, (CUdeviceptr* base, size_t* bytes, CUdeviceptr address)) \
  NEW(cuMemHostAlloc, , (void* * address, size_t bytes, unsigned flags)) \
  NEW(cuMemFreeHost, , (void* address)) \
  NEW(cuMemHostRegister, _v2, (void* address, size_t bytes, unsigned flags)) \
  NEW(cuMemHostUnregister, , (void* address)) \
  NEW(cuPointerGetAttributes, , (unsigned count, int* which, void* * values, \
      CUdeviceptr address)) \
  NEW(cuMemcpyAsync, , (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)) \
  NEW(cuMemcpyPeerAsync, , (CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, \
      CUcontext src_context, size_t bytes, CUstream stream)) \
  NEW(cuMemcpy2DAsync, _v2, (const CUDA_MEMCPY2D* copy, CUstream stream)) \
  NEW(cuMemsetD8Async, , (CUdeviceptr dst, unsigned char value, size_t count, CUstream stream)) \
  NEW(cuMemsetD16Async, , (CUdeviceptr dst, unsigned short value, size_t count, CUstream stream)) \
  NEW(cuMemsetD32Async, , (CUdeviceptr dst, unsigned value, size_t count, CUstream stream)) \
  NEW(cuMemsetD2D32Async, , (CUdeviceptr dst, size_t pitch, unsigned value, size_t width, \
      size_t height, CUstream stream)) \
  NEW(cuIpcGetMemHandle, , (CUipcMemHandle* handle, CUdeviceptr address)) \
  NEW(cuIpcOpenMemHandle, _v2, (CUdeviceptr* address, CUipcMemHandle handle, unsigned flags)) \
  NEW(cuIpcCloseMemHandle, , (CUdeviceptr address)) \
  NEW(cuStreamCreateWithPriority, , (CUstream* stream, unsigned flags, int priority)) \
  NEW(cuStreamDestroy, _v2, (CUstream stream)) \
  NEW(cuStreamSynchronize, , (CUstream stream)) \
  NEW(cuStreamQuery, , (CUstream stream)) \
  NEW(cuStreamWaitEvent, , (CUstream stream, CUevent event, unsigned flags)) \
  NEW(cuStreamWriteValue32, _v2, (CUstream stream, CUdeviceptr address, uint32_t value, \
      unsigned flags)) \
  NEW(cuStreamWaitValue32, _v2, (CUstream stream, CUdeviceptr address, uint32_t value, \
      unsigned flags)) \
  NEW(cuStreamBeginCapture, _v2, (CUstream stream, int mode)) \
  NEW(cuStreamEndCapture, , (CUstream stream, CUgraph* graph)) \
  NEW(cuStreamIsCapturing, , (CUstream stream, int* status)) \
  NEW(cuLaunchHostFunc, , (CUstream stream, CUhostFn fn, void* user)) \
  NEW(cuEventCreate, , (CUevent* event, unsigned flags)) \
  NEW(cuEventDestroy, _v2, (CUevent event)) \
  NEW(cuEventRecord, , (CUevent event, CUstream stream)) \
  NEW(cuEventQuery, , (CUevent event)) \
  NEW(cuEventSynchronize, , (CUevent event)) \
  NEW(cuEventElapsedTime, , (float* milliseconds, CUevent start, CUevent end)) \
  NEW(cuModuleLoadDataEx, , (CUmodule* module, const void* image, unsigned count, int* options, \
      void* * values)) \
  NEW(cuModuleUnload, , (CUmodule module)) \
  NEW(cuModuleGetFunction, , (CUfunction* function, CUmodule module, const char* name)) \
  NEW(cuFuncGetAttribute, , (int* value, int attribute, CUfunction function)) \
  NEW(cuFuncSetAttribute, , (CUfunction function, int attribute, int value)) \
  NEW(cuFuncGetParamInfo, , (CUfunction function, size_t index, size_t* offset, size_t* size)) \
  NEW(cuLaunchKernel, , (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, \
      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, \
      CUstream stream, void* * values, void* * extra)) \
  NEW(cuLaunchKernelEx, , (const CUlaunchConfig* config, CUfunction function, void* * values, \
      void* * extra)) \
  NEW(cuGraphCreate, , (CUgraph* graph, unsigned flags)) \
  NEW(cuGraphDestroy, , (CUgraph graph)) \
  NEW(cuGraphGetNodes, , (CUgraph graph, CUgraphNode* nodes, size_t* count)) \
  NEW(cuGraphAddEmptyNode, , (CUgraphNode* node, CUgraph graph, const CUgraphNode* behind, \
      size_t count)) \
  NEW(cuGraphAddMemcpyNode, , (CUgraphNode* node, CUgraph graph, const CUgraphNode* behind, \
      size_t count, const CUDA_MEMCPY3D* copy, CUcontext context)) \
  NEW(cuGraphAddHostNode, , (CUgraphNode* node, CUgraph graph, const CUgraphNode* behind, \
      size_t count, const CUDA_HOST_NODE_PARAMS* call)) \
  NEW(cuGraphAddKernelNode, _v2, (CUgraphNode* node, CUgraph graph, const CUgraphNode* behind, \
      size_t count, const CUDA_KERNEL_NODE_PARAMS* launch)) \
  NEW(cuGraphAddChildGraphNode, , (CUgraphNode* node, CUgraph graph, const CUgraphNode* behind, \
      size_t count, CUgraph child)) \
  NEW(cuGraphDestroyNode, , (CUgraphNode node)) \
  NEW(cuGraphKernelNodeSetAttribute, , (CUgraphNode node, int which, \
      const CUlaunchAttributeValue* value)) \
  NEW(cuGraphKernelNodeSetParams, _v2, (CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* launch)) \
  NEW(cuGraphInstantiateWithFlags, , (CUgraphExec* executable, CUgraph graph, \
      unsigned long long flags)) \
  NEW(cuGraphExecKernelNodeSetParams, _v2, (CUgraphExec executable, CUgraphNode node, \
      const CUDA_KERNEL_NODE_PARAMS* launch)) \
  NEW(cuGraphLaunch, , (CUgraphExec executable, CUstream stream)) \
  NEW(cuGraphExecDestroy, , (CUgraphExec executable))

/* clang-format on */
#define CUDA_MEMBER(name, version, parameters) CUresult(*name) parameters;
typedef struct cuda_api {
  CUDA_FUNCTIONS(CUDA_MEMBER)
} cuda_api;

#endif /* BRINGUP_CUDA_API_H_ */
