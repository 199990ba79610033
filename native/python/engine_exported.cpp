#include "engine_exported.h"

#include "engine/pattern/pattern_elements.h"
#include "engine/util/error.h"
#include "engine_handles.h"

namespace nb = nanobind;

namespace bringup::python {
namespace {

nb::str text_of(en::StringId id) {
  const std::string_view text = en::Strings::text(id);
  return nb::str(text.data(), text.size());
}

nb::tuple texts_of(const std::vector<en::StringId>& ids) {
  nb::list texts;
  for (const en::StringId id : ids) texts.append(text_of(id));
  return nb::tuple(texts);
}

template <class Number>
nb::tuple numbers_of(const std::vector<Number>& numbers) {
  nb::list all;
  for (const Number number : numbers) all.append(number);
  return nb::tuple(all);
}

nb::tuple value_tuple(en::ValueId value) {
  return nb::make_tuple("value", value.node, value.index);
}

nb::tuple kinds_of(uint8_t kinds) {
  constexpr std::pair<uint8_t, const char*> kNames[] = {
      {en::AnyArgument::kBool, "bool"},    {en::AnyArgument::kInt, "int"},
      {en::AnyArgument::kFloat, "float"},  {en::AnyArgument::kString, "str"},
      {en::AnyArgument::kNone, "none"},    {en::AnyArgument::kList, "list"},
      {en::AnyArgument::kTensor, "tensor"}};
  nb::list names;
  for (const auto& [bit, name] : kNames) {
    if ((kinds & bit) != 0) names.append(name);
  }
  return nb::tuple(names);
}

nb::object size_of(const en::DimPattern& size) {
  switch (size.kind) {
    case en::DimPattern::Kind::kNumber:
      return nb::int_(size.number);
    case en::DimPattern::Kind::kName:
      return text_of(size.name);
    case en::DimPattern::Kind::kRest:
      return nb::ellipsis();
    case en::DimPattern::Kind::kAny:
      break;
  }
  return nb::none();
}

class Exported {
 public:
  Exported(const en::Graph& graph, GraphCore* objects, const en::Pattern* pattern)
      : graph_(graph), objects_(objects), pattern_(pattern) {}

  nb::tuple run() const {
    nb::list nodes;
    for (en::NodeId node = graph_.first(); node != graph_.last(); node = graph_.next(node)) {
      nodes.append(node_tuple(node));
    }
    nb::list outputs;
    for (const en::ValueId value : graph_.outputs()) outputs.append(value_tuple(value));
    return nb::make_tuple(std::string(graph_.name()).c_str(), nodes, outputs);
  }

 private:
  nb::tuple node_tuple(en::NodeId node) const {
    if (&graph_.op(node) == en::outer_operator()) return outer_tuple(node);
    const en::ConstantData* data = graph_.payload(node);
    return nb::make_tuple(node, text_of(graph_.type(node)), text_of(graph_.name(node)),
                          nb::tuple(run_of(graph_.arguments(node))), graph_.output_count(node),
                          data == nullptr ? nb::none() : nb::object(constant_tuple(*data)),
                          numbers_of(graph_.control_inputs(node)));
  }

  // A value of the graph that is being rewritten stands as itself.
  nb::tuple outer_tuple(en::NodeId node) const {
    const en::ValueId value = en::outer_value(graph_, node, objects_->graph);
    const nb::object handle = nb::steal(value_handle(*objects_, value).release());
    return nb::make_tuple(node, text_of(graph_.type(node)), text_of(graph_.name(node)),
                          nb::make_tuple(handle), 1, nb::none(), nb::tuple());
  }

  nb::list run_of(en::ArgumentSpan run) const {
    nb::list items;
    for (size_t position = 0; position < run.size();) {
      const en::ArgumentSpan next = en::item_at(run, position);
      items.append(argument(next));
      position += next.size();
    }
    return items;
  }

  nb::object argument(en::ArgumentSpan item) const {
    const en::Argument& head = item.front();
    switch (head.tag) {
      case en::Tag::kNone:
        return nb::none();
      case en::Tag::kBool:
        return nb::bool_(head.integer != 0);
      case en::Tag::kInt:
        return nb::int_(head.integer);
      case en::Tag::kFloat:
        return nb::float_(head.number);
      case en::Tag::kString:
        return text_of(head.id);
      case en::Tag::kValue:
        return value_tuple(head.value);
      case en::Tag::kList:
        return run_of(item.subspan(1));
      case en::Tag::kOpaque:
        return opaque(head.id);
      case en::Tag::kSymbol:
        return symbol(head.id);
      case en::Tag::kDict:
      case en::Tag::kSlice:
        break;
    }
    throw en::EngineError(en::ErrorCode::kInvalid,
                          "an operator of Python takes no dict or slice as an argument");
  }

