/* Streams, events, host functions, and streams whose work is captured. */
#include <stdlib.h>

#include "nv.h"

struct bringup_event_s {
  int32_t device;
  int32_t timing;
  CUevent event;
};

/* --- streams */

int32_t open_stream(bringup_stream stream, int32_t device, int32_t priority) {
  TRY(check_priority(device, priority));
  stream->device = device;
  return CUDA(cuStreamCreateWithPriority, &stream->queue, CU_STREAM_NON_BLOCKING, priority);
}

int32_t stream_destroy(bringup_stream stream) {
  TRY(enter(stream->device));
  const CUresult code = nv.api.cuStreamDestroy(stream->queue);
  free(stream);
  return told("cuStreamDestroy", code);
}

/* What would wait breaks a capture: by our own mark, since CUDA may answer some of them. */
static int32_t end_of(const char* function, CUresult (*ask)(CUstream), int32_t device,
                      bringup_stream stream) {
  TRY(stream_of(device, &stream));
  if (stream->capture != BRINGUP_CAPTURE_NONE) {
    stream->capture = BRINGUP_CAPTURE_BROKEN;
    return fail(BRINGUP_ERROR,
                "stream %p is captured: nothing can wait for it, and its capture is "
                "broken now",
                (void*)stream);
  }
  const CUresult code = ask(stream->queue);
  return code == CUDA_SUCCESS ? BRINGUP_OK : about(told(function, code), device, stream, "");
}

int32_t stream_synchronize(int32_t device, bringup_stream stream) {
  return end_of("cuStreamSynchronize", nv.api.cuStreamSynchronize, device, stream);
}

int32_t stream_query(int32_t device, bringup_stream stream) {
  return end_of("cuStreamQuery", nv.api.cuStreamQuery, device, stream);
}

int32_t host_func(int32_t device, bringup_stream stream, void (*fn)(void* user), void* user) {
  TRY(stream_of(device, &stream));
  NEED(fn != NULL, "host_func without a function");
  return CUDA(cuLaunchHostFunc, stream->queue, fn, user);
}

/* --- events */

int32_t event_create(int32_t device, int32_t timing, bringup_event* event) {
  TRY(enter(device));
  bringup_event made = calloc(1, sizeof *made);
  if (made == NULL) return fail(BRINGUP_OUT_OF_MEMORY, "no host memory for an event");
  const CUresult code = nv.api.cuEventCreate(&made->event, timing ? 0 : CU_EVENT_DISABLE_TIMING);
  if (code != CUDA_SUCCESS) {
    free(made);
    return told("cuEventCreate", code);
  }
  made->device = device;
  made->timing = timing;
  *event = made;
  return BRINGUP_OK;
}

int32_t event_destroy(bringup_event event) {
  TRY(enter(event->device));
  const CUresult code = nv.api.cuEventDestroy(event->event);
  free(event);
  return told("cuEventDestroy", code);
}

int32_t event_record(bringup_event event, int32_t device, bringup_stream stream) {
  TRY(stream_of(device, &stream));
  NEED(event->device == device, "an event of device %d in a stream of device %d", event->device,
       device);
  return CUDA(cuEventRecord, event->event, stream->queue);
}

int32_t event_wait(bringup_event event, int32_t device, bringup_stream stream) {
  TRY(stream_of(device, &stream));
  return CUDA(cuStreamWaitEvent, stream->queue, event->event, 0);
}

int32_t event_query(bringup_event event) {
  return CUDA_ON(event->device, cuEventQuery, event->event);
}

int32_t event_synchronize(bringup_event event) {
  return CUDA_ON(event->device, cuEventSynchronize, event->event);
}

int32_t event_elapsed(bringup_event start, bringup_event end, double* milliseconds) {
  TRY(enter(start->device));
  NEED(start->timing && end->timing, "an event that was made without timing");
  float time = 0;
  TRY(CUDA(cuEventElapsedTime, &time, start->event, end->event));
  *milliseconds = time;
  return BRINGUP_OK;
}

/* --- captures. Relaxed: what other threads do, and memory that is asked for, is no matter. */

int32_t stream_capture_begin(int32_t device, bringup_stream stream) {
  NEED(stream != NULL, "the default stream cannot be captured");
  TRY(stream_of(device, &stream));
  NEED(stream->capture == BRINGUP_CAPTURE_NONE, "stream %p is captured already", (void*)stream);
  TRY(CUDA(cuStreamBeginCapture, stream->queue, CU_STREAM_CAPTURE_MODE_RELAXED));
  stream->capture = BRINGUP_CAPTURE_ACTIVE;
  return BRINGUP_OK;
}

int32_t stream_capture_query(int32_t device, bringup_stream stream, int32_t* state) {
  TRY(stream_of(device, &stream));
  int status = CU_STREAM_CAPTURE_STATUS_NONE;
  TRY(CUDA(cuStreamIsCapturing, stream->queue, &status));
  const int broken = status != CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (stream->capture == BRINGUP_CAPTURE_ACTIVE && broken) {
    stream->capture = BRINGUP_CAPTURE_BROKEN;
  }
  *state = stream->capture;
  return BRINGUP_OK;
}

/* Lets the stream run again. `*captured`: what it was given; NULL where it could not be captured,
 * for which CUDA's words are left. */
static int32_t leave_capture(int32_t device, bringup_stream stream, CUgraph* captured) {
  TRY(stream_of(device, &stream));
  NEED(stream->capture != BRINGUP_CAPTURE_NONE, "stream %p is not captured", (void*)stream);
  *captured = NULL;
  const CUresult code = nv.api.cuStreamEndCapture(stream->queue, captured);
  if (code != CUDA_SUCCESS) told("cuStreamEndCapture", code);
  if (code == CUDA_SUCCESS && stream->capture == BRINGUP_CAPTURE_BROKEN) {
    fail(BRINGUP_ERROR, "the capture was broken by a call that waits for the stream");
    nv.api.cuGraphDestroy(*captured);
    *captured = NULL;
  }
  stream->capture = BRINGUP_CAPTURE_NONE;
  return BRINGUP_OK;
}

int32_t stream_capture_end(int32_t device, bringup_stream stream, bringup_graph graph) {
  CUgraph captured = NULL;
  TRY(leave_capture(device, stream, &captured));
  if (captured == NULL) return BRINGUP_ERROR;
  const int32_t status = graph_add_captured(graph, captured);
  nv.api.cuGraphDestroy(captured);
  return status;
}

int32_t stream_capture_abort(int32_t device, bringup_stream stream) {
  CUgraph captured = NULL;
  TRY(leave_capture(device, stream, &captured));
  if (captured != NULL) nv.api.cuGraphDestroy(captured);
  return BRINGUP_OK;
}
