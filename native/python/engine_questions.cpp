#include "python/engine_questions.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "engine/graph/native_host.h"
#include "engine/util/error.h"
#include "python/engine_handles.h"

namespace nb = nanobind;

namespace bringup::python {
namespace {

// One call in a graph of its own.
class Question {
 public:
  Question(nb::handle arguments, const Makers& makers) : makers_(makers) {
    core_.graph.set_host(en::NativeHost::instance());
    en::ArgumentList given;
    convert_all(core_, arguments.ptr(), given);
    for (const en::Argument& argument : given.items()) put(argument);
  }

  en::Graph& graph() { return core_.graph; }
  en::ArgumentList& arguments() { return arguments_; }

  en::NodeId call(nb::handle op, uint32_t outputs) {
    const en::Call call{arguments_.items(), arguments_.count()};
    const en::Operator* known = operator_of(op.ptr());
    return graph().insert(known, known->type, call, outputs, graph().last());
  }

  // The arguments, values again those that were given.
  nb::tuple answer() {
    std::vector<en::Argument> items(arguments_.items().begin(), arguments_.items().end());
    for (en::Argument& item : items) {
      if (item.tag == en::Tag::kValue) {
        item = known(given_value(item.value));
      } else if (item.tag == en::Tag::kOpaque) {
        item = known(makers_.object(item.id).ptr());
      }
    }
    return nb::steal<nb::tuple>(python_arguments(core_, items, arguments_.count()).release());
  }

 private:
  // A value of the graph that is asked about becomes an input that looks like it.
  void put(const en::Argument& argument) {
    ++position_;
    if (argument.is_nest()) {
      arguments_.open(argument.tag);
      ends_.push_back(position_ + argument.extent);
    } else {
      arguments_.put(argument.tag == en::Tag::kOpaque ? of_program(core_.objects.at(argument.id))
                                                      : argument);
    }
    while (!ends_.empty() && ends_.back() == position_) {
      arguments_.close();
      ends_.pop_back();
    }
  }

  // What the program has for an object of Python.
  en::Argument of_program(PyObject* object) {
    if (ValueHandle* value = as_value(object)) return en::Argument::of_value(input_like(*value));
    if (nb::handle(object).type().is(makers_.object)) {
      return en::Argument::of_opaque(nb::cast<uint32_t>(nb::handle(object).attr("number")));
    }
    en::throw_error(en::ErrorCode::kInvalid, nb::repr(object).c_str(),
                    " is no argument in the graph of a C++ program: it has values, "
                    "numbers, strings, and lists");
  }

  en::ValueId input_like(const ValueHandle& value) {
    for (const auto& [input, object] : inputs_) {
      if (object == &value.ob_base) return input;
    }
    const en::Graph& from = value.core->graph;
    const en::ConstantData* data = from.type(value.id.node) == en::Operators::constant()->type
                                       ? from.payload(value.id.node)
                                       : nullptr;
    const en::StringId name = from.name(value.id.node);
    const en::NodeId node = data == nullptr ? graph().add_input(name) : graph().add_constant(name);
    if (data != nullptr) graph().set_payload(node, *data);
    en::describe(graph(), {node, 0}, from.desc(value.id));
    inputs_.emplace_back(en::ValueId{node, 0}, const_cast<PyObject*>(&value.ob_base));
    return {node, 0};
  }

  // Stands for an object in the answer.
  en::Argument known(PyObject* object) {
    return en::Argument::of_opaque(core_.objects.intern(object));
  }

  PyObject* given_value(en::ValueId value) const {
    for (const auto& [input, object] : inputs_) {
      if (input == value) return object;
    }
    en::throw_error(en::ErrorCode::kInvalid, "a provider answered with an unknown value");
  }

  const Makers& makers_;
  GraphCore core_{"question"};
  en::ArgumentList arguments_;
  size_t position_ = 0;
  std::vector<size_t> ends_;  // of the nests that are open
  std::vector<std::pair<en::ValueId, PyObject*>> inputs_;
};

// Providers are code of the program: they run without the lock.
template <class Work>
auto asking(Work&& work) {
  const nb::gil_scoped_release released;
  return work();
}

}  // namespace

const en::Providers& HostOperators::providers() const {
  if (providers_) return *providers_;
  set_error(ErrorClass::kExpiredHandle,
            "graph handle has expired: the run that this graph belongs to is over");
  throw nb::python_error();
}

nb::tuple HostOperators::bind(const std::string& type, nb::handle arguments) const {
  const en::Providers& ask = providers();
  Question question(arguments, makers_);
  const en::Operator* op = asking([&] {
    return ask.schema(question.graph(), en::Strings::intern(type), question.arguments());
  });
  return nb::make_tuple(take(python_operator(*op)), question.answer());
}

nb::tuple HostOperators::infer(nb::handle op, nb::handle arguments, uint32_t outputs) const {
  const en::Providers& ask = providers();
  Question question(arguments, makers_);
  const en::NodeId node = question.call(op, outputs);
  asking([&] { ask.infer_shape(question.graph(), node); });
  nb::list all;
  for (uint32_t index = 0; index < outputs; ++index) {
    const en::TensorDesc* desc = question.graph().desc({node, index});
    all.append(desc == nullptr ? nb::none() : python_desc(*desc, makers_));
  }
  return nb::tuple(all);
}

nb::object HostOperators::refusal(nb::handle op, nb::handle arguments, uint32_t outputs) const {
  const en::Providers& ask = providers();
  Question question(arguments, makers_);
  const en::NodeId node = question.call(op, outputs);
  const std::optional<std::string> why =
      asking([&] { return ask.supports(question.graph(), node); });
  return why ? nb::object(nb::str(why->c_str())) : nb::none();
}

void bind_questions(nb::module_& module) {
  nb::class_<HostOperators>(module, "HostOperators")
      .def_prop_ro("has_schemas", &HostOperators::has_schemas)
      .def_prop_ro("has_shapes", &HostOperators::has_shapes)
      .def_prop_ro("has_support", &HostOperators::has_support)
      .def("bind", &HostOperators::bind)
      .def("infer", &HostOperators::infer)
      .def("refusal", &HostOperators::refusal);
}

}  // namespace bringup::python
