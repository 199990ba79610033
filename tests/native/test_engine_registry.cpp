// The registry: what is refused, which version runs, in which order, and creators.
#include <atomic>
#include <thread>

#include "check.h"
#include "engine/run/pass.h"
#include "engine/run/registry.h"
#include "engine/util/error.h"

using namespace bringup::engine;

namespace {

class Nothing : public Pass {};

Selection of_names(std::vector<std::string> names) {
  Selection selection;
  selection.names = std::move(names);
  return selection;
}

Selection of_version(const std::string& name, const std::string& version) {
  Selection selection;
  selection.versions[name] = version;
  return selection;
}

Registration registration(const std::string& name, const std::string& version = "1",
                          const std::string& class_name = "Class") {
  Registration made;
  made.descriptor.pass_name = name;
  made.descriptor.class_qualname = class_name;
  made.descriptor.module_name = "tests";
  made.descriptor.version = version;
  made.descriptor.digest = "d1";
  made.create = []() -> std::unique_ptr<Pass> { return std::make_unique<Nothing>(); };
  return made;
}

std::string names(const std::vector<RegistrationPtr>& passes) {
  std::string text;
  for (const RegistrationPtr& pass : passes) text += pass->descriptor.pass_name + " ";
  return text;
}

}  // namespace

// Duplicate key refused.
TEST(another_class_with_a_taken_name_and_version_is_refused_and_the_first_stays) {
  Registry registry;
  CHECK(registry.add(registration("P")));
  CHECK_THROWS(registry.add(registration("P", "1", "Other")), EngineError,
               "a pass named 'P' is registered already, by tests.Class; it stays");
  CHECK_EQ(registry.find("P")->descriptor.class_qualname, "Class");
  CHECK_EQ(registry.all().size(), 1u);
}

TEST(same_definition_again_changes_nothing) {
  Registry registry;
  CHECK(registry.add(registration("P")));
  CHECK(!registry.add(registration("P")));
  Registration changed = registration("P");
  changed.descriptor.digest = "d2";
  CHECK_THROWS(registry.add(changed), EngineError, "is registered already");
  Registration unknown = registration("Q");
  unknown.descriptor.digest = "";
  CHECK(registry.add(unknown));
  CHECK_THROWS(registry.add(unknown), EngineError, "is registered already");
}

TEST(newest_version_runs_unless_one_is_named) {
  Registry registry;
  registry.add(registration("P", "1.9", "Old"));
  registry.add(registration("P", "1.10", "New"));
  registry.add(registration("Q"));
  CHECK_EQ(registry.all().size(), 3u);
  CHECK_EQ(registry.find("P")->descriptor.version, "1.10");
  CHECK_EQ(registry.find("P", "1.9.0")->descriptor.class_qualname, "Old");
  CHECK(registry.find("P", "2") == nullptr);
  CHECK_EQ(registry.find_by_key("tests:Old:P")->descriptor.version, "1.9");
  CHECK_EQ(registry.select()[0]->descriptor.version, "1.10");
  CHECK_EQ(registry.select(of_version("P", "1.9"))[0]->descriptor.version, "1.9");
  CHECK_THROWS(registry.select(of_version("P", "2")), EngineError,
               "pass 'P' has no version '2'; there are ['1.10', '1.9']");
  CHECK_EQ(registry.remove("P", "1.10"), 1u);
  CHECK_EQ(registry.find("P")->descriptor.version, "1.9");
}

TEST(selection_names_a_pass_that_is_missing) {
  Registry registry;
  registry.add(registration("P"));
  const Selection both = of_names({"P", "Z"});
  CHECK_THROWS(registry.select(both), EngineError, "no pass named 'Z' is registered");
}

// Wrong stage; kind and policy likewise.
TEST(unknown_stage_kind_and_policy_are_refused_by_name) {
  CHECK_THROWS(stage_named("Never"), EngineError, "there is no stage 'Never'; there are Before");
  CHECK_THROWS(kind_named("x"), EngineError, "there is no kind of pass 'x'");
  CHECK_THROWS(policy_named("x"), EngineError, "there is no policy 'x'; there are fail");
  CHECK(stage_named("AfterInferShape") == Stage::kAfterInferShape);
  CHECK(kind_named("legacy_custom") == PassKind::kLegacyCustom);
}

TEST(incomplete_registration_is_refused) {
  Registry registry;
  CHECK_THROWS(registry.add(registration("")), EngineError, "its name is empty");
  CHECK_THROWS(registry.add(registration("P", "new")), EngineError, "made of numbers and dots");
  Registration decompose = registration("P");
  decompose.descriptor.kind = PassKind::kDecompose;
  CHECK_THROWS(registry.add(decompose), EngineError, "op_types is empty");
  Registration empty = registration("P");
  empty.create = nullptr;
  CHECK_THROWS(registry.add(empty), EngineError, "has no creator");
  CHECK(registry.all().empty());
}

TEST(order_is_by_stage_constraints_priority_and_name) {
  Registry registry;
  const auto add = [&](const char* name, Stage stage, int32_t priority,
                       std::vector<std::string> after = {},
                       std::vector<std::string> requires_all = {}) {
    Registration made = registration(name);
    made.descriptor.stage = stage;
    made.descriptor.priority = priority;
    made.descriptor.after = std::move(after);
    made.descriptor.requires_all = std::move(requires_all);
    registry.add(std::move(made));
  };
  add("late", Stage::kAfterOriginGraphOptimize, 9);
  add("b", Stage::kAfterInferShape, 0);
  add("a", Stage::kAfterInferShape, 0);
  add("urgent", Stage::kAfterInferShape, 5, {"b", "absent"});
  add("early", Stage::kBeforeInferShape, 0);
  add("needy", Stage::kAfterInferShape, 7, {}, {"early", "a"});
  CHECK_EQ(names(registry.select()), "early a needy b urgent late ");
}

