#include "engine/graph/argument.h"

#include <string>

#include "engine/util/numbers.h"

namespace bringup::engine {
namespace {

bool symbol_is(StringId symbol, int64_t number) {
  return Strings::text(symbol) == std::to_string(number);
}

bool same_one(const Argument& left, const Argument& right) {
  if (left.tag != right.tag) {
    if (left.tag == Tag::kSymbol && right.tag == Tag::kInt)
      return symbol_is(left.id, right.integer);
    if (left.tag == Tag::kInt && right.tag == Tag::kSymbol)
      return symbol_is(right.id, left.integer);
    return false;
  }
  switch (left.tag) {
    case Tag::kNone:
      return true;
    case Tag::kBool:
    case Tag::kInt:
      return left.integer == right.integer;
    case Tag::kFloat:
      return same_number(left.number, right.number);
    case Tag::kString:
    case Tag::kSymbol:
    case Tag::kOpaque:
      return left.id == right.id;
    case Tag::kValue:
      return left.value == right.value;
    case Tag::kList:
    case Tag::kDict:
    case Tag::kSlice:
      return left.extent == right.extent && left.count == right.count;
  }
  return false;
}

constexpr int kDeepest = 200;  // nests in nests; a hostile caller must not exhaust the stack

bool fits(ArgumentSpan items, uint32_t count, int depth);

// How many arguments the item at the front takes; 0 when it does not fit into `run`.
size_t measure(ArgumentSpan run, int depth) {
  if (run.empty() || depth > kDeepest) return 0;
  const Argument& front = run.front();
  const size_t length = size_t{1} + front.extent;
  if (length > run.size()) return 0;
  if (!front.is_nest()) return front.extent == 0 ? 1 : 0;
  if (front.tag == Tag::kDict && front.count % 2 != 0) return 0;
  if (front.tag == Tag::kSlice && front.count != 3) return 0;
  return fits(run.subspan(1, front.extent), front.count, depth + 1) ? length : 0;
}

bool fits(ArgumentSpan items, uint32_t count, int depth) {
  size_t position = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const size_t length = measure(items.subspan(position), depth);
    if (length == 0) return false;
    position += length;
  }
  return position == items.size();
}

}  // namespace

void ArgumentList::put(Argument leaf) {
  if (open_.empty()) {
    ++count_;
  } else {
    ++items_[open_.back()].count;
  }
  items_.push_back(leaf);
}

void ArgumentList::put_all(ArgumentSpan items) {
  for (size_t i = 0; i < items.size(); i += size_t{1} + items[i].extent) {
    const ArgumentSpan one = item_at(items, i);
    put(one.front());
    items_.insert(items_.end(), one.begin() + 1, one.end());
  }
}

void ArgumentList::open(Tag nest) {
  Argument head;
  head.tag = nest;
  head.count = 0;
  put(head);
  open_.push_back(static_cast<uint32_t>(items_.size() - 1));
}

void ArgumentList::close() {
  const uint32_t head = open_.back();
  open_.pop_back();
  items_[head].extent = static_cast<uint32_t>(items_.size() - head - 1);
}

void ArgumentList::clear() {
  items_.clear();
  open_.clear();
  count_ = 0;
}

bool well_formed(ArgumentSpan items, uint32_t count) { return fits(items, count, 0); }

bool same(ArgumentSpan left, ArgumentSpan right) {
  if (left.size() != right.size()) return false;
  for (size_t i = 0; i < left.size(); ++i) {
    if (!same_one(left[i], right[i])) return false;
  }
  return true;
}

ArgumentSpan item(ArgumentSpan run, uint32_t index) {
  size_t position = 0;
  for (; index > 0 && position < run.size(); --index) position += size_t{1} + run[position].extent;
  return position < run.size() ? item_at(run, position) : ArgumentSpan{};
}

}  // namespace bringup::engine
