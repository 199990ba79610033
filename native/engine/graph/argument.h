// Arguments of nodes: values, host values and nestings of these, flat and in prefix form.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/util/strings.h"

namespace bringup::engine {

using NodeId = uint32_t;  // an index in its graph, never used again after an erase
inline constexpr NodeId kNoNode = UINT32_MAX;

struct ValueId {
  NodeId node = kNoNode;
  uint32_t index = 0;
  friend bool operator==(const ValueId&, const ValueId&) = default;
};

enum class Tag : uint8_t {
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kSymbol,  // a symbolic integer; its id is that of its expression's text
  kOpaque,  // any other object of the host, which gives equal objects the same id
  kValue,
  kList,
  kDict,   // key, item, key, item, ...; a key is a leaf
  kSlice,  // start, stop, step
};

struct Argument {
  Tag tag = Tag::kNone;
  uint32_t extent = 0;  // how many arguments follow that belong to this one; 0 for a leaf
  union {
    int64_t integer;  // kBool, kInt
    double number;    // kFloat
    uint32_t id;      // kString, kSymbol, kOpaque
    ValueId value;    // kValue
    uint32_t count;   // kList, kDict, kSlice: direct items (a dict has two a pair)
  };

  Argument() : integer(0) {}  // kNone
  static Argument none() { return {}; }
  static Argument of_bool(bool given) { return of(Tag::kBool, &Argument::integer, int64_t{given}); }
  static Argument of_int(int64_t given) { return of(Tag::kInt, &Argument::integer, given); }
  static Argument of_float(double given) { return of(Tag::kFloat, &Argument::number, given); }
  static Argument of_string(StringId given) { return of(Tag::kString, &Argument::id, given); }
  static Argument of_symbol(StringId given) { return of(Tag::kSymbol, &Argument::id, given); }
  static Argument of_opaque(uint32_t given) { return of(Tag::kOpaque, &Argument::id, given); }
  static Argument of_value(ValueId given) { return of(Tag::kValue, &Argument::value, given); }
  bool is_nest() const { return tag >= Tag::kList; }

 private:
  template <class T>
  static Argument of(Tag tag, T Argument::*member, T given) {
    Argument argument;
    argument.tag = tag;
    argument.*member = given;
    return argument;
  }
};
static_assert(sizeof(Argument) == 16);

// A run of arguments side by side.
using ArgumentSpan = std::span<const Argument>;

// Builds a run: put leaves, open and close nests. `count` is the number of items at the top.
class ArgumentList {
 public:
  void put(Argument leaf);
  void put_all(ArgumentSpan items);  // whole items, nests included
  void open(Tag nest);               // kList, kDict or kSlice
  void close();                      // the nest opened last
  void clear();
  ArgumentSpan items() const { return items_; }
  uint32_t count() const { return count_; }

 private:
  std::vector<Argument> items_;
  std::vector<uint32_t> open_;
  uint32_t count_ = 0;
};

// Whether the extents and counts of a run fit together, and it has `count` items at the top.
bool well_formed(ArgumentSpan items, uint32_t count);

// Whether two runs mean the same: types must agree (True is not 1, and 1 not 1.0), numbers to the
// bit; a symbolic integer that is a number equals this number.
bool same(ArgumentSpan left, ArgumentSpan right);

// The item at `position` of a run with all that belongs to it.
inline ArgumentSpan item_at(ArgumentSpan run, size_t position) {
  return run.subspan(position, size_t{1} + run[position].extent);
}

// Item number `index` of a run or of the inside of a nest; empty when there are fewer.
ArgumentSpan item(ArgumentSpan run, uint32_t index);

// Every value in a run, in order; `visit` takes a ValueId.
template <class Visit>
void for_each_value(ArgumentSpan run, Visit&& visit) {
  for (const Argument& argument : run) {
    if (argument.tag == Tag::kValue) visit(argument.value);
  }
}

}  // namespace bringup::engine

template <>
struct std::hash<bringup::engine::ValueId> {
  size_t operator()(const bringup::engine::ValueId& value) const noexcept {
    return (uint64_t{value.node} * 0x9e3779b97f4a7c15u) ^ (uint64_t{value.index} << 32);
  }
};
