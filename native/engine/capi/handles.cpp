#include "engine/capi/handles.h"

#include "engine/util/forever.h"

namespace bringup::engine {
namespace {

thread_local std::string last_error_text;
thread_local int32_t last_error_status = BRINGUP_ENGINE_OK;
thread_local std::string hook_error_text;
thread_local const PassContext* innermost_context = nullptr;

}  // namespace

Handles<GraphEntry>& graph_handles() { return forever<Handles<GraphEntry>>("graph"); }

Handles<ContextEntry>& context_handles() { return forever<Handles<ContextEntry>>("context"); }

std::shared_ptr<GraphEntry> graph_of(bringup_ir_graph handle) {
  std::shared_ptr<GraphEntry> entry = graph_handles().get(handle);
  if (entry->lent && entry->lender != std::this_thread::get_id()) {
    throw_error(ErrorCode::kExpired,
                "graph handle has expired: it was lent to a hook on another thread");
  }
  return entry;
}

std::shared_ptr<GraphEntry> take_graph(bringup_ir_graph handle) {
  if (graph_of(handle)->lent) {
    throw_error(ErrorCode::kInvalid,
                "the graph that is being rewritten cannot be handed over or released");
  }
  return graph_handles().take(handle);
}

std::shared_ptr<ContextEntry> context_of(bringup_pass_context handle) {
  std::shared_ptr<ContextEntry> entry = context_handles().get(handle);
  if (entry->lender == std::this_thread::get_id()) return entry;
  throw_error(ErrorCode::kExpired,
              "context handle has expired: it was given to a hook on another thread");
}

LentGraph::LentGraph(Graph& graph, const Providers& providers, bool shapes_withheld) {
  auto entry = std::make_shared<GraphEntry>();
  entry->graph = std::shared_ptr<Graph>(std::shared_ptr<void>(), &graph);
  entry->providers = std::shared_ptr<const Providers>(std::shared_ptr<void>(), &providers);
  entry->lent = true;
  entry->shapes_withheld = shapes_withheld;
  entry->lender = std::this_thread::get_id();
  handle_ = graph_handles().add(std::move(entry));
}

LentGraph::~LentGraph() { graph_handles().take(handle_); }

LentContext::LentContext(PassContext& context, std::vector<PatternPtr>* patterns)
    : outer_(innermost_context) {
  handle_ = context_handles().add(
      std::make_shared<ContextEntry>(ContextEntry{&context, std::this_thread::get_id(), patterns}));
  innermost_context = &context;
}

LentContext::~LentContext() {
  innermost_context = outer_;
  context_handles().take(handle_);
}

const PassContext* LentContext::current() { return innermost_context; }

const char* last_error() { return last_error_text.c_str(); }
void set_hook_error(const char* message) { hook_error_text = message != nullptr ? message : ""; }

void clear_hook_error() {
  hook_error_text.clear();
  last_error_status = BRINGUP_ENGINE_OK;
}

std::string take_hook_error(int32_t status) {
  std::string said = std::exchange(hook_error_text, {});
  const bool is_engines = status != BRINGUP_ENGINE_OK && status == last_error_status;
  return said.empty() && is_engines ? last_error_text : said;
}

int32_t status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalid:
    case ErrorCode::kBusy:
      return BRINGUP_ENGINE_INVALID;
    case ErrorCode::kMissing:
      return BRINGUP_ENGINE_NOT_FOUND;
    case ErrorCode::kExpired:
      return BRINGUP_ENGINE_EXPIRED;
    case ErrorCode::kDuplicate:
      return BRINGUP_ENGINE_DUPLICATE;
    case ErrorCode::kNoProvider:
      return BRINGUP_ENGINE_MISSING_PROVIDER;
    case ErrorCode::kSchema:
      return BRINGUP_ENGINE_SCHEMA;
    case ErrorCode::kPass:
    case ErrorCode::kFailed:
      return BRINGUP_ENGINE_FAILED;
    case ErrorCode::kInternal:
      return BRINGUP_ENGINE_INTERNAL;
  }
  return BRINGUP_ENGINE_INTERNAL;
}

int32_t note_exception() noexcept {
  last_error_status = BRINGUP_ENGINE_INTERNAL;
  try {
    throw;
  } catch (const EngineError& error) {
    last_error_text = error.what();
    last_error_status = status_of(error.code());
  } catch (const std::exception& error) {
    last_error_text = error.what();
  } catch (...) {
    last_error_text = "an exception that is no std::exception";
  }
  return last_error_status;
}

}  // namespace bringup::engine
