#include "torch/devices/profiler.h"

#include <c10/core/DeviceGuard.h>
#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "torch/devices/driver_records.h"
#include "torch/devices/state.h"

namespace bringup::torch_ext {

// A driver event with timing.
class TimedEvent {
 public:
  static std::unique_ptr<TimedEvent> record(const c10::Stream& stream, int32_t& status) {
    std::unique_ptr<TimedEvent> event(new TimedEvent(stream.device_index()));
    status = create_event(event->device_, true, event->event_);
    if (status == BRINGUP_OK) {
      status =
          active_driver()->event_record(event->event_.get(), event->device_, native_stream(stream));
    }
    return event;
  }

  c10::DeviceIndex device() const noexcept { return device_; }

  // Waits. What failed in the stream stays to be raised by the next synchronisation.
  void wait() const noexcept {
    const int32_t status = wait_for_event(event_.get());
    if (status != BRINGUP_OK) {
      report_host_failure(device_, driver_failure_text(status, "waiting for a timed event"));
    }
  }
  // The time from this event to a later one; both are over.
  int32_t nanoseconds_to(const TimedEvent& later, int64_t& nanoseconds) const noexcept {
    double milliseconds = 0;
    const int32_t status =
        active_driver()->event_elapsed(event_.get(), later.event_.get(), &milliseconds);
    nanoseconds = static_cast<int64_t>(milliseconds * 1e6);
    return status;
  }

 private:
  explicit TimedEvent(c10::DeviceIndex device) : device_(device) {}

  const c10::DeviceIndex device_;
  EventPtr event_;
};

ProfiledRow::ProfiledRow() = default;
ProfiledRow::~ProfiledRow() = default;

std::atomic<bool> ProfiledWork::recording_{false};

namespace {

thread_local std::vector<uint64_t> t_correlations;

}  // namespace

// The running recording. Where the driver keeps no records, device times are relative to an event
// of which the host time is known, one a device.
class Recorder {
 public:
  static Recorder& instance() {
    static auto* recorder = new Recorder;  // threads may be in it until the very end of the process
    return *recorder;
  }

  void start() {
    ProfiledRows found;
    std::array<Origin, kMaxDevices> origins;  // without the lock: a device is waited for
    DriverRecords records;
    for (c10::DeviceIndex device = 0; device < driver_facts().device_count; ++device) {
      records.start(device, found.errors);
      origins[static_cast<size_t>(device)] = origin_of(device, found.errors);
    }
    std::lock_guard lock(mutex_);
    ++recording_;
    records_ = records;
    found_ = std::move(found);
    streams_.clear();
    origins_ = std::move(origins);
    ProfiledWork::recording_ = true;
  }

  ProfiledRows stop() {
    ProfiledRows found;
    DriverRecords records;
    {
      std::lock_guard lock(mutex_);
      records = std::exchange(records_, {});
      ProfiledWork::recording_ = false;
      ++recording_;  // rows that have not ended belong to none
      found = std::exchange(found_, {});
    }
    DriverRecords::Times times = records.stop(found.errors);
    std::erase_if(found.rows, [&](auto& row) {
      return row->work ? !times.take(*row, found.errors) : !take_times(*row, found.errors);
    });
    times.add_others(found.rows, [this](const driver::WorkNumber& work) {
      std::lock_guard lock(mutex_);
      return stream_number(static_cast<c10::DeviceIndex>(work.device),
                           reinterpret_cast<c10::StreamId>(work.stream));
    });
    for (Origin& origin : origins_) origin = {};
    return found;
  }

  // `by_driver`: the work goes through the driver's table, which may keep a record of it.
  std::unique_ptr<ProfiledRow> begin(const char* name, const c10::Stream& stream, bool by_driver) {
    auto row = std::make_unique<ProfiledRow>();
    row->name = name;
    row->device = stream.device_index();
    row->correlation = t_correlations.empty() ? 0 : t_correlations.back();
    {
      std::lock_guard lock(mutex_);
      row->recording = recording_;
      row->stream = stream_number(row->device, stream.id());
      if (by_driver && records_.has(row->device)) {
        driver::forget_last_work();
        return row;
      }
    }
    row->start = mark(*row, stream);
    return row->start != nullptr ? std::move(row) : nullptr;
  }

  void end(std::unique_ptr<ProfiledRow> row, const c10::Stream& stream) {
    if (row->start == nullptr) {
      row->work = driver::last_work();
    } else {
      row->end = mark(*row, stream);
    }
    if (row->end == nullptr && !row->work) return;  // the driver refused it, or its event
    std::lock_guard lock(mutex_);
    if (row->recording == recording_) found_.rows.push_back(std::move(row));
  }

 private:
  struct Origin {
    std::unique_ptr<TimedEvent> event;
    int64_t host_ns = 0;
  };

  static Origin origin_of(c10::DeviceIndex device, std::vector<std::string>& errors) {
    const c10::Stream stream(c10::Stream::DEFAULT, c10::Device(kDriverDevice, device));
    Origin origin;
    for (int round = 0; round < 2; ++round) {  // the first may wait for pending work
      int32_t status = BRINGUP_OK;
      const int64_t before = c10::getTime();
      origin.event = TimedEvent::record(stream, status);
      if (status != BRINGUP_OK) {
        errors.push_back("recording a timed event: " + driver_error_text(status));
        return {};
      }
      origin.event->wait();
      origin.host_ns = before + (c10::getTime() - before) / 2;
    }
    return origin;
  }

