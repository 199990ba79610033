// How generated functions reach the launches of a graph: given by one thread beside launches and
// questions of others. ThreadSanitizer has it under `make tsan`.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "check.h"
#include "torch/graphs/handover.h"

namespace {

int values = 0;  // that nodes are given; the launches' thread has them

// Plain members, as those of the graph's: only launches touch them.
struct Functions {
  explicit Functions(int its_number) : number(its_number) {}
  ~Functions() { alive -= 1; }
  bool begin() { return ++launches > 0 && usable; }
  void take_values() { taken = values; }

  const int number;
  bool usable = true;
  int launches = 0, taken = -1;
  static inline std::atomic<int> alive = 0;
};
using Handover = bringup::torch_ext::graphs::Handover<Functions>;

std::shared_ptr<Functions> made(int number) {
  Functions::alive += 1;
  return std::make_shared<Functions>(number);
}

}  // namespace

TEST(a_launch_takes_what_is_there_when_it_begins_and_values_as_they_are_then) {
  Handover handover;
  CHECK(handover.begin() == nullptr);
  handover.give(nullptr, "not compiled yet");
  CHECK(handover.begin() == nullptr);
  CHECK_EQ(handover.given().second, "not compiled yet");
  handover.give(made(1), "");
  Functions* functions = handover.begin();
  REQUIRE(functions != nullptr);
  CHECK_EQ(functions->taken, values);
  handover.give(made(2), "");
  CHECK_EQ(Functions::alive, 2);  // a launch may be under way with the first
  ++values;
  handover.values_changed();
  functions = handover.begin();
  CHECK_EQ(functions->number, 2);
  CHECK_EQ(functions->taken, values);
  CHECK_EQ(Functions::alive, 1);
  functions->taken = -1;
  CHECK_EQ(handover.begin()->taken, -1);  // nothing has changed
  functions->usable = false;
  CHECK(handover.begin() == nullptr);
  CHECK(handover.given().first != nullptr);
}

TEST(functions_come_beside_launches_and_questions) {
  constexpr int kCount = 50;
  constexpr auto kUnordered = std::memory_order_relaxed;  // orders nothing that the locks must
  {
    Handover handover;
    std::atomic<bool> over = false;
    std::atomic<int> launches = 0, questions = 0;
    std::thread giver([&] {
      for (int i = 1; i <= kCount; ++i) {
        const int launch = launches.load(kUnordered), question = questions.load(kUnordered);
        handover.give(i % 3 == 0 ? nullptr : made(i), "none");
        while (launches.load(kUnordered) == launch || questions.load(kUnordered) == question) {
          std::this_thread::yield();
        }
      }
      over = true;
    });
    std::thread asker([&] {
      for (int last = 0; !over; questions.fetch_add(1, kUnordered)) {
        const auto functions = handover.given().first;
        if (functions == nullptr) continue;
        CHECK(functions->number >= last);
        last = functions->number;
      }
    });
    int last = 0;
    for (bool at_the_end = false; !at_the_end; launches.fetch_add(1, kUnordered)) {
      at_the_end = over;
      if (launches.load(kUnordered) % 3 == 0) {
        ++values;
        handover.values_changed();
      }
      Functions* const functions = handover.begin();
      if (functions == nullptr) continue;
      CHECK(functions->number >= last);
      CHECK_EQ(functions->taken, values);
      last = functions->number;
    }
    CHECK_EQ(last, kCount);
    giver.join();
    asker.join();
  }
  CHECK_EQ(Functions::alive, 0);
}
