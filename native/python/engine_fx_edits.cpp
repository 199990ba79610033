// Repeating the edits of a mirror on the torch.fx graph, through its public functions.
#include <optional>
#include <unordered_map>

#include "engine/util/numbers.h"
#include "python/engine_fx.h"
#include "python/engine_handles.h"

namespace bringup::python {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  set_error(ErrorClass::kPass, message);
  throw PythonError();
}

size_t value_count(en::ArgumentSpan run) {
  size_t count = 0;
  en::for_each_value(run, [&](en::ValueId) { ++count; });
  return count;
}

// A size that is no number is the result of a node in FX; as it is, generated code cannot name it.
void check_sizes(const en::Graph& graph, en::NodeId node) {
  if (!graph.alive(node)) return;
  for (const en::Argument& argument : graph.all_arguments(node)) {
    if (argument.tag != en::Tag::kSymbol) continue;
    refuse(concat(
        "node ", en::in_quotes(graph.name_text(node)), " (", en::Strings::text(graph.type(node)),
        ") of pass ", en::in_quotes(en::Strings::text(graph.rule(node))),
        " has the symbolic number ", en::Strings::text(argument.id),
        " as an argument: only values of the graph and sizes of their shapes can be used"));
  }
}

// What FX could not repeat is refused before the first edit.
void check(const en::Graph& graph, const en::Edit& edit) {
  const bool is_input = &graph.op(edit.node) == en::Operators::input();
  switch (edit.kind) {
    case en::EditKind::kInsert:
      if (!is_input) return check_sizes(graph, edit.node);
      refuse(concat("a pass cannot give a compiled graph a new input ('",
                    graph.name_text(edit.node), "')"));
    case en::EditKind::kErase:
      if (!is_input) return;
      refuse(concat("a pass cannot remove an input of a compiled graph ('",
                    graph.name_text(edit.node), "')"));
    case en::EditKind::kRewire: {
      if (edit.node != graph.last()) return;
      const size_t before = value_count(graph.items_of(edit.old));
      const size_t after = value_count(graph.items_of(edit.now));
      if (before == after) return;
      refuse(concat("a compiled graph has ", before, " outputs; a pass cannot change that to ",
                    after));
    }
    case en::EditKind::kMove:
      return;
    default:
      refuse(concat(
          "node '", graph.name_text(edit.node),
          "' was given a control edge, an attribute or a subgraph: torch.fx has none of these"));
  }
}

// Whether two arguments say the same, the ones inside of a nest not looked at.
bool same_head(const en::Argument& one, const en::Argument& other) {
  if (one.tag != other.tag || one.extent != other.extent) return false;
  switch (one.tag) {
    case en::Tag::kNone:
      return true;
    case en::Tag::kBool:
    case en::Tag::kInt:
      return one.integer == other.integer;
    case en::Tag::kFloat:
      return en::same_number(one.number, other.number);
    case en::Tag::kValue:
      return one.value == other.value;
    default:
      return one.id == other.id;
  }
}

struct Exchange {
  en::ValueId before;
  en::ValueId after;
};

// The one value exchanged for another at every read, when that is all that a rewiring changed.
std::optional<Exchange> one_exchange(const en::Graph& graph, const en::Edit& edit) {
  const en::ArgumentSpan old = graph.all_of(edit.old);
  const en::ArgumentSpan now = graph.all_of(edit.now);
  if (old.size() != now.size() || edit.old.extent != edit.now.extent) return std::nullopt;
  std::optional<Exchange> found;
  for (size_t i = 0; i < old.size(); ++i) {
    if (same_head(old[i], now[i])) continue;
    if (old[i].tag != en::Tag::kValue || now[i].tag != en::Tag::kValue) return std::nullopt;
    const bool another = found && !(found->before == old[i].value && found->after == now[i].value);
    if (another) return std::nullopt;
    found = Exchange{old[i].value, now[i].value};
  }
  if (!found) return std::nullopt;
  for (const en::Argument& argument : now) {
    if (argument.tag == en::Tag::kValue && argument.value == found->before) return std::nullopt;
  }
  return found;
}

class FxWriting {
 public:
  FxWriting(GraphCore& core, PyObject* fx_graph, PyObject* writer)
      : core_(core),
        writer_(writer),
        erase_(Ref::checked(PyObject_GetAttrString(fx_graph, "erase_node"))) {}

  // `former`: what a node that is rewired reads in FX.
  void repeat(en::Edit edit, const en::ArgumentRange& former) {
    edit.old = former;
    if (edit.kind == en::EditKind::kInsert) return insert(edit);
    if (edit.kind == en::EditKind::kMove) return move(edit);
    rewire(edit);
  }

  void erase(en::NodeId node) {
    for (uint32_t i = 0; i < core_.graph.output_count(node); ++i) {
      for (const Ref& item : items_of({node, i})) erase_fx(item.get());
    }
    erase_fx(fx_of(node));
  }

 private:
  void insert(const en::Edit& edit) {
    const Ref node = node_handle(core_, edit.node);
    const Ref arguments = fx_arguments(core_.graph.items_of(edit.now), edit.now.count);
    const Ref made = Ref::checked(PyObject_CallMethodObjArgs(
        writer_, create_.get(), node.get(), fx_of(edit.before), arguments.get(), nullptr));
    core_.set_handle(edit.node, made.get());
  }

