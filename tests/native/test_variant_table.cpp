// The variant table and its keys: nothing is lost, nothing is mixed up, also while others insert.
// Row 3 of the feature table; how long a hit takes is in benchmarks/lookup.py.
#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

#include "check.h"
#include "runtime/variant_table.h"

namespace {

using bringup::runtime::Key128;
using bringup::runtime::KeyPacker;
using bringup::runtime::KeyReader;
using bringup::runtime::VariantTable;

// The fields of a rich operator: ABI, operator, device, dtypes, layouts, choices, buckets.
constexpr int kWidths[] = {8, 24, 8, 7, 7, 7, 7, 7, 2, 2, 2, 3, 1, 1, 7, 7, 7, 7, 4, 6, 4};
constexpr size_t kFields = std::size(kWidths);

std::vector<uint64_t> some_values() {
  std::vector<uint64_t> values;
  for (size_t i = 0; i < kFields; ++i) {
    values.push_back((0x9e3779b97f4a7c15u >> i) & ((uint64_t{1} << kWidths[i]) - 1));
  }
  return values;
}

Key128 pack(const std::vector<uint64_t>& values) {
  KeyPacker packer;
  for (size_t i = 0; i < kFields; ++i) packer.put(values[i], kWidths[i]);
  return packer.key();
}

// Stands for a binary.
const void* value_of(size_t number) { return reinterpret_cast<const void*>(number + 1); }

Key128 key_of(size_t number) { return {number % 7, number}; }

TEST(every_bit_of_every_field_alone_changes_the_key) {
  int total = 0;
  for (const int width : kWidths) total += width;
  CHECK_EQ(total, KeyPacker::kBits);
  const Key128 before = pack(some_values());
  for (size_t field = 0; field < kFields; ++field) {
    for (int bit = 0; bit < kWidths[field]; ++bit) {
      std::vector<uint64_t> changed = some_values();
      changed[field] ^= uint64_t{1} << bit;
      CHECK(!(pack(changed) == before));
    }
  }
}

TEST(a_reader_takes_out_what_was_put_in) {
  const std::vector<uint64_t> values = some_values();
  KeyReader reader(pack(values));
  for (size_t i = 0; i < kFields; ++i) CHECK_EQ(reader.take(kWidths[i]), values[i]);
}

TEST(a_field_may_lie_across_the_middle) {
  KeyPacker packer;
  packer.put(1, 60);
  packer.put(0x155, 9);
  packer.put(1, 59);
  KeyReader reader(packer.key());
  CHECK_EQ(reader.take(60), 1u);
  CHECK_EQ(reader.take(9), 0x155u);
  CHECK_EQ(reader.take(59), 1u);
}

TEST(what_is_not_there_is_null) {
  VariantTable table;
  CHECK(table.find({}) == nullptr);
  table.insert({1, 2}, value_of(0));
  CHECK(table.find({2, 1}) == nullptr);
  CHECK(table.find({1, 3}) == nullptr);
}

TEST(the_first_value_under_a_key_stays) {
  VariantTable table;
  CHECK(table.insert({1, 2}, value_of(0)) == value_of(0));
  CHECK(table.insert({1, 2}, value_of(1)) == value_of(0));
  CHECK(table.find({1, 2}) == value_of(0));
  CHECK_EQ(table.size(), 1u);
}

TEST(a_table_that_grew_has_everything) {
  VariantTable table;
  constexpr size_t kMany = 5000;
  for (size_t i = 0; i < kMany; ++i) table.insert(key_of(i), value_of(i));
  CHECK_EQ(table.size(), kMany);
  for (size_t i = 0; i < kMany; ++i) CHECK(table.find(key_of(i)) == value_of(i));
  CHECK(table.find(key_of(kMany)) == nullptr);
}

// Writers insert parts of the same keys while readers look all of them up.
TEST(lookups_go_on_while_others_insert) {
  constexpr size_t kKeys = 2000;
  constexpr size_t kWriters = 3;
  constexpr size_t kReaders = 3;
  VariantTable table;
  std::atomic<size_t> wrong{0};
  std::atomic<size_t> writing{kWriters};
  std::barrier start(kWriters + kReaders);
  std::vector<std::thread> threads;
  for (size_t writer = 0; writer < kWriters; ++writer) {
    threads.emplace_back([&, writer] {
      start.arrive_and_wait();
      // Every key is inserted by two writers.
      for (size_t i = 0; i < kKeys; ++i) {
        if (i % kWriters == writer) continue;
        if (table.insert(key_of(i), value_of(i)) != value_of(i)) ++wrong;
      }
      --writing;
    });
  }
  for (size_t reader = 0; reader < kReaders; ++reader) {
    threads.emplace_back([&] {
      start.arrive_and_wait();
      std::vector<bool> seen(kKeys, false);
      bool last = false;
      while (!last) {
        last = writing.load() == 0;
        for (size_t i = 0; i < kKeys; ++i) {
          const void* found = table.find(key_of(i));
          if (found != nullptr && found != value_of(i)) ++wrong;
          if (found == nullptr && (seen[i] || last)) ++wrong;  // once there, there for ever
          seen[i] = found != nullptr;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0u);
  CHECK_EQ(table.size(), kKeys);
}

TEST(one_of_many_writers_of_a_key_wins_and_all_learn_who) {
  constexpr size_t kThreads = 8;
  VariantTable table;
  std::barrier start(kThreads);
  std::vector<const void*> inserted(kThreads);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      inserted[i] = table.insert({5, 5}, value_of(i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const void* one : inserted) CHECK(one == table.find({5, 5}));
  CHECK_EQ(table.size(), 1u);
}

}  // namespace
