// The C API: running passes, and what came of it.
#include <algorithm>

#include "engine/capi/access.h"
#include "engine/capi/api.h"
#include "engine/capi/marshal.h"
#include "engine/run/host_sessions.h"
#include "engine/run/native_run.h"
#include "engine/run/registry.h"
#include "engine/util/forever.h"

namespace bringup::engine {
namespace {

Handles<const Report>& report_handles() { return forever<Handles<const Report>>("report"); }

Options options_of(const bringup_option* options, uint32_t count, const char* what) {
  if (count > 0) given(options, what);
  Options made;
  for (uint32_t index = 0; index < count; ++index) {
    const std::string key(text_given(options[index].key, "the key of an option"));
    made[key] = option_of(options[index].value);
  }
  return made;
}

Versions versions_of(const bringup_run_options& options) {
  Versions versions;
  for (const auto& [name, value] :
       options_of(options.versions, options.version_count, "versions")) {
    const std::string* version = std::get_if<std::string>(&value);
    if (version == nullptr) {
      throw_error(ErrorCode::kInvalid, "the version of pass ", in_quotes(name),
                  " must be a STRING");
    }
    versions[name] = *version;
  }
  return versions;
}

std::vector<RegistrationPtr> select(const bringup_run_options& options, const HostUse& host) {
  Selection selection;
  selection.versions = versions_of(options);
  if (options.names != nullptr) selection.names.emplace();
  for (uint32_t index = 0; options.names != nullptr && index < options.name_count; ++index) {
    selection.names->emplace_back(text_given(options.names[index], "the name of a pass"));
  }
  selection.on_host_graphs = host.sessions() != nullptr;
  return Registry::instance().select(selection);
}

void run_passes_of(GraphEntry& entry, const bringup_run_options* given_options,
                   bringup_run_report* report) {
  given(report, "report");
  if (entry.lent) {
    throw_error(ErrorCode::kInvalid, "a hook cannot run passes over the graph it rewrites");
  }
  check_has_no_pieces(*entry.graph, "graph");
  check_has_no_outer(*entry.graph, "graph");
  bringup_run_options options{};
  if (given_options != nullptr) options = whole(given_options, "options");
  RunSettings settings;
  settings.options = options_of(options.options, options.option_count, "options");
  settings.providers = *entry.providers;
  settings.infer_shapes = options.infer_shapes != 0;
  settings.fold = options.fold != 0;
  HostUse host(HostUse::When::kServed);  // before passes are held, which may be Python's objects
  const std::vector<RegistrationPtr> selected = select(options, host);
  if (std::none_of(selected.begin(), selected.end(),
                   [](const RegistrationPtr& pass) { return pass->of_host; })) {
    host.end();
  }
  settings.host = host.sessions();
  auto done = std::make_shared<const Report>(run_passes(*entry.graph, selected, settings));
  *report = report_handles().add(done);
  if (done->failed()) throw_error(ErrorCode::kFailed, done->failure);
}

void report_count(bringup_run_report report, uint32_t* count) {
  given(count, "count") = static_cast<uint32_t>(report_handles().get(report)->results.size());
}

void report_result(bringup_run_report report, uint32_t index, bringup_pass_result* out) {
  const auto done = report_handles().get(report);
  whole(out, "result");
  if (index >= done->results.size()) {
    throw no_number(std::to_string(done->results.size()) + " passes ran", index);
  }
  const PassResult& result = done->results[index];
  bringup_pass_result filled{};
  filled.outcome = static_cast<int32_t>(result.outcome);
  filled.stage = static_cast<int32_t>(result.stage);
  filled.status = static_cast<int32_t>(result.status);
  filled.matches = result.matches;
  filled.refused = result.refused;
  filled.edits = result.edits;
  filled.instance_id = result.instance_id;
  filled.seconds = result.seconds;
  filled.name = kept(result.name);
  filled.message = result.message.c_str();
  filled.traceback = result.traceback.c_str();
  filled.near_miss = result.near_misses.empty() ? "" : kept(result.near_misses.front().text());
  hand_out(filled, out);
}

void report_failure(bringup_run_report report, const char** message) {
  given(message, "message") = report_handles().get(report)->failure.c_str();
}

void report_release(bringup_run_report report) { report_handles().take(report); }

}  // namespace

void fill_running_functions(bringup_engine_api& table) {
  table.run_passes = api<run_passes_of>;
  table.report_count = api<report_count>;
  table.report_result = api<report_result>;
  table.report_failure = api<report_failure>;
  table.report_release = api<report_release>;
}

}  // namespace bringup::engine