  void erase_fx(PyObject* fx_node) {
    const Ref nothing = Ref::checked(PyObject_CallOneArg(erase_.get(), fx_node));
  }

  void move(const en::Edit& edit) {
    const Ref node = node_handle(core_, edit.node);
    const Ref nothing = Ref::checked(
        PyObject_CallMethodObjArgs(writer_, move_.get(), node.get(), fx_of(edit.before), nullptr));
  }

  void rewire(const en::Edit& edit) {
    const std::optional<Exchange> exchange = one_exchange(core_.graph, edit);
    if (!exchange || !stands_for_one(exchange->before)) return rewire_any(edit);
    const Ref after = fx_value(exchange->after);
    const Ref nothing = Ref::checked(PyObject_CallMethodObjArgs(
        fx_of(edit.node), replace_.get(), fx_value(exchange->before).get(), after.get(), nullptr));
  }

  void rewire_any(const en::Edit& edit) {
    const en::Graph& graph = core_.graph;
    const Ref node = node_handle(core_, edit.node);
    const Ref old = python_arguments(core_, graph.items_of(edit.old), edit.old.count);
    const Ref old_keywords = python_keywords(core_, graph.keywords_of(edit.old));
    const Ref now = python_arguments(core_, graph.items_of(edit.now), edit.now.count);
    const Ref keywords = python_keywords(core_, graph.keywords_of(edit.now));
    const Ref nothing = Ref::checked(
        PyObject_CallMethodObjArgs(writer_, rewire_.get(), node.get(), old.get(),
                                   old_keywords.get(), now.get(), keywords.get(), nullptr));
  }

  bool is_single(en::NodeId node) const { return core_.graph.op(node).output_count == 1; }

  bool stands_for_one(en::ValueId value) {
    return is_single(value.node) || items_of(value).size() == 1;
  }

  Ref fx_value(en::ValueId value) {
    if (is_single(value.node)) return Ref::borrowed(fx_of(value.node));
    const Ref handle = value_handle(core_, value);
    return Ref::checked(PyObject_CallMethodObjArgs(writer_, value_.get(), handle.get(), nullptr));
  }

  // A tuple of what torch.fx has for the items of a run.
  Ref fx_arguments(en::ArgumentSpan run, uint32_t count) {
    Ref all = Ref::checked(PyTuple_New(count));
    Py_ssize_t place = 0;
    for (size_t i = 0; i < run.size(); i += size_t{1} + run[i].extent) {
      PyTuple_SET_ITEM(all.get(), place++, fx_argument(en::item_at(run, i)).release());
    }
    return all;
  }

  Ref fx_argument(en::ArgumentSpan item) {
    const en::Argument& head = item.front();
    if (head.tag == en::Tag::kValue) return fx_value(head.value);
    if (head.tag != en::Tag::kList) return python_argument(core_, item);
    return Ref::checked(PySequence_List(fx_arguments(item.subspan(1), head.count).get()));
  }

  PyObject* fx_of(en::NodeId node) {
    PyObject* found = core_.handle(node);
    if (found != nullptr) return found;
    PyErr_Format(PyExc_RuntimeError, "node '%s' stands for no node of the compiled graph",
                 std::string(core_.graph.name_text(node)).c_str());
    throw PythonError();
  }

  std::span<const Ref> items_of(en::ValueId value) const {
    const auto found = core_.mirrored->items.find(value);
    if (found == core_.mirrored->items.end()) return {};
    return found->second;
  }

  static Ref text(const char* name) { return Ref::checked(PyUnicode_InternFromString(name)); }

  GraphCore& core_;
  PyObject* writer_;
  Ref erase_;
  Ref create_ = text("create");
  Ref move_ = text("move");
  Ref rewire_ = text("rewire");
  Ref value_ = text("value");
  Ref replace_ = text("replace_input_with");
};

}  // namespace

void write_fx(GraphCore& core, const std::vector<en::Edit>& edits, PyObject* fx_graph,
              PyObject* writer) {
  // Of the arguments that a node had one after the other FX gets the last: a write for each would
  // cost an operator with n rewritten inputs n * n. What a node read before is erased at the end.
  std::unordered_map<en::NodeId, en::ArgumentRange> former;
  std::unordered_map<en::NodeId, const en::Edit*> last;
  for (const en::Edit& edit : edits) {
    check(core.graph, edit);
    if (edit.kind != en::EditKind::kRewire) continue;
    former.try_emplace(edit.node, edit.old);
    last[edit.node] = &edit;
  }
  FxWriting writing(core, fx_graph, writer);
  for (const en::Edit& edit : edits) {
    if (edit.kind == en::EditKind::kErase) continue;
    const bool rewires = edit.kind == en::EditKind::kRewire;
    if (rewires && last[edit.node] != &edit) continue;
    writing.repeat(edit, rewires ? former[edit.node] : edit.old);
  }
  for (const en::Edit& edit : edits) {
    if (edit.kind == en::EditKind::kErase) writing.erase(edit.node);
  }
}

}  // namespace bringup::python
