/* Streams are in-order queues, events are markers in them, and host functions run in a thread of
 * their stream between a marker and a user event that the queue waits for. */
#include <stdlib.h>
#include <time.h>

#include "opencl.h"

struct host_work {
  host_work* next;
  cl_event before, done; /* the marker in front of it; what the queue waits for */
  void (*fn)(void* user);
  void* user;
};

struct bringup_event_s {
  pthread_mutex_t lock;
  cl_event recorded; /* NULL: never */
  int32_t timing;
};

/* --- streams */

/* Of cl_khr_priority_hints; only a device that has it says that it has priorities. */
enum { kQueuePriority = 0x1096, kHigh = 1, kMedium = 2, kLow = 4 };

int32_t open_stream(bringup_stream stream, int32_t device, int32_t priority) {
  const bringup_device_props* props = &opencl.devices[device].props;
  TRY(check_priority(device, priority));
  const cl_queue_properties hint = priority < 0 ? kHigh : priority > 0 ? kLow : kMedium;
  const int has_hints = props->greatest_priority != props->least_priority;
  const cl_queue_properties properties[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE,
                                            has_hints ? kQueuePriority : 0, hint, 0};
  cl_int code = CL_SUCCESS;
  stream->queue = clCreateCommandQueueWithProperties(opencl.context, opencl.devices[device].id,
                                                     properties, &code);
  if (code != CL_SUCCESS) return fail_cl("clCreateCommandQueueWithProperties", code);
  stream->device = device;
  pthread_mutex_init(&stream->lock, NULL);
  pthread_cond_init(&stream->changed, NULL);
  return BRINGUP_OK;
}

int32_t flush(bringup_stream stream) {
  stream->given++;
  TRY_CL(clFlush, stream->queue);
  return BRINGUP_OK;
}

int32_t enqueue_marker(bringup_stream stream, cl_event* event) {
  TRY_CL(clEnqueueMarkerWithWaitList, stream->queue, 0, NULL, event);
  return BRINGUP_OK;
}

int32_t enqueue_wait(bringup_stream stream, cl_event event) {
  TRY_CL(clEnqueueBarrierWithWaitList, stream->queue, 1, &event, NULL);
  return BRINGUP_OK;
}