TEST(contradicting_constraints_are_refused) {
  Registry registry;
  Registration a = registration("a"), b = registration("b");
  a.descriptor.after = {"b"};
  b.descriptor.after = {"a"};
  registry.add(a);
  registry.add(b);
  CHECK_THROWS(registry.select(), EngineError,
               "these passes shall run after each other in a circle: a -> b -> a");
  CHECK_EQ(names(registry.select(of_names({"a"}))), "a ");
  registry.clear();
  a.descriptor.after = {};
  a.descriptor.requires_all = {"gone"};
  registry.add(a);
  CHECK_THROWS(registry.select(), EngineError, "pass 'a' requires 'gone', which is not");
  registry.clear();
  a.descriptor.requires_all = {};
  a.descriptor.after = {"b"};
  a.descriptor.stage = Stage::kBeforeInferShape;
  b.descriptor.after = {};
  registry.add(a);
  registry.add(b);
  CHECK_THROWS(registry.select(), EngineError,
               "shall run after 'b', which runs in the later stage");
}

TEST(required_pass_is_selected_too_and_cannot_be_switched_off_alone) {
  Registry registry;
  Registration a = registration("a"), b = registration("b"), c = registration("c");
  b.descriptor.requires_all = {"a"};
  c.descriptor.after = {"a"};
  for (const Registration& pass : {a, b, c}) registry.add(pass);
  CHECK_EQ(names(registry.select(of_names({"b"}))), "a b ");
  CHECK_EQ(names(registry.select(of_names({"c"}))), "c ");
  Selection switched = of_names({"b"});
  switched.switches = {{"ALL", false}, {"b", true}};
  CHECK_THROWS(registry.select(switched), EngineError,
               "pass 'b' requires 'a', which is switched off: switch 'b' off too");
  switched.switches = {{"b", false}};
  CHECK_EQ(names(registry.select(switched)), "");
}

TEST(passes_of_the_host_run_on_its_graphs_only) {
  Registry registry;
  Registration mine = registration("mine");
  mine.of_host = true;
  registry.add(mine);
  registry.add(registration("any"));
  CHECK_EQ(names(registry.select()), "any ");
  CHECK_THROWS(registry.select(of_names({"mine"})), EngineError,
               "pass 'mine' belongs to the host program and runs only on graphs of that");
  Selection all;
  all.on_host_graphs = true;
  CHECK_EQ(names(registry.select(all)), "any mine ");
}

// A duplicate name rolls back all registrations of a plugin.
TEST(batch_is_seen_as_a_whole_or_not_at_all) {
  Registry registry;
  registry.add(registration("taken"));
  {
    Batch batch(registry);
    registry.add(registration("half"));
    CHECK_THROWS(registry.add(registration("taken", "1", "Other")), EngineError, "is registered");
    CHECK(registry.find("half") == nullptr);
  }
  CHECK(registry.find("half") == nullptr);
  Batch batch(registry);
  registry.add(registration("one"));
  registry.add(registration("two"));
  {
    Batch nested(registry);
    registry.add(registration("inner"));
    CHECK_EQ(nested.commit().size(), 1u);
  }
  CHECK_EQ(names(registry.all()), "inner taken ");
  CHECK_EQ(batch.commit().size(), 2u);
  CHECK_EQ(names(registry.all()), "inner one taken two ");
}

TEST(name_taken_while_a_batch_was_open_refuses_the_whole_batch) {
  Registry registry;
  Batch batch(registry);
  registry.add(registration("one"));
  registry.add(registration("two"));
  std::thread([&] { registry.add(registration("two", "1", "Other")); }).join();
  CHECK_THROWS(batch.commit(), EngineError, "is registered already, by tests.Other");
  CHECK_EQ(names(registry.all()), "two ");
}

namespace {

std::string created_name;

class Inner : public Pass {};

std::unique_ptr<Pass> make_inner() { return std::make_unique<Inner>(); }

std::unique_ptr<Pass> make_outer() {
  Registration inner = registration("inner");
  inner.create = make_inner;
  make_instance(inner);
  created_name = creating().descriptor.pass_name;
  return std::make_unique<Nothing>();
}

}  // namespace

// The creation context is restored after a nested creation.
TEST(creator_learns_what_it_makes_also_after_making_another) {
  Registration outer = registration("outer");
  outer.create = make_outer;
  make_instance(outer);
  CHECK_EQ(created_name, "outer");
  CHECK_THROWS(creating(), EngineError, "no pass is being created on this thread");
  outer.create = []() -> std::unique_ptr<Pass> { return nullptr; };
  CHECK_THROWS(make_instance(outer), EngineError, "the creator of pass 'outer' made nothing");
}

TEST(threads_register_one_definition_once) {
  Registry registry;
  std::atomic<int> added{0};
  std::vector<std::thread> threads;
  for (int index = 0; index < 8; ++index) {
    threads.emplace_back([&] {
      for (int number = 0; number < 50; ++number) {
        if (registry.add(registration("P" + std::to_string(number)))) ++added;
        (void)registry.select();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(added.load(), 50);
  CHECK_EQ(registry.all().size(), 50u);
}
