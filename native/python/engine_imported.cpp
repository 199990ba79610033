#include "engine_imported.h"

#include <nanobind/stl/vector.h>

#include <map>

#include "engine/pattern/pattern_elements.h"
#include "engine/util/error.h"
#include "engine_handles.h"
#include "engine_pattern.h"

namespace nb = nanobind;

namespace bringup::python {
namespace {

template <class Number>
nb::tuple numbers(const std::vector<Number>& given) {
  return nb::tuple(nb::cast(given));
}

nb::tuple kinds_of(uint32_t kinds) {
  nb::list names;
  for (const auto& [name, bit] : en::kKindNames) {
    if ((kinds & en::bit_of(bit)) != 0) names.append(name);
  }
  return nb::tuple(names);
}

nb::object size_of(const en::DimPattern& size) {
  switch (size.kind) {
    case en::DimPattern::Kind::kNumber:
      return nb::int_(size.number);
    case en::DimPattern::Kind::kName:
      return text(size.name);
    case en::DimPattern::Kind::kRest:
      return nb::ellipsis();
    case en::DimPattern::Kind::kAny:
      break;
  }
  return nb::none();
}

// One graph being built again. Without a pattern it is a replacement.
class Import {
 public:
  Import(const en::Graph& graph, nb::handle host, GraphCore* rewritten, const en::Pattern* pattern)
      : graph_(graph),
        host_(host),
        rewritten_(rewritten),
        pattern_(pattern),
        made_(host.attr("graph")(std::string(graph.name()).c_str())) {}

  nb::object run() {
    for (en::NodeId node = graph_.first(); node != graph_.last(); node = graph_.next(node)) {
      add(node);
    }
    for (const auto& [node, call] : calls_) {
      for (const en::NodeId source : graph_.control_inputs(node)) {
        made_.attr("add_control_edge")(source_of(source), call);
      }
    }
    nb::list outputs;
    for (const en::ValueId output : graph_.outputs()) outputs.append(value(output));
    made_.attr("set_outputs")(*nb::tuple(outputs));
    return made_;
  }

  nb::object value(en::ValueId given) const { return values_.at(given); }

  // {(node, index): value}
  nb::dict values() const {
    nb::dict all;
    for (const auto& [place, made] : values_) all[nb::make_tuple(place.node, place.index)] = made;
    return all;
  }

 private:
  void add(en::NodeId node) {
    const en::Operator* op = &graph_.op(node);
    const nb::object name = text(graph_.name(node));
    if (op == en::Operators::input()) {
      const nb::object input = made_.attr("add_input")(name);
      values_.emplace(en::ValueId{node, 0}, input);
      calls_.emplace(node, input.attr("node"));
    } else if (op == en::Operators::constant()) {
      const nb::object payload = payload_of(node);
      values_.emplace(en::ValueId{node, 0},
                      made_.attr("add_constant")(payload, nb::arg("name") = name));
    } else if (op == en::outer_operator()) {
      const en::ValueId outer = en::outer_value(graph_, node, rewritten_->graph);
      values_.emplace(en::ValueId{node, 0}, take(value_handle(*rewritten_, outer)));
    } else {
      add_call(node);
    }
  }

  nb::object payload_of(en::NodeId node) const {
    const en::ConstantData* data = graph_.payload(node);
    if (data != nullptr) return host_.attr("payload")(*constant_fields(*data));
    en::throw_error(en::ErrorCode::kInvalid, "constant ", en::in_quotes(graph_.name_text(node)),
                    " has no data");
  }

  void add_call(en::NodeId node) {
    const nb::tuple given = items_of(graph_.arguments(node));
    const bool is_choice = &graph_.op(node) == en::one_of_operator();
    const nb::object call =
        is_choice ? host_.attr("choice")(made_, given, choice_name(node))
                  : made_.attr("insert")(text(graph_.type(node)), given,
                                         nb::arg("output_count") = graph_.output_count(node));
    calls_.emplace(node, call);
    uint32_t index = 0;
    for (nb::handle output : call.attr("outputs")) {
      values_.emplace(en::ValueId{node, index++}, nb::borrow(output));
    }
  }

  nb::object source_of(en::NodeId source) const {
    const auto call = calls_.find(source);
    if (call != calls_.end()) return call->second;
    en::throw_error(en::ErrorCode::kInvalid, en::in_quotes(graph_.name_text(source)),
                    " is no node of this graph, so none of it can run after it");
  }

  nb::object choice_name(en::NodeId node) const {
    const auto found = pattern_->choices.find(node);
    return text(found == pattern_->choices.end() ? en::kEmptyString : found->second);
  }

  nb::tuple items_of(en::ArgumentSpan run) {
    nb::list items;
    for (size_t position = 0; position < run.size();) {
      const en::ArgumentSpan next = en::item_at(run, position);
      items.append(argument(next));
      position += next.size();
    }
    return nb::tuple(items);
  }

