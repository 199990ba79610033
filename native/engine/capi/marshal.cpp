#include "engine/capi/marshal.h"

namespace bringup::engine {
namespace {

constexpr int kDeepestGiven = 64;
constexpr uint32_t kLongest = 1u << 24;
constexpr int32_t kHighestRank = 64;

static_assert(static_cast<int>(Tag::kNone) == BRINGUP_ARGUMENT_NONE &&
              static_cast<int>(Tag::kValue) == BRINGUP_ARGUMENT_VALUE &&
              static_cast<int>(Tag::kSlice) == BRINGUP_ARGUMENT_SLICE);

void put_at(ArgumentList& list, const Pieces& pieces, const bringup_argument& argument, int depth);

void put_nest(ArgumentList& list, const Pieces& pieces, const bringup_argument& argument,
              int depth) {
  if (depth >= kDeepestGiven) refuse_argument("an argument is nested too deeply");
  if (argument.count > kLongest) refuse_argument("an argument has too many items");
  if (argument.kind == BRINGUP_ARGUMENT_DICT && argument.count % 2 != 0) {
    refuse_argument("a dict has a key without an item");
  }
  if (argument.kind == BRINGUP_ARGUMENT_SLICE && argument.count != 3) {
    refuse_argument("a slice has a start, a stop and a step");
  }
  if (argument.count > 0) given(argument.of.items, "items of an argument");
  list.open(static_cast<Tag>(argument.kind));
  for (uint32_t index = 0; index < argument.count; ++index) {
    put_at(list, pieces, argument.of.items[index], depth + 1);
  }
  list.close();
}

void put_at(ArgumentList& list, const Pieces& pieces, const bringup_argument& argument, int depth) {
  switch (argument.kind) {
    case BRINGUP_ARGUMENT_NONE:
      return list.put(Argument::none());
    case BRINGUP_ARGUMENT_BOOL:
      return list.put(Argument::of_bool(argument.of.integer != 0));
    case BRINGUP_ARGUMENT_INT:
      return list.put(Argument::of_int(argument.of.integer));
    case BRINGUP_ARGUMENT_FLOAT:
      return list.put(Argument::of_float(argument.of.number));
    case BRINGUP_ARGUMENT_STRING:
      return list.put(
          Argument::of_string(Strings::intern(text_given(argument.of.text, "a string argument"))));
    case BRINGUP_ARGUMENT_SYMBOL:
      return list.put(
          Argument::of_symbol(Strings::intern(text_given(argument.of.text, "a symbol"))));
    case BRINGUP_ARGUMENT_OPAQUE:
      if (argument.of.handle >= kFirstPiece) refuse_argument("there is no such object");
      return list.put(Argument::of_opaque(static_cast<uint32_t>(argument.of.handle)));
    case BRINGUP_ARGUMENT_VALUE:
      return list.put(Argument::of_value({argument.of.value.node, argument.of.value.index}));
    case BRINGUP_ARGUMENT_ANY: {
      const char* name = argument.of.text != nullptr ? argument.of.text : "";
      return list.put(Argument::of_opaque(kFirstOpen + Strings::intern(name)));
    }
    case BRINGUP_ARGUMENT_PIECE:
      return list.put(Argument::of_opaque(pieces.number_of(argument.of.handle)));
    case BRINGUP_ARGUMENT_LIST:
    case BRINGUP_ARGUMENT_DICT:
    case BRINGUP_ARGUMENT_SLICE:
      return put_nest(list, pieces, argument, depth);
    default:
      refuse_argument("there is no kind of argument ", argument.kind);
  }
}

bringup_argument number_argument(uint32_t kind, int64_t number) {
  bringup_argument argument{kind, 0, {}};
  argument.of.integer = number;
  return argument;
}

bringup_argument text_argument(uint32_t kind, std::string_view text) {
  bringup_argument argument{kind, 0, {}};
  argument.of.text = kept(text);
  return argument;
}

std::vector<Dim> dims_of(const int64_t* numbers, const char* const* texts, int32_t rank) {
  std::vector<Dim> dims;
  for (int32_t index = 0; index < rank; ++index) {
    Dim dim;
    if (texts != nullptr && texts[index] != nullptr) {
      dim.number = -1;
      dim.symbol = Strings::intern(texts[index]);
    } else {
      dim.number = numbers[index];
      if (dim.number < 0) refuse_argument("a size is negative and has no text");
    }
    dims.push_back(dim);
  }
  return dims;
}

std::pair<int64_t*, const char**> arrays_of(GraphEntry& entry, const std::vector<Dim>& dims) {
  auto* numbers = entry.array<int64_t>(dims.size());
  auto** texts = entry.array<const char*>(dims.size());
  for (size_t index = 0; index < dims.size(); ++index) {
    const bool is_static = dims[index].is_static();
    numbers[index] = is_static ? dims[index].number : -1;
    texts[index] = is_static ? nullptr : Strings::text(dims[index].symbol).data();
  }
  return {numbers, texts};
}

}  // namespace

void put(ArgumentList& list, const Pieces& pieces, const bringup_argument& argument) {
  put_at(list, pieces, argument, 0);
}

ArgumentList list_of(const Pieces& pieces, const bringup_argument* arguments, uint32_t count) {
  if (count > kLongest) refuse_argument("too many arguments");
  if (count > 0) given(arguments, "arguments");
  ArgumentList list;
  for (uint32_t index = 0; index < count; ++index) put(list, pieces, arguments[index]);
  return list;
}

OptionValue option_of(const bringup_argument& argument) {
  switch (argument.kind) {
    case BRINGUP_ARGUMENT_NONE:
      return std::monostate();
    case BRINGUP_ARGUMENT_BOOL:
      return argument.of.integer != 0;
    case BRINGUP_ARGUMENT_INT:
      return argument.of.integer;
    case BRINGUP_ARGUMENT_FLOAT:
      return argument.of.number;
    case BRINGUP_ARGUMENT_STRING:
      return std::string(text_given(argument.of.text, "a string option"));
    default:
      refuse_argument("an option is NONE, BOOL, INT, FLOAT or STRING");
  }
}

bringup_argument argument_of(const OptionValue& option) {
  if (const bool* value = std::get_if<bool>(&option)) {
    return number_argument(BRINGUP_ARGUMENT_BOOL, *value ? 1 : 0);
  }
  if (const int64_t* value = std::get_if<int64_t>(&option)) {
    return number_argument(BRINGUP_ARGUMENT_INT, *value);
  }
  if (const double* value = std::get_if<double>(&option)) {
    bringup_argument argument{BRINGUP_ARGUMENT_FLOAT, 0, {}};
    argument.of.number = *value;
    return argument;
  }
  if (const std::string* value = std::get_if<std::string>(&option)) {
    return text_argument(BRINGUP_ARGUMENT_STRING, *value);
  }
  return bringup_argument{BRINGUP_ARGUMENT_NONE, 0, {}};
}

bringup_argument argument_of(GraphEntry& entry, ArgumentSpan found) {
  const Argument& head = found.front();
  bringup_argument argument{BRINGUP_ARGUMENT_NONE, 0, {}};
  switch (head.tag) {
    case Tag::kNone:
      return argument;
    case Tag::kBool:
      return number_argument(BRINGUP_ARGUMENT_BOOL, head.integer);
    case Tag::kInt:
      return number_argument(BRINGUP_ARGUMENT_INT, head.integer);
    case Tag::kFloat:
      argument.kind = BRINGUP_ARGUMENT_FLOAT;
      argument.of.number = head.number;
      return argument;
    case Tag::kString:
      return text_argument(BRINGUP_ARGUMENT_STRING, Strings::text(head.id));
    case Tag::kSymbol:
      return text_argument(BRINGUP_ARGUMENT_SYMBOL, Strings::text(head.id));
    case Tag::kOpaque:
      if (is_open(head)) return text_argument(BRINGUP_ARGUMENT_ANY, Strings::text(open_name(head)));
      argument.kind = is_piece(head) ? BRINGUP_ARGUMENT_PIECE : BRINGUP_ARGUMENT_OPAQUE;
      argument.of.handle = is_piece(head) ? entry.pieces.handle_of(head.id) : head.id;
      return argument;
    case Tag::kValue:
      argument.kind = BRINGUP_ARGUMENT_VALUE;
      argument.of.value = {head.value.node, head.value.index};
      return argument;
    case Tag::kList:
      argument.kind = BRINGUP_ARGUMENT_LIST;
      break;
    case Tag::kDict:
      argument.kind = BRINGUP_ARGUMENT_DICT;
      break;
    case Tag::kSlice:
      argument.kind = BRINGUP_ARGUMENT_SLICE;
      break;
  }
  auto* items = entry.array<bringup_argument>(head.count);
  const ArgumentSpan inside = found.subspan(1);
  size_t position = 0;
  for (uint32_t index = 0; index < head.count; ++index) {
    const ArgumentSpan next = item_at(inside, position);
    items[index] = argument_of(entry, next);
    position += next.size();
  }
  argument.count = head.count;
  argument.of.items = items;
  return argument;
}

TensorDesc desc_of(const bringup_tensor_desc& given_desc) {
  const bringup_tensor_desc desc = whole(&given_desc, "a description");
  if (desc.rank < 0 || desc.rank > kHighestRank) {
    refuse_argument("a description has rank ", desc.rank);
  }
  if (desc.rank > 0) given(desc.shape, "the shape of a description");
  TensorDesc made;
  made.sizes = dims_of(desc.shape, desc.shape_text, desc.rank);
  if (desc.strides != nullptr) made.strides = dims_of(desc.strides, desc.stride_text, desc.rank);
  made.dtype = Strings::intern(text_given(desc.dtype, "the dtype of a description"));
  made.device = Strings::intern(desc.device != nullptr ? desc.device : "cpu");
  return made;
}

void fill(GraphEntry& entry, const TensorDesc& desc, bringup_tensor_desc& out) {
  bringup_tensor_desc filled{};
  filled.rank = static_cast<int32_t>(desc.sizes.size());
  std::tie(filled.shape, filled.shape_text) = arrays_of(entry, desc.sizes);
  if (!desc.strides.empty() || desc.sizes.empty()) {
    std::tie(filled.strides, filled.stride_text) = arrays_of(entry, desc.strides);
  }
  filled.dtype = Strings::text(desc.dtype).data();
  filled.device = Strings::text(desc.device).data();
  hand_out(filled, &out);
}

ConstantData constant_of(const bringup_constant& given_constant) {
  const bringup_constant constant = whole(&given_constant, "a constant");
  if (constant.rank < 0 || constant.rank > kHighestRank) {
    refuse_argument("a constant has rank ", constant.rank);
  }
  if (constant.rank > 0) given(constant.shape, "the shape of a constant");
  if (constant.bytes > 0) given(static_cast<const char*>(constant.data), "the data of a constant");
  ConstantData made;
  made.dtype = Strings::intern(text_given(constant.dtype, "the dtype of a constant"));
  made.sizes.assign(constant.shape, constant.shape + constant.rank);
  for (const int64_t size : made.sizes) {
    if (size < 0) refuse_argument("a size of a constant is negative");
  }
  const auto* first = static_cast<const std::byte*>(constant.data);
  auto copy = std::make_shared<std::vector<std::byte>>(first, first + constant.bytes);
  made.bytes = *copy;
  made.owner = std::move(copy);
  return made;
}

void fill(GraphEntry& entry, const ConstantData& data, bringup_constant& out) {
  bringup_constant filled{};
  filled.rank = static_cast<int32_t>(data.sizes.size());
  auto* shape = entry.array<int64_t>(data.sizes.size());
  std::copy(data.sizes.begin(), data.sizes.end(), shape);
  filled.shape = shape;
  filled.dtype = Strings::text(data.dtype).data();
  filled.data = data.bytes.data();
  filled.bytes = data.bytes.size();
  hand_out(filled, &out);
}

}  // namespace bringup::engine