  nb::object opaque(uint32_t number) const {
    if (pattern_ != nullptr) {
      const auto open = pattern_->open.find(number);
      if (open != pattern_->open.end()) {
        return std::visit([this](const auto& what) { return nb::object(piece(what)); },
                          open->second.what);
      }
    }
    if (objects_ == nullptr || number >= objects_->objects.size()) {
      throw en::EngineError(en::ErrorCode::kInvalid,
                            "there is no object number " + std::to_string(number));
    }
    return nb::borrow(objects_->objects.at(number));
  }

  nb::object symbol(en::StringId expression) const {
    PyObject* known = objects_ != nullptr ? objects_->objects.symbol(expression) : nullptr;
    if (known != nullptr) return nb::borrow(known);
    throw en::EngineError(en::ErrorCode::kInvalid, "nothing in the graph is called " +
                                                       en::quoted(en::Strings::text(expression)));
  }

  nb::tuple piece(const en::AnyArgument& any) const {
    nb::object among = nb::none();
    if (any.among) {
      nb::list items;
      for (const en::ArgumentList& item : *any.among) items.append(argument(item.items()));
      among = items;
    }
    return nb::make_tuple("any", text_of(any.name), kinds_of(any.kinds), among, any.at_least,
                          any.at_most);
  }

  nb::tuple piece(const en::ConstantArgument& constant) const {
    nb::list values;
    for (const auto& value : constant.values) {
      values.append(value.is_whole ? nb::object(nb::int_(value.whole)) : nb::float_(value.real));
    }
    const nb::object sizes =
        constant.sizes ? nb::object(numbers_of(*constant.sizes)) : nb::object(nb::none());
    return nb::make_tuple("constant", text_of(constant.name), nb::tuple(values), sizes,
                          constant.atol, constant.rtol);
  }

  nb::tuple piece(const en::VariadicArgument& list) const {
    const nb::object at_most =
        list.at_most ? nb::object(nb::int_(*list.at_most)) : nb::object(nb::none());
    const nb::object each =
        list.each != nullptr ? nb::object(exported_pattern(*list.each)) : nb::object(nb::none());
    return nb::make_tuple("list", text_of(list.name), list.at_least, at_most, each);
  }

  const en::Graph& graph_;
  GraphCore* objects_;
  const en::Pattern* pattern_;
};

// (value, dtypes, ranks, shape or None, devices)
nb::tuple constraint_tuple(en::ValueId value, const en::TensorConstraint& constraint) {
  nb::object shape = nb::none();
  if (constraint.shape) {
    nb::list sizes;
    for (const en::DimPattern& size : *constraint.shape) sizes.append(size_of(size));
    shape = nb::tuple(sizes);
  }
  return nb::make_tuple(value_tuple(value), texts_of(constraint.dtypes),
                        numbers_of(constraint.ranks), shape, texts_of(constraint.devices));
}

}  // namespace

nb::tuple constant_tuple(const en::ConstantData& data) {
  const nb::bytes bytes(reinterpret_cast<const char*>(data.bytes.data()), data.bytes.size());
  return nb::make_tuple(text_of(data.dtype), numbers_of(data.sizes), bytes);
}

nb::tuple exported_graph(const en::Graph& graph, GraphCore& objects) {
  return Exported(graph, &objects, nullptr).run();
}

nb::tuple exported_pattern(const en::Pattern& pattern) {
  nb::list captured;
  for (const en::ValueId value : pattern.captured) captured.append(value_tuple(value));
  nb::dict names;
  for (const auto& [name, value] : pattern.captured_names)
    names[text_of(name)] = value_tuple(value);
  nb::list constraints;
  for (const auto& [value, constraint] : pattern.constraints) {
    constraints.append(constraint_tuple(value, constraint));
  }
  nb::dict choices;
  for (const auto& [node, name] : pattern.choices) choices[nb::int_(node)] = text_of(name);
  return nb::make_tuple(pattern.name.c_str(), Exported(*pattern.graph, nullptr, &pattern).run(),
                        captured, names, constraints, choices, pattern.constant_values,
                        pattern.attributes);
}

}  // namespace bringup::python
