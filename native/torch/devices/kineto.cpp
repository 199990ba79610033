// The driver's work as rows of Kineto, the collector behind torch.profiler. Compiled alone: its
// headers want a header-only fmt.
#include "torch/devices/profiler.h"

#ifdef USE_KINETO
#include <c10/util/Exception.h>
#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <set>
#include <utility>

#include "torch/devices/state.h"

namespace bringup::torch_ext {
namespace {

using libkineto::ActivityType;

ActivityType activity_type(ProfiledRow::Kind kind) {
  switch (kind) {
    case ProfiledRow::Kind::kCopy:
      return ActivityType::GPU_MEMCPY;
    case ProfiledRow::Kind::kFill:
      return ActivityType::GPU_MEMSET;
    case ProfiledRow::Kind::kKernel:
      break;
  }
  return ActivityType::CONCURRENT_KERNEL;
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    start_recording();
    status_ = libkineto::TraceStatus::RECORDING;
  }
  void stop() override {
    found_ = stop_recording();
    warn_of_errors();
    status_ = libkineto::TraceStatus::PROCESSING;
  }
  std::vector<std::string> errors() override { return found_.errors; }

  void pushCorrelationId(uint64_t id) override { push_correlation(id); }
  void popCorrelationId() override { pop_correlation(); }

  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, 0);
  }
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked,
                    int64_t, int64_t) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span.name = driver_facts().device_name;
    for (const auto& row : found_.rows) {
      buffer_->emplace_activity(buffer_->span, activity_type(row->kind), row->name);
      libkineto::GenericTraceActivity& activity = *buffer_->activities.back();
      activity.startTime = row->start_ns;
      activity.endTime = row->end_ns;
      activity.device = row->device;
      activity.resource = row->stream;
      activity.id = static_cast<int32_t>(row->correlation);
      if (row->correlation != 0) activity.linked = linked(activity.id);
      if (row->kind != ProfiledRow::Kind::kKernel) activity.addMetadata("bytes", row->bytes);
      logger.handleGenericActivity(activity);
    }
  }

  // Kineto names devices and streams itself.
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return nullptr; }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }

  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return std::move(buffer_);
  }

 private:
  // Kineto keeps what errors() says to itself.
  void warn_of_errors() const {
    constexpr size_t kTold = 3;
    const auto& errors = found_.errors;
    for (size_t i = 0; i < errors.size() && i < kTold; ++i) TORCH_WARN("profiler: ", errors[i]);
    if (errors.size() > kTold) {
      TORCH_WARN("profiler: ", errors.size() - kTold, " more errors of this kind");
    }
  }

  ProfiledRows found_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return activities_; }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& wanted, const libkineto::Config&) override {
    if (wanted.count(ActivityType::CONCURRENT_KERNEL) == 0) return nullptr;
    return std::make_unique<Session>();
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<ActivityType>& wanted,
      const libkineto::Config& config) override {
    return configure(wanted, config);
  }

 private:
  const std::string name_ = "bringup driver " + driver_facts().device_name;
  const std::set<ActivityType> activities_ = {ActivityType::CONCURRENT_KERNEL,
                                              ActivityType::GPU_MEMCPY, ActivityType::GPU_MEMSET};
};

}  // namespace

void register_kineto() {
  torch::profiler::impl::PrivateUse1ProfilerRegistry::instance().registerFactory(
      [] { return std::make_unique<Profiler>(); });
}

}  // namespace bringup::torch_ext
#else
namespace bringup::torch_ext {
void register_kineto() {}
}  // namespace bringup::torch_ext
#endif
