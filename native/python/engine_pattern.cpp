#include "engine_pattern.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include "engine_handles.h"

namespace nb = nanobind;

namespace bringup::python {
namespace {

en::StringId text_of(nb::handle text) { return string_of(text.ptr()); }

nb::tuple fields(nb::handle given) { return nb::cast<nb::tuple>(given); }

// The graph of a core, which keeps it alive.
std::shared_ptr<const en::Graph> shared_graph(GraphCore& core) {
  PyObject* held = Py_NewRef(core.self);
  return std::shared_ptr<const en::Graph>(&core.graph, [held](const en::Graph*) {
    const nb::gil_scoped_acquire acquired;
    Py_DECREF(held);
  });
}

uint32_t kinds_of(nb::handle names) {
  uint32_t kinds = 0;
  for (nb::handle name : names) {
    for (const auto& [kind, bit] : en::kKindNames) {
      if (nb::cast<std::string_view>(name) == kind) kinds |= en::bit_of(bit);
    }
  }
  return kinds;
}

// (name, kinds, among, at_least, at_most)
en::AnyArgument any_of(GraphCore& core, const nb::tuple& given) {
  en::AnyArgument made;
  made.name = text_of(given[0]);
  made.kinds = kinds_of(given[1]);
  if (!given[2].is_none()) {
    made.among.emplace();
    for (nb::handle item : nb::borrow(given[2])) {
      convert(core, item.ptr(), made.among->emplace_back());
    }
  }
  made.at_least = nb::cast<double>(given[3]);
  made.at_most = nb::cast<double>(given[4]);
  return made;
}

// (name, values, sizes, atol, rtol)
en::ConstantArgument constant_of(const nb::tuple& given) {
  en::ConstantArgument made;
  made.name = text_of(given[0]);
  for (nb::handle item : nb::borrow(given[1])) {
    const bool is_whole = PyLong_Check(item.ptr());
    made.values.push_back({is_whole, is_whole ? nb::cast<int64_t>(item) : 0,
                           is_whole ? 0.0 : nb::cast<double>(item)});
  }
  if (!given[2].is_none()) {
    made.sizes.emplace();
    for (nb::handle size : nb::borrow(given[2])) made.sizes->push_back(nb::cast<int64_t>(size));
  }
  made.atol = nb::cast<double>(given[3]);
  made.rtol = nb::cast<double>(given[4]);
  return made;
}

// (name, at_least, at_most, each)
en::VariadicArgument variadic_of(PatternCore& core, const nb::tuple& given) {
  en::VariadicArgument made;
  made.name = text_of(given[0]);
  made.at_least = nb::cast<uint32_t>(given[1]);
  if (!given[2].is_none()) made.at_most = nb::cast<uint32_t>(given[2]);
  if (!given[3].is_none()) {
    const auto& each = nb::cast<PatternCore&>(given[3]);
    made.each = each.pattern;
    core.graphs.insert(core.graphs.end(), each.graphs.begin(), each.graphs.end());
  }
  return made;
}

// (object, kind, members, text)
void add_open(PatternCore& made, GraphCore& core, const nb::tuple& given) {
  const uint32_t number = core.objects.intern(nb::handle(given[0]).ptr());
  const auto kind = nb::cast<std::string_view>(given[1]);
  const nb::tuple members = fields(given[2]);
  en::OpenArgument open;
  open.text = nb::cast<std::string>(given[3].attr("__str__")());
  if (kind == "any") {
    open.what = any_of(core, members);
  } else if (kind == "constant") {
    open.what = constant_of(members);
  } else {
    open.what = variadic_of(made, members);
  }
  made.pattern->open.insert_or_assign(number, std::move(open));
}

en::DimPattern dim_of(nb::handle size) {
  using Kind = en::DimPattern::Kind;
  if (size.is_none()) return {Kind::kAny};
  if (size.ptr() == Py_Ellipsis) return {Kind::kRest};
  if (PyUnicode_Check(size.ptr())) return {Kind::kName, 0, text_of(size)};
  return {Kind::kNumber, nb::cast<int64_t>(size)};
}

// (value, dtypes, ranks, shape, devices)
void add_constraint(en::Pattern& pattern, const nb::tuple& given) {
  ValueHandle* value = as_value(nb::handle(given[0]).ptr());
  if (value == nullptr) throw nb::type_error("expected a value");
  en::TensorConstraint made;
  for (nb::handle dtype : nb::borrow(given[1])) made.dtypes.push_back(text_of(dtype));
  for (nb::handle rank : nb::borrow(given[2])) made.ranks.push_back(nb::cast<uint32_t>(rank));
  if (!given[3].is_none()) {
    made.shape.emplace();
    for (nb::handle size : nb::borrow(given[3])) made.shape->push_back(dim_of(size));
  }
  for (nb::handle device : nb::borrow(given[4])) made.devices.push_back(text_of(device));
  pattern.constraints.insert_or_assign(value->id, std::move(made));
}

}  // namespace

PatternCore make_pattern(GraphCore& core, std::string_view name, bool constant_values,
                         bool attributes, nb::handle open, nb::handle constraints,
                         nb::handle choices, nb::handle captured, nb::handle captured_names,
                         nb::handle library_values) {
  PatternCore made{std::make_shared<en::Pattern>(), {&core}};
  en::Pattern& pattern = *made.pattern;
  pattern.graph = shared_graph(core);
  pattern.name = name;
  pattern.constant_values = constant_values;
  pattern.attributes = attributes;
  for (nb::handle item : open) add_open(made, core, fields(item));
  for (nb::handle item : constraints) add_constraint(pattern, fields(item));
  for (nb::handle item : choices) {
    NodeHandle* node = as_node(nb::handle(fields(item)[0]).ptr());
    if (node == nullptr) throw nb::type_error("expected a node");
    pattern.choices[node->id] = text_of(fields(item)[1]);
  }
  for (nb::handle item : captured) pattern.captured.push_back(value_of(core, item));
  for (nb::handle item : captured_names) {
    pattern.captured_names[text_of(fields(item)[0])] = value_of(core, fields(item)[1]);
  }
  for (auto [place, value] : nb::cast<nb::dict>(library_values)) {
    const en::ValueId theirs{nb::cast<en::NodeId>(fields(place)[0]),
                             nb::cast<uint32_t>(fields(place)[1])};
    pattern.known_as[theirs] = value_of(core, value);
  }
  return made;
}

}  // namespace bringup::python