int32_t stream_destroy(bringup_stream stream) {
  TRY(usable());
  if (stream->has_host_thread) {
    pthread_mutex_lock(&stream->lock);
    stream->stopping = 1;
    pthread_cond_signal(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    pthread_join(stream->host_thread, NULL);
  }
  if (stream->asked != NULL) clReleaseEvent(stream->asked);
  const cl_int code = clReleaseCommandQueue(stream->queue);
  pthread_cond_destroy(&stream->changed);
  pthread_mutex_destroy(&stream->lock);
  free(stream);
  return code == CL_SUCCESS ? BRINGUP_OK : fail_cl("clReleaseCommandQueue", code);
}

int32_t stream_synchronize(int32_t device, bringup_stream stream) {
  TRY(stream_of(device, &stream));
  const uint64_t given = stream->given;
  const cl_int code = clFinish(stream->queue);
  if (code != CL_SUCCESS) return fail_wait("clFinish", code, stream);
  stream->done = given;
  return BRINGUP_OK;
}

/* --- waits with a limit. OpenCL has none, so the state is asked for. */

static int32_t state_of(cl_event event, cl_int* state) {
  TRY_CL(clGetEventInfo, event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof *state, state, NULL);
  return BRINGUP_OK;
}

static int64_t monotonic(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static int32_t wait_for(cl_event event, int64_t nanoseconds, bringup_stream stream) {
  const int64_t begun = monotonic();
  struct timespec pause = {.tv_nsec = 10000};
  for (;;) {
    cl_int state = CL_QUEUED;
    TRY(state_of(event, &state));
    if (state < 0) return fail_wait("the event of a wait", state, stream);
    if (state == CL_COMPLETE) return BRINGUP_OK;
    if (monotonic() - begun >= nanoseconds) {
      return fail(BRINGUP_TIMEOUT, "the work is not done after %lld ns", (long long)nanoseconds);
    }
    nanosleep(&pause, NULL);
    if (pause.tv_nsec < 1000000) pause.tv_nsec *= 2;
  }
}

static int is_known_done(bringup_stream stream) {
  return stream->done == stream->given && !stream->lent;
}

int32_t stream_wait_for(int32_t device, bringup_stream stream, int64_t nanoseconds) {
  TRY(stream_of(device, &stream));
  if (is_known_done(stream)) return BRINGUP_OK; /* a marker would take its time */
  const uint64_t given = stream->given;
  cl_event event = NULL;
  TRY(enqueue_marker(stream, &event));
  int32_t status = flush(stream);
  if (status == BRINGUP_OK) status = wait_for(event, nanoseconds, stream);
  const int is_alone = stream->given == given + 1; /* nothing came behind the marker */
  if (status == BRINGUP_OK && is_alone) stream->done = given + 1;
  clReleaseEvent(event);
  return status;
}

/* One marker at a time, so that asking again and again fills no queue. Under the stream's lock. */
static int32_t ask_again(bringup_stream stream) {
  cl_int state = CL_QUEUED;
  if (stream->asked != NULL) {
    TRY(state_of(stream->asked, &state));
    if (state > CL_COMPLETE) return BRINGUP_NOT_READY;
    clReleaseEvent(stream->asked);
    stream->asked = NULL;
    if (stream->asked_at == stream->given && !stream->lent) return BRINGUP_OK;
  }
  TRY(enqueue_marker(stream, &stream->asked));
  TRY(flush(stream));
  stream->asked_at = stream->given;
  /* Others may give work behind any marker, so a former one says nothing: a queue that has nothing
   * to do passes this one within the time. */
  if (stream->lent) wait_for(stream->asked, 1000000, NULL);
  TRY(state_of(stream->asked, &state));
  return state > CL_COMPLETE ? BRINGUP_NOT_READY : BRINGUP_OK; /* a failure is done, too */
}

int32_t stream_query(int32_t device, bringup_stream stream) {
  TRY(stream_of(device, &stream));
  if (is_known_done(stream)) return BRINGUP_OK;
  pthread_mutex_lock(&stream->lock);
  const int32_t status = ask_again(stream);
  pthread_mutex_unlock(&stream->lock);
  return status;
}

/* --- events */

int32_t event_create(int32_t device, int32_t timing, bringup_event* event) {
  TRY(enter(device));
  bringup_event made = calloc(1, sizeof *made);
  if (made == NULL) return fail(BRINGUP_OUT_OF_MEMORY, "no host memory for an event");
  pthread_mutex_init(&made->lock, NULL);
  made->timing = timing;
  *event = made;
  return BRINGUP_OK;
}

int32_t event_destroy(bringup_event event) {
  TRY(usable());
  if (event->recorded != NULL) clReleaseEvent(event->recorded);
  pthread_mutex_destroy(&event->lock);
  free(event);
  return BRINGUP_OK;
}

/* Its last record, to be released; NULL: none. */
static cl_event last_record(bringup_event event) {
  pthread_mutex_lock(&event->lock);
  const cl_event recorded = event->recorded;
  if (recorded != NULL) clRetainEvent(recorded);
  pthread_mutex_unlock(&event->lock);
  return recorded;
}

int32_t event_record(bringup_event event, int32_t device, bringup_stream stream) {
  TRY(stream_of(device, &stream));
  cl_event made = NULL;
  TRY(enqueue_marker(stream, &made));
  pthread_mutex_lock(&event->lock);
  const cl_event former = event->recorded;
  event->recorded = made;
  pthread_mutex_unlock(&event->lock);
  if (former != NULL) clReleaseEvent(former);
  return flush(stream);
}

int32_t event_wait(bringup_event event, int32_t device, bringup_stream stream) {
  TRY(stream_of(device, &stream));
  const cl_event recorded = last_record(event);
  if (recorded == NULL) return BRINGUP_OK;
  const int32_t status = enqueue_wait(stream, recorded);
  clReleaseEvent(recorded);
  return status == BRINGUP_OK ? flush(stream) : status;
}

int32_t event_query(bringup_event event) {
  TRY(usable());
  const cl_event recorded = last_record(event);
  if (recorded == NULL) return BRINGUP_OK;
  cl_int state = CL_QUEUED;
  const int32_t status = state_of(recorded, &state);
  clReleaseEvent(recorded);
  if (status != BRINGUP_OK) return status;
  return state <= CL_COMPLETE ? BRINGUP_OK : BRINGUP_NOT_READY; /* a failure is done, too */
}

int32_t event_synchronize(bringup_event event) {
  TRY(usable());
  const cl_event recorded = last_record(event);
  if (recorded == NULL) return BRINGUP_OK;
  const cl_int code = clWaitForEvents(1, &recorded);
  clReleaseEvent(recorded);
  return code == CL_SUCCESS ? BRINGUP_OK : fail_wait("clWaitForEvents", code, NULL);
}

int32_t event_wait_for(bringup_event event, int64_t nanoseconds) {
  TRY(usable());
  const cl_event recorded = last_record(event);
  if (recorded == NULL) return BRINGUP_OK;
  const int32_t status = wait_for(recorded, nanoseconds, NULL);
  clReleaseEvent(recorded);
  return status;
}

static int32_t time_of(bringup_event event, cl_ulong* time) {
  NEED(event->timing, "the event was made without timing");
  const cl_event recorded = last_record(event);
  NEED(recorded != NULL, "the event was never recorded");
  const cl_int code =
      clGetEventProfilingInfo(recorded, CL_PROFILING_COMMAND_END, sizeof *time, time, NULL);
  clReleaseEvent(recorded);
  return code == CL_SUCCESS ? BRINGUP_OK : fail_cl("clGetEventProfilingInfo", code);
}

int32_t event_elapsed(bringup_event start, bringup_event end, double* milliseconds) {
  TRY(usable());
  cl_ulong begun = 0;
  cl_ulong ended = 0;
  TRY(time_of(start, &begun));
  TRY(time_of(end, &ended));
  *milliseconds = ((double)ended - (double)begun) / 1e6;
  return BRINGUP_OK;
}

/* --- host functions. Not in a callback of OpenCL, which must not block: a function may. */

static host_work* next_work(bringup_stream stream) {
  pthread_mutex_lock(&stream->lock);
  while (stream->first == NULL && !stream->stopping) {
    pthread_cond_wait(&stream->changed, &stream->lock);
  }
  host_work* work = stream->first;
  if (work != NULL) stream->first = work->next;
  if (stream->first == NULL) stream->last = NULL;
  pthread_mutex_unlock(&stream->lock);
  return work;
}

static void release_work(host_work* work) {
  if (work->before != NULL) clReleaseEvent(work->before);
  if (work->done != NULL) clReleaseEvent(work->done);
  free(work);
}

static void* run_host_functions(void* stream) {
  for (host_work* work; (work = next_work(stream)) != NULL;) {
    clWaitForEvents(1, &work->before); /* also behind work that failed: someone waits for it */
    work->fn(work->user);
    clSetUserEventStatus(work->done, CL_COMPLETE);
    release_work(work);
  }
  return NULL;
}

/* Under the stream's lock, so that the thread has its functions in the queue's order. */
static int32_t give_work(bringup_stream stream, host_work* work) {
  if (!stream->has_host_thread) {
    stream->has_host_thread =
        pthread_create(&stream->host_thread, NULL, run_host_functions, stream) == 0;
    if (!stream->has_host_thread) return fail(BRINGUP_ERROR, "no thread for host functions");
  }
  TRY(enqueue_marker(stream, &work->before));
  TRY(enqueue_wait(stream, work->done));
  *(stream->last != NULL ? &stream->last->next : &stream->first) = work;
  stream->last = work;
  pthread_cond_signal(&stream->changed);
  return BRINGUP_OK;
}

int32_t enqueue_host_func(bringup_stream stream, void (*fn)(void* user), void* user) {
  host_work* work = calloc(1, sizeof *work);
  if (work == NULL) return fail(BRINGUP_OUT_OF_MEMORY, "no host memory for a host function");
  cl_int code = CL_SUCCESS;
  work->fn = fn;
  work->user = user;
  work->done = clCreateUserEvent(opencl.context, &code);
  int32_t status = code == CL_SUCCESS ? BRINGUP_OK : fail_cl("clCreateUserEvent", code);
  if (status == BRINGUP_OK) {
    pthread_mutex_lock(&stream->lock);
    status = give_work(stream, work);
    pthread_mutex_unlock(&stream->lock);
  }
  if (status != BRINGUP_OK) release_work(work);
  return status;
}

int32_t host_func(int32_t device, bringup_stream stream, void (*fn)(void* user), void* user) {
  TRY(stream_of(device, &stream));
  NEED(fn != NULL, "host_func without a function");
  TRY(enqueue_host_func(stream, fn, user));
  return flush(stream);
}
