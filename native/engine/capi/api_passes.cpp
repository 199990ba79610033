// The C API: registering passes, and what a hook may ask its context.
#include "engine/capi/access.h"
#include "engine/capi/api.h"
#include "engine/capi/c_pass.h"
#include "engine/capi/marshal.h"
#include "engine/capi/plugin_loader.h"
#include "engine/run/creation.h"
#include "engine/run/registry.h"

namespace bringup::engine {
namespace {

std::vector<std::string> names_of(const char* const* names, const char* what) {
  constexpr size_t kMost = 4096;
  std::vector<std::string> listed;
  for (; names != nullptr && *names != nullptr; ++names) {
    if (listed.size() == kMost) throw_error(ErrorCode::kInvalid, what, " does not end with NULL");
    listed.push_back(*names);
  }
  return listed;
}

template <class Enum>
Enum chosen(int32_t given_number, int32_t count, const char* what) {
  if (given_number < 0 || given_number >= count) {
    throw_error(ErrorCode::kInvalid, "there is no ", what, " number ", given_number);
  }
  return static_cast<Enum>(given_number);
}

PassKind kind_of(int32_t kind) {
  constexpr PassKind kKinds[] = {PassKind::kFusionBase, PassKind::kPatternFusion,
                                 PassKind::kDecompose};
  return kKinds[chosen<uint32_t>(kind, 3, "kind of pass")];
}

PassDescriptor descriptor_of(const bringup_pass_definition& hooks) {
  PassDescriptor made;
  made.pass_name = text_given(hooks.name, "the name of a pass");
  made.kind = kind_of(hooks.kind);
  made.stage = chosen<Stage>(hooks.stage, kStageCount, "stage");
  made.class_qualname = hooks.class_name != nullptr ? hooks.class_name : made.pass_name;
  if (hooks.version != nullptr) made.version = hooks.version;
  made.priority = hooks.priority;
  made.policy = chosen<Policy>(hooks.policy, 3, "policy");
  made.max_rewrites = hooks.max_rewrites;
  made.repeat_until_stable = hooks.repeat_until_stable != 0;
  made.op_types = names_of(hooks.op_types, "op_types");
  made.requires_all = names_of(hooks.requires_all, "requires_all");
  made.after = names_of(hooks.after, "after");
  const Origin* origin = current_origin();
  made.module_name = origin != nullptr ? origin->module_name : "program";
  if (origin != nullptr) made.digest = origin->digest;
  return made;
}

// A pass that lacks the hooks of its kind is refused now, not when it runs.
void check_hooks(const PassDescriptor& descriptor, const bringup_pass_definition& hooks) {
  const char* missing = nullptr;
  if (descriptor.kind == PassKind::kFusionBase && hooks.run == nullptr) missing = "run";
  if (descriptor.kind == PassKind::kPatternFusion && hooks.patterns == nullptr) {
    missing = "patterns";
  }
  if (descriptor.kind == PassKind::kPatternFusion && hooks.replacement == nullptr) {
    missing = "replacement";
  }
  if (descriptor.kind == PassKind::kDecompose && hooks.replace_node == nullptr) {
    missing = "replace_node";
  }
  const bool is_driven = descriptor.kind != PassKind::kFusionBase;
  if (missing == nullptr && !(is_driven && hooks.run != nullptr)) return;
  throw_error(ErrorCode::kInvalid, "pass ", in_quotes(descriptor.pass_name), " of kind ",
              name_of(descriptor.kind),
              (missing != nullptr ? std::string(" has no hook ") + missing
                                  : " has a hook run: it is driven by its other hooks"));
}

void register_pass(const bringup_pass_definition* definition) {
  const auto hooks = whole(definition, "definition");
  Registration registration;
  registration.descriptor = descriptor_of(hooks);
  check_hooks(registration.descriptor, hooks);
  registration.create = create_c_pass;
  registration.definition = std::make_shared<PassDefinition>(PassDefinition{hooks});
  if (const Origin* origin = current_origin()) registration.library = origin->library;
  Registry::instance().add(std::move(registration));
}

void unregister_pass(const char* name, const char* version) {
  const std::string_view meant = text_given(name, "name");
  if (Registry::instance().remove(meant, version != nullptr ? version : "") > 0) return;
  throw_error(ErrorCode::kMissing, "no pass named ", in_quotes(meant), " is registered");
}

uint32_t pass_count() { return static_cast<uint32_t>(Registry::instance().all().size()); }

void pass_info(uint32_t index, bringup_pass_info* info) {
  whole(info, "info");
  const std::vector<RegistrationPtr> all = Registry::instance().all();
  if (index >= all.size()) {
    throw no_number(std::to_string(all.size()) + " passes are registered", index);
  }
  const PassDescriptor& descriptor = all[index]->descriptor;
  bringup_pass_info filled{};
  filled.kind = static_cast<int32_t>(descriptor.kind);
  filled.stage = static_cast<int32_t>(descriptor.stage);
  filled.priority = descriptor.priority;
  filled.policy = static_cast<int32_t>(descriptor.policy);
  filled.name = kept(descriptor.pass_name);
  filled.version = kept(descriptor.version);
  filled.module_name = kept(descriptor.module_name);
  filled.class_name = kept(descriptor.class_qualname);
  filled.descriptor_key = kept(descriptor.key());
  hand_out(filled, info);
}

void load_library(const char* path, uint32_t* count) {
  const auto passes = PluginLoader::instance().load(std::string(text_given(path, "path")));
  if (count != nullptr) *count = static_cast<uint32_t>(passes.size());
}

void unload_library(const char* path) {
  if (PluginLoader::instance().unload(std::string(text_given(path, "path")))) return;
  throw_error(ErrorCode::kMissing, "library ", in_quotes(path), " is not loaded");
}

void context_pass_name(ContextEntry& entry, const char** name) {
  given(name, "name") = kept(entry.context->descriptor.pass_name);
}

void context_instance_id(ContextEntry& entry, uint64_t* id) {
  given(id, "id") = entry.context->instance_id;
}

void context_option(ContextEntry& entry, const char* key, bringup_argument* value) {
  given(value, "value") = argument_of(entry.context->option(text_given(key, "key")));
}

}  // namespace

void fill_pass_functions(bringup_engine_api& table) {
  table.register_pass = api<register_pass>;
  table.unregister_pass = api<unregister_pass>;
  table.pass_count = pass_count;
  table.pass_info = api<pass_info>;
  table.load_library = api<load_library>;
  table.unload_library = api<unload_library>;
  table.context_pass_name = api<context_pass_name>;
  table.context_instance_id = api<context_instance_id>;
  table.context_option = api<context_option>;
}

}  // namespace bringup::engine
