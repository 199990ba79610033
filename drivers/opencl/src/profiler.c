/* Records of work with OpenCL's own times. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "opencl.h"

enum { kMaxRecords = 1 << 18, kCalibrations = 5 };

typedef struct record {
  cl_event begin, end;
  bringup_record told; /* but for its times */
} record;

typedef struct recorder {
  pthread_mutex_t lock; /* of what follows */
  uint64_t recording;   /* the number of this recording, from 1 */
  int64_t offset;       /* of CLOCK_REALTIME to the device's clock */
  record* records;
  int32_t count, room;
  uint64_t lost;
} recorder;

static recorder recorders[kMaxDevices] = {
    [0 ... kMaxDevices - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};
static _Atomic int recording[kMaxDevices];

cl_event* recorded_event(bringup_stream stream, cl_event* event) {
  return atomic_load_explicit(&recording[stream->device], memory_order_relaxed) ? event : NULL;
}

/* Takes the events. Under the lock. */
static void keep(recorder* to, bringup_stream stream, const record* made) {
  if (stream->recording != to->recording) stream->work_number = 0;
  stream->recording = to->recording;
  const uint64_t number = stream->work_number++;
  if (to->count == to->room && to->room < kMaxRecords) {
    const int32_t room = to->room * 2 + 1024;
    record* larger = realloc(to->records, (size_t)room * sizeof *larger);
    if (larger != NULL) {
      to->records = larger;
      to->room = room;
    }
  }
  if (to->count == to->room) {
    to->lost++;
    clReleaseEvent(made->begin);
    clReleaseEvent(made->end);
    return;
  }
  to->records[to->count] = *made;
  to->records[to->count++].told.number = number;
}

int32_t finish_work(bringup_stream stream, int32_t kind, cl_event begin, cl_event end,
                    uint64_t bytes, const char* name) {
  if (begin != NULL) {
    record made = {begin, end, {.kind = kind, .device = stream->device, .bytes = bytes}};
    if (stream != &opencl.devices[stream->device].default_stream) made.told.stream = stream;
    snprintf(made.told.name, sizeof made.told.name, "%s", name != NULL ? name : "");
    if (begin == end) clRetainEvent(begin);
    recorder* to = &recorders[stream->device];
    pthread_mutex_lock(&to->lock);
    keep(to, stream, &made);
    pthread_mutex_unlock(&to->lock);
  } else if (end != NULL) {
    clReleaseEvent(end);
  }
  return flush(stream);
}

static int64_t wall_clock(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* clGetDeviceAndHostTimer is optional, and not of CLOCK_REALTIME: so a marker in an idle queue is
 * timed, several times, and the narrowest is believed. */
static int32_t calibrate(int32_t device, int64_t* offset) {
  bringup_stream stream = &opencl.devices[device].default_stream;
  int64_t narrowest = INT64_MAX;
  TRY(stream_synchronize(device, stream));
  for (int i = 0; i < kCalibrations; ++i) {
    cl_event event = NULL;
    cl_ulong time = 0;
    const int64_t before = wall_clock();
    TRY(enqueue_marker(stream, &event));
    cl_int code = clWaitForEvents(1, &event);
    const int64_t after = wall_clock();
    if (code == CL_SUCCESS) {
      code = clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, sizeof time, &time, NULL);
    }
    clReleaseEvent(event);
    if (code != CL_SUCCESS) return fail_cl("timing a marker", code);
    if (after - before >= narrowest) continue;
    narrowest = after - before;
    *offset = before + narrowest / 2 - (int64_t)time;
  }
  return BRINGUP_OK;
}

static void release_record(const record* old) {
  clReleaseEvent(old->begin);
  clReleaseEvent(old->end);
}

int32_t profiler_start(int32_t device) {
  TRY(enter(device));
  int64_t offset = 0;
  TRY(calibrate(device, &offset));
  recorder* of = &recorders[device];
  pthread_mutex_lock(&of->lock);
  for (int32_t i = 0; i < of->count; ++i) release_record(&of->records[i]);
  of->count = 0;
  of->lost = 0;
  of->offset = offset;
  of->recording++;
  pthread_mutex_unlock(&of->lock);
  atomic_store(&recording[device], 1);
  return BRINGUP_OK;
}

static int is_complete(const record* of) {
  cl_int state = CL_QUEUED;
  clGetEventInfo(of->end, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL);
  return state <= CL_COMPLETE;
}

int32_t profiler_stop(int32_t device) {
  TRY(enter(device));
  atomic_store(&recording[device], 0);
  recorder* of = &recorders[device];
  pthread_mutex_lock(&of->lock);
  int32_t left = 0;
  for (int32_t i = 0; i < of->count; ++i) {
    if (is_complete(&of->records[i])) {
      of->records[left++] = of->records[i];
    } else {
      release_record(&of->records[i]);
    }
  }
  of->count = left;
  pthread_mutex_unlock(&of->lock);
  return BRINGUP_OK;
}

/* Whether OpenCL knows when it began and ended: not of work that failed. */
static int has_times(const recorder* from, record* of) {
  cl_ulong begin = 0;
  cl_ulong end = 0;
  const cl_profiling_info first =
      of->begin == of->end ? CL_PROFILING_COMMAND_START : CL_PROFILING_COMMAND_END;
  if (clGetEventProfilingInfo(of->begin, first, sizeof begin, &begin, NULL) != CL_SUCCESS ||
      clGetEventProfilingInfo(of->end, CL_PROFILING_COMMAND_END, sizeof end, &end, NULL) !=
          CL_SUCCESS) {
    return 0;
  }
  of->told.begin = (int64_t)begin + from->offset;
  of->told.end = (int64_t)end + from->offset;
  return 1;
}

int32_t profiler_read(int32_t device, bringup_record* records, int32_t capacity, int32_t* count,
                      uint64_t* lost) {
  TRY(enter(device));
  NEED(capacity >= 0 && (capacity == 0 || records != NULL), "profiler_read into %d records at %p",
       capacity, (void*)records);
  recorder* from = &recorders[device];
  const uint32_t step = capacity > 0 ? records->struct_size : 0;
  char* to = (char*)records;
  int32_t given = 0;
  int32_t left = 0;
  pthread_mutex_lock(&from->lock);
  for (int32_t i = 0; i < from->count; ++i) {
    record* next = &from->records[i];
    if (given == capacity || !is_complete(next)) {
      from->records[left++] = *next;
      continue;
    }
    if (has_times(from, next)) {
      next->told.struct_size = step;
      give(to + (size_t)step * (size_t)given++, &next->told, sizeof next->told);
    }
    release_record(next);
  }
  from->count = left;
  *lost = from->lost;
  pthread_mutex_unlock(&from->lock);
  *count = given;
  return BRINGUP_OK;
}
