// Strings, operators and arguments of the engine.
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engine_graphs.h"

namespace {

using namespace bringup::engine;
using engine_graphs::facts_of;
using engine_graphs::text;

// Keys that collide, from a few homes, in random order: as a map that is known to be right.
TEST(flat_map_agrees_with_a_map_whatever_is_added_and_taken) {
  std::mt19937 random(7);
  FlatMap<uint32_t, int, UINT32_MAX> flat;
  std::map<uint32_t, int> right;
  for (int step = 0; step < 20'000; ++step) {
    const uint32_t key = random() % 97;
    if (random() % 5 < 3) {
      flat.insert(key, step);
      right.emplace(key, step);
    } else {
      flat.erase(key);
      right.erase(key);
    }
    const uint32_t asked = random() % 97;
    const int* found = flat.find(asked);
    CHECK_EQ(found != nullptr, right.contains(asked));
    if (found != nullptr) CHECK_EQ(*found, right[asked]);
    CHECK_EQ(flat.size(), right.size());
  }
}

TEST(user_list_holds_each_user_once_however_many) {
  std::mt19937 random(3);
  for (uint32_t limit : {3u, 10u, 100u}) {
    UserList list;
    std::set<NodeId> right;
    for (int step = 0; step < 5'000; ++step) {
      const NodeId user = random() % limit;
      if (random() % 2 == 0 && !right.contains(user)) {
        list.add(user);
        list.add(user);
        right.insert(user);
      } else {
        list.remove(user);
        right.erase(user);
      }
      const std::span<const NodeId> nodes = list.nodes();
      CHECK_EQ(nodes.size(), right.size());
      CHECK(std::set<NodeId>(nodes.begin(), nodes.end()) == right);
    }
  }
}

TEST(equal_texts_have_one_id_and_other_texts_another) {
  CHECK_EQ(text("aten::add"), text(std::string("aten::") + "add"));
  CHECK(text("aten::add") != text("aten::sub"));
  CHECK_EQ(Strings::text(text("aten::add")), "aten::add");
  CHECK_EQ(text(""), kEmptyString);
  CHECK(!Strings::find("nobody interned this").has_value());
  CHECK_EQ(Strings::find("aten::add").value_or(kNoString), text("aten::add"));
}

TEST(long_texts_and_many_texts_keep_their_place) {
  const std::string big(100'000, 'x');
  const StringId id = text(big);
  std::vector<StringId> ids;
  for (int i = 0; i < 10'000; ++i) ids.push_back(text("many" + std::to_string(i)));
  for (int i = 0; i < 10'000; ++i) CHECK_EQ(Strings::text(ids[i]), "many" + std::to_string(i));
  CHECK_EQ(Strings::text(id), big);
}

TEST(threads_agree_about_ids) {
  std::vector<std::vector<StringId>> seen(4);
  {
    std::vector<std::jthread> threads;
    for (auto& mine : seen) {
      threads.emplace_back([&mine] {
        for (int i = 0; i < 2000; ++i) mine.push_back(text("shared" + std::to_string(i)));
        for (int i = 0; i < 2000; ++i)
          CHECK_EQ(Strings::text(mine[i]), "shared" + std::to_string(i));
      });
    }
  }
  for (const auto& mine : seen) CHECK(mine == seen.front());
  CHECK_EQ(std::set<StringId>(seen[0].begin(), seen[0].end()).size(), 2000);
}

TEST(operators_of_equal_facts_are_one) {
  const Operator* add = Operators::intern(facts_of("t::add", 2));
  CHECK(add == Operators::intern(facts_of("t::add", 2)));
  Operator writing = facts_of("t::add", 2);
  writing.mutates = {0};
  const Operator* other = Operators::intern(writing);
  CHECK(other != add);
  CHECK(other->number != add->number);
  CHECK(add->pure() && !other->pure());
  CHECK_EQ(add->index_of(text("b")).value_or(9), 1);
  CHECK(!add->index_of(text("z")).has_value());
}

TEST(nests_are_flat_with_their_extents) {
  ArgumentList list;
  list.put(Argument::of_int(1));
  list.open(Tag::kList);
  list.put(Argument::of_float(2.0));
  list.open(Tag::kSlice);
  for (int i = 0; i < 3; ++i) list.put(Argument::none());
  list.close();
  list.close();
  list.put(Argument::of_bool(true));
  CHECK_EQ(list.count(), 3);
  CHECK(well_formed(list.items(), 3));
  CHECK_EQ(list.items()[1].extent, 5);
  CHECK_EQ(list.items()[1].count, 2);
  CHECK_EQ(item(list.items(), 1).size(), 6);
  CHECK(item(list.items(), 2).front().tag == Tag::kBool);
  CHECK(item(list.items(), 3).empty());
  ArgumentList copy;
  copy.put_all(list.items());
  CHECK_EQ(copy.count(), 3);
  CHECK(same(copy.items(), list.items()));
}

TEST(ill_formed_runs_are_recognised) {
  ArgumentList list;
  list.open(Tag::kList);
  list.put(Argument::of_int(1));
  list.close();
  std::vector<Argument> items(list.items().begin(), list.items().end());
  CHECK(well_formed(items, 1));
  CHECK(!well_formed(items, 2));
  items[0].extent = 7;
  CHECK(!well_formed(items, 1));
  items[0].extent = 1;
  items[0].count = 2;
  CHECK(!well_formed(items, 1));
  items[1].extent = 1;
  CHECK(!well_formed(std::span(items).subspan(1), 1));
}

TEST(nests_that_are_too_deep_are_ill_formed) {
  ArgumentList list;
  for (int i = 0; i < 100'000; ++i) list.open(Tag::kList);
  for (int i = 0; i < 100'000; ++i) list.close();
  CHECK(!well_formed(list.items(), 1));
}

bool same_leaf(Argument left, Argument right) { return same({&left, 1}, {&right, 1}); }

TEST(arguments_are_the_same_only_with_their_type) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(!same_leaf(Argument::of_int(1), Argument::of_bool(true)));
  CHECK(!same_leaf(Argument::of_int(1), Argument::of_float(1.0)));
  CHECK(same_leaf(Argument::of_float(nan), Argument::of_float(nan)));
  CHECK(!same_leaf(Argument::of_float(nan), Argument::of_float(std::nan("1"))));
  CHECK(!same_leaf(Argument::of_float(0.0), Argument::of_float(-0.0)));
  CHECK(!same_leaf(Argument::none(), Argument::of_int(0)));
  CHECK(!same_leaf(Argument::of_string(text("s0")), Argument::of_symbol(text("s0"))));
  CHECK(same_leaf(Argument::of_symbol(text("2*s0")), Argument::of_symbol(text("2*s0"))));
  CHECK(same_leaf(Argument::of_symbol(text("4")), Argument::of_int(4)));
  CHECK(!same_leaf(Argument::of_int(5), Argument::of_symbol(text("4"))));
  CHECK(!same_leaf(Argument::of_value({1, 0}), Argument::of_value({1, 1})));
}

}  // namespace