  int32_t stream_number(c10::DeviceIndex device, c10::StreamId stream) {
    if (stream == 0) return 0;
    const auto next = static_cast<int32_t>(streams_.size()) + 1;
    return streams_.try_emplace({device, stream}, next).first->second;
  }

  std::unique_ptr<TimedEvent> mark(const ProfiledRow& row, const c10::Stream& stream) {
    int32_t status = BRINGUP_OK;
    std::unique_ptr<TimedEvent> event = TimedEvent::record(stream, status);
    if (status == BRINGUP_OK) return event;
    std::lock_guard lock(mutex_);
    found_.errors.push_back(row.name + ": recording a timed event: " + driver_error_text(status));
    return nullptr;
  }

  bool take_times(ProfiledRow& row, std::vector<std::string>& errors) {
    const Origin& origin = origins_[static_cast<size_t>(row.device)];
    if (origin.event == nullptr) return false;  // reported when the recording began
    row.end->wait();
    int64_t offset = 0;
    int64_t length = 0;
    int32_t status = origin.event->nanoseconds_to(*row.start, offset);
    if (status == BRINGUP_OK) status = row.start->nanoseconds_to(*row.end, length);
    if (status != BRINGUP_OK || length < 0) {
      errors.push_back(row.name + ": the time between two events: " +
                       (length < 0 ? "the driver gave a negative one" : driver_error_text(status)));
      return false;
    }
    row.start_ns = origin.host_ns + offset;
    row.end_ns = row.start_ns + length;
    return true;
  }

  std::mutex mutex_;
  uint64_t recording_ = 0;
  ProfiledRows found_;
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, int32_t> streams_;
  std::array<Origin, kMaxDevices> origins_;
  DriverRecords records_;
};

void ProfiledWork::begin(const char* name, const c10::Stream& stream, bool by_driver) noexcept {
  stream_ = stream;
  row_ = Recorder::instance().begin(name, stream, by_driver);
}

void ProfiledWork::begin_copy(bringup_copy_kind kind, size_t bytes,
                              const c10::Stream& stream) noexcept {
  begin(kind == BRINGUP_HOST_TO_DEVICE   ? "Memcpy HtoD"
        : kind == BRINGUP_DEVICE_TO_HOST ? "Memcpy DtoH"
                                         : "Memcpy DtoD",
        stream);
  if (row_ == nullptr) return;
  row_->kind = ProfiledRow::Kind::kCopy;
  row_->bytes = bytes;
}

void ProfiledWork::begin_fill(ProfiledFill fill, const c10::Stream& stream) noexcept {
  begin("Memset", stream);
  if (row_ == nullptr) return;
  row_->kind = ProfiledRow::Kind::kFill;
  row_->bytes = fill.bytes;
}

void ProfiledWork::end() noexcept { Recorder::instance().end(std::move(row_), stream_); }

void start_recording() noexcept { Recorder::instance().start(); }
ProfiledRows stop_recording() noexcept { return Recorder::instance().stop(); }

void push_correlation(uint64_t id) { t_correlations.push_back(id); }
void pop_correlation() noexcept {
  if (!t_correlations.empty()) t_correlations.pop_back();
}

namespace {

using torch::profiler::impl::ProfilerVoidEventStub;

// torch's older way: an event before and after every operator, in the current stream. What it
// tells is the time between them, with the gaps in which the stream waited for the host.
class DriverStubs final : public torch::profiler::impl::ProfilerStubs {
 public:
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event,
              int64_t* cpu_ns) const override {
    const c10::DeviceIndex current = current_device();
    int32_t status = BRINGUP_OK;
    std::shared_ptr<TimedEvent> marked = TimedEvent::record(current_stream(current), status);
    check_driver(status, "recording an event for the profiler");
    if (cpu_ns != nullptr) *cpu_ns = c10::getTime();
    if (device != nullptr) *device = current;
    *event = std::move(marked);
  }

  // Microseconds; a time that is none (the device changed in between, or the driver has no answer)
  // is -1, which torch leaves out.
  float elapsed(const ProfilerVoidEventStub* event,
                const ProfilerVoidEventStub* event2) const override {
    const auto* start = static_cast<const TimedEvent*>(event->get());
    const auto* end = static_cast<const TimedEvent*>(event2->get());
    if (start == nullptr || end == nullptr || start->device() != end->device()) return -1;
    start->wait();
    end->wait();
    int64_t nanoseconds = 0;
    if (start->nanoseconds_to(*end, nanoseconds) != BRINGUP_OK || nanoseconds < 0) return -1;
    return static_cast<float>(nanoseconds) / 1e3F;
  }

  // The driver has no ranges to mark.
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}

  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> visit) const override {
    for (c10::DeviceIndex device = 0; device < driver_facts().device_count; ++device) {
      const c10::DeviceGuard guard(c10::Device(kDriverDevice, device));
      visit(device);
    }
  }
  void synchronize() const override {
    for (c10::DeviceIndex device = 0; device < driver_facts().device_count; ++device) {
      check_driver(wait_for_device(device), "waiting for a device");
    }
  }
};

}  // namespace

void register_profiler() {
  static auto* stubs = new DriverStubs;  // torch keeps a plain pointer to it
  torch::profiler::impl::registerPrivateUse1Methods(stubs);
  register_kineto();
}

}  // namespace bringup::torch_ext