  nb::object argument(en::ArgumentSpan item) {
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
        return text(head.id);
      case en::Tag::kValue:
        return value(head.value);
      case en::Tag::kList:
        return items_of(item.subspan(1));
      case en::Tag::kOpaque:
        return opaque(head.id);
      case en::Tag::kSymbol:
        return symbol(head.id);
      case en::Tag::kDict:
      case en::Tag::kSlice:
        break;
    }
    en::throw_error(en::ErrorCode::kInvalid,
                    "an operator of Python takes no dict or slice as an argument");
  }

  nb::object opaque(uint32_t number) {
    if (pattern_ != nullptr && pattern_->open.contains(number)) {
      nb::object& known = pieces_[number];  // equal numbers, one object
      if (!known.is_valid()) {
        known = std::visit([this](const auto& what) { return piece(what); },
                           pattern_->open.at(number).what);
      }
      return known;
    }
    if (rewritten_ == nullptr || number >= rewritten_->objects.size()) {
      en::throw_error(en::ErrorCode::kInvalid, "there is no object number ", number);
    }
    return nb::borrow(rewritten_->objects.at(number));
  }

  nb::object symbol(en::StringId expression) const {
    PyObject* known = rewritten_ == nullptr ? nullptr : rewritten_->objects.symbol(expression);
    if (known != nullptr) return nb::borrow(known);
    en::throw_error(en::ErrorCode::kInvalid, "nothing in the graph is called ",
                    en::in_quotes(en::Strings::text(expression)));
  }

  nb::object piece(const en::AnyArgument& any) {
    nb::object among = nb::none();
    if (any.among) {
      nb::list items;
      for (const en::ArgumentList& item : *any.among) items.append(argument(item.items()));
      among = nb::tuple(items);
    }
    return host_.attr("any_value")(text(any.name), kinds_of(any.kinds), among, any.at_least,
                                   any.at_most);
  }

  nb::object piece(const en::ConstantArgument& constant) {
    nb::list values;
    for (const auto& value : constant.values) {
      values.append(value.is_whole ? nb::object(nb::int_(value.whole)) : nb::float_(value.real));
    }
    const nb::object sizes = constant.sizes ? nb::object(numbers(*constant.sizes)) : nb::none();
    return host_.attr("constant_value")(text(constant.name), nb::tuple(values), sizes,
                                        constant.atol, constant.rtol);
  }

  nb::object piece(const en::VariadicArgument& list) {
    const nb::object at_most = list.at_most ? nb::object(nb::int_(*list.at_most)) : nb::none();
    const nb::object each = list.each ? imported_pattern(*list.each, host_) : nb::none();
    return host_.attr("variadic")(text(list.name), list.at_least, at_most, each);
  }

  const en::Graph& graph_;
  nb::handle host_;
  GraphCore* rewritten_;
  const en::Pattern* pattern_;
  nb::object made_;
  std::unordered_map<en::ValueId, nb::object> values_;
  std::map<en::NodeId, nb::object> calls_;
  std::unordered_map<uint32_t, nb::object> pieces_;
};

// (value, dtypes, ranks, shape or None, devices)
nb::tuple constraint_of(nb::object value, const en::TensorConstraint& constraint) {
  nb::object shape = nb::none();
  if (constraint.shape) {
    nb::list sizes;
    for (const en::DimPattern& size : *constraint.shape) sizes.append(size_of(size));
    shape = nb::tuple(sizes);
  }
  return nb::make_tuple(std::move(value), texts(constraint.dtypes), numbers(constraint.ranks),
                        shape, texts(constraint.devices));
}

}  // namespace

nb::tuple constant_fields(const en::ConstantData& data) {
  const nb::bytes bytes(reinterpret_cast<const char*>(data.bytes.data()), data.bytes.size());
  return nb::make_tuple(text(data.dtype), numbers(data.sizes), bytes);
}

nb::object imported_graph(const en::Graph& graph, GraphCore& rewritten, nb::handle host) {
  return Import(graph, host, &rewritten, nullptr).run();
}

nb::object imported_pattern(const en::Pattern& pattern, nb::handle host) {
  Import import(*pattern.graph, host, nullptr, &pattern);
  const nb::object graph = import.run();
  for (const auto& [value, constraint] : pattern.constraints) {
    host.attr("where")(*constraint_of(import.value(value), constraint));
  }
  const nb::object made = host.attr("pattern")(graph, pattern.name.c_str(), pattern.constant_values,
                                               pattern.attributes);
  std::unordered_multimap<en::ValueId, en::StringId> names;
  for (const auto& [name, value] : pattern.captured_names) names.emplace(value, name);
  for (const en::ValueId value : pattern.captured) {
    const auto named = names.find(value);
    const en::StringId name = named == names.end() ? en::kEmptyString : named->second;
    if (named != names.end()) names.erase(named);
    made.attr("capture_tensor")(import.value(value), nb::arg("name") = text(name));
  }
  made.attr("library_values") = import.values();
  return made;
}

}  // namespace bringup::python
