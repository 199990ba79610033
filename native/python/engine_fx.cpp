#include "python/engine_fx.h"

#include <structmember.h>

#include <memory>

namespace bringup::python {
namespace {

// An attribute of nodes: of types in C a member whose place is asked once, which is much faster.
class Field {
 public:
  Field(PyObject* node_type, const char* name)
      : type_(reinterpret_cast<PyTypeObject*>(node_type)),
        name_(Ref::checked(PyUnicode_InternFromString(name))) {
    const Ref found(PyObject_GetAttr(node_type, name_.get()));
    if (!found) PyErr_Clear();
    if (!found || Py_TYPE(found.get()) != &PyMemberDescr_Type) return;
    const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(found.get())->d_member;
    if (member->type == T_OBJECT_EX || member->type == T_OBJECT) offset_ = member->offset;
  }

  Ref of(PyObject* node) const {
    if (offset_ >= 0 && Py_TYPE(node) == type_) {
      PyObject* found = *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(node) + offset_);
      if (found != nullptr) return Ref::borrowed(found);
    }
    return Ref::checked(PyObject_GetAttr(node, name_.get()));
  }

  // Asks the processor for the memory of the member, so that it is there when it is read.
  void prefetch(PyObject* node) const {
    if (offset_ >= 0) __builtin_prefetch(reinterpret_cast<char*>(node) + offset_);
  }

  // Likewise for the object that the member is.
  void prefetch_object(PyObject* node) const {
    if (offset_ < 0 || Py_TYPE(node) != type_) return;
    __builtin_prefetch(*reinterpret_cast<PyObject**>(reinterpret_cast<char*>(node) + offset_));
  }

 private:
  PyTypeObject* type_;
  Ref name_;
  Py_ssize_t offset_ = -1;
};

// `args` and `kwargs` are Python code around two members, which are used where they exist.
struct Fields {
  explicit Fields(PyObject* type)
      : op(type, "op"),
        target(type, "target"),
        args(type, member_or(type, "_args", "args")),
        kwargs(type, member_or(type, "_kwargs", "kwargs")) {}

  void prefetch(PyObject* node) const {
    for (const Field* field : {&op, &args}) field->prefetch(node);
  }

  void prefetch_objects(PyObject* node) const { args.prefetch_object(node); }

  static const char* member_or(PyObject* type, const char* member, const char* property) {
    return PyObject_HasAttrString(type, member) != 0 ? member : property;
  }

  Field op;
  Field target;
  Field args;
  Field kwargs;
};

// Most strings that are compared here are one interned object.
bool is_text(PyObject* text, PyObject* wanted) {
  return text == wanted || PyUnicode_Compare(text, wanted) == 0;
}

Ref get(PyObject* object, const char* name) {
  return Ref::checked(PyObject_GetAttrString(object, name));
}

bool is_true(PyObject* object, const char* name) {
  const int truth = PyObject_IsTrue(get(object, name).get());
  if (truth < 0) throw PythonError();
  return truth != 0;
}

// One parameter of a schema, as bringup.compiler.schema.SchemaParameter has it.
struct SchemaParameter {
  explicit SchemaParameter(PyObject* given)
      : self(Ref::borrowed(given)),
        name(get(given, "name")),
        fallback(get(given, "default")),
        kwarg_only(is_true(given, "kwarg_only")),
        has_default(is_true(given, "has_default")),
        is_float(is_true(given, "is_float")),
        is_dtype(std::string_view(en::Strings::text(string_of(name.get()))).ends_with("dtype")),
        list_size(PyLong_AsSsize_t(get(given, "list_size").get())) {}

  // What SchemaParameter.canonical does: one form per meaning.
  void put(GraphCore& core, PyObject* argument, en::ArgumentList& list) const {
    if (list_size > 0 && (PyLong_Check(argument) || PyFloat_Check(argument))) {
      list.open(en::Tag::kList);
      for (Py_ssize_t i = 0; i < list_size; ++i) convert(core, argument, list);
      return list.close();
    }
    if (is_float && PyLong_Check(argument)) {
      const double number = PyLong_AsDouble(argument);
      if (number == -1.0 && PyErr_Occurred()) throw PythonError();
      return list.put(en::Argument::of_float(number));
    }
    if (is_dtype && PyUnicode_Check(argument)) {
      const Ref dtype = Ref::checked(PyObject_CallMethod(self.get(), "canonical", "O", argument));
      return convert(core, dtype.get(), list);
    }
    convert(core, argument, list);
  }

  Ref self;
  Ref name;
  Ref fallback;
  bool kwarg_only;
  bool has_default;
  bool is_float;
  bool is_dtype;
  Py_ssize_t list_size;
};

// What a node calls.
struct Target {
  Ref key;  // keeps its address from being another one's
  Ref operator_object;
  const en::Operator* op = nullptr;
  std::vector<SchemaParameter> slots;  // empty: it has no schema
  Py_ssize_t by_position = 0;
  bool folds = false;
};

class FxReading {
 public:
  FxReading(GraphCore& core, PyObject* node_type, PyObject* getitem, PyObject* reader)
      : core_(core), fields_(node_type), getitem_(getitem), reader_(reader) {
    core.fx_type = reinterpret_cast<PyTypeObject*>(node_type);
    core.fx_values = &values_;
  }
  ~FxReading() {
    core_.fx_type = nullptr;
    core_.fx_values = nullptr;
  }

  void reserve(size_t nodes) {
    core_.graph.reserve(nodes);
    values_.reserve(nodes);
    core_.handles.reserve(nodes + 1);
    core_.metas.reserve(nodes);
  }

  // The nodes lie scattered in memory; waiting for it is much of the time otherwise.
  void read_all(PyObject* const* nodes, size_t count) {
    constexpr size_t kFar = 12;
    constexpr size_t kNear = 6;
    for (size_t i = 0; i < count; ++i) {
      if (i + kFar < count) fields_.prefetch(nodes[i + kFar]);
      if (i + kNear < count) {
        fields_.prefetch_objects(nodes[i + kNear]);
        values_.prefetch(reinterpret_cast<uintptr_t>(nodes[i + kNear]));
      }
      read(nodes[i]);
    }
  }

 private:
  void read(PyObject* fx_node) {
    const Ref op = fields_.op.of(fx_node);
    const Ref target = fields_.target.of(fx_node);
    const Ref args = fields_.args.of(fx_node);
    if (target.get() == getitem_ && take_item(fx_node, args.get())) return;
    const Ref kwargs = fields_.kwargs.of(fx_node);
    items_.clear();
    keywords_.clear();
    const bool call_function = is_text(op.get(), call_function_.get());
    if (!call_function && is_text(op.get(), output_.get())) {
      put_plain(args.get(), kwargs.get());
      core_.graph.set_outputs(call());
      return core_.set_handle(core_.graph.last(), fx_node);
    }
    const Target& known = describe(fx_node, call_function ? target.get() : op.get());
    if (known.folds) return take_several(fx_node, known, args.get(), kwargs.get());
    put_arguments(fx_node, known, args.get(), kwargs.get());
    take_one(fx_node, known.op);
  }

  en::Call call() const { return {items_.items(), items_.count(), keywords_.items()}; }

  // Indexing a node that was folded is one of its values.
  bool take_item(PyObject* fx_node, PyObject* args) {
    if (PyTuple_GET_SIZE(args) != 2) return false;
    const auto found = folded_.find(PyTuple_GET_ITEM(args, 0));
    if (found == folded_.end()) return false;
    Py_ssize_t index = PyLong_AsSsize_t(PyTuple_GET_ITEM(args, 1));
    if (index == -1 && PyErr_Occurred()) throw PythonError();
    const auto count = static_cast<Py_ssize_t>(core_.graph.output_count(found->second));
    if (index < 0) index += count;
    if (index < 0 || index >= count) {
      PyErr_Format(PyExc_IndexError, "%R reads output %zd of %zd", fx_node, index, count);
      throw PythonError();
    }
    const en::ValueId value{found->second, static_cast<uint32_t>(index)};
    values_.insert(reinterpret_cast<uintptr_t>(fx_node), value);
    core_.mirrored->items[value].push_back(Ref::borrowed(fx_node));
    return true;
  }

  const Target& describe(PyObject* fx_node, PyObject* key) {
    const auto found = targets_.find(key);
    if (found != targets_.end()) return found->second;
    const Ref answer = Ref::checked(PyObject_CallMethod(reader_, "describe", "O", fx_node));
    Target target;
    target.key = Ref::borrowed(key);
    PyObject* op = PyTuple_GetItem(answer.get(), 0);
    PyObject* slots = PyTuple_GetItem(answer.get(), 1);
    if (op == nullptr || slots == nullptr) throw PythonError();
    target.operator_object = Ref::borrowed(op);
    target.op = operator_of(op);
    if (slots != Py_None) {
      const Ref all = Ref::checked(PySequence_Tuple(slots));
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all.get()); ++i) {
        target.slots.emplace_back(PyTuple_GET_ITEM(all.get(), i));
        if (!target.slots.back().kwarg_only) ++target.by_position;
      }
      target.folds = target.op->output_count != 1;
    }
    return targets_.emplace(key, std::move(target)).first->second;
  }

  void put_plain(PyObject* args, PyObject* kwargs) {
    convert_all(core_, args, items_);
    if (PyDict_GET_SIZE(kwargs) > 0) convert(core_, kwargs, keywords_);
  }

  void put_arguments(PyObject* fx_node, const Target& target, PyObject* args, PyObject* kwargs) {
    if (target.slots.empty()) return put_plain(args, kwargs);
    const Py_ssize_t given = PyTuple_GET_SIZE(args);
    const bool named = PyDict_GET_SIZE(kwargs) > 0;
    Py_ssize_t used = 0;
    Py_ssize_t index = 0;
    for (const SchemaParameter& slot : target.slots) {
      PyObject* argument = nullptr;
      if (index < given && !slot.kwarg_only) {
        argument = PyTuple_GET_ITEM(args, index);
      } else if (named && (argument = PyDict_GetItemWithError(kwargs, slot.name.get()))) {
        ++used;
      } else if (slot.has_default) {
        convert(core_, slot.fallback.get(), items_);
      } else {
        raise_mismatch(fx_node);
      }
      if (argument != nullptr) slot.put(core_, argument, items_);
      ++index;
    }
    if (given > target.by_position || used < PyDict_GET_SIZE(kwargs)) raise_mismatch(fx_node);
  }

  [[noreturn]] void raise_mismatch(PyObject* fx_node) {
    const Ref nothing = Ref::checked(PyObject_CallMethod(reader_, "raise_mismatch", "O", fx_node));
    PyErr_Format(PyExc_RuntimeError, "the arguments of %R were read in another way", fx_node);
    throw PythonError();
  }

  en::NodeId insert(PyObject* fx_node, const en::Operator* op, uint32_t outputs) {
    const en::NodeId node = core_.graph.append(op, call(), outputs);
    core_.set_handle(node, fx_node);
    return node;
  }

  void take_one(PyObject* fx_node, const en::Operator* op) {
    const en::ValueId value{insert(fx_node, op, 1), 0};
    values_.insert(reinterpret_cast<uintptr_t>(fx_node), value);
    core_.leave_unread(value);
  }

  void take_several(PyObject* fx_node, const Target& target, PyObject* args, PyObject* kwargs) {
    const Ref answer = Ref::checked(
        PyObject_CallMethod(reader_, "fold", "OO", fx_node, target.operator_object.get()));
    PyObject* op = PyTuple_GetItem(answer.get(), 0);
    PyObject* metas = PyTuple_GetItem(answer.get(), 1);
    if (op == nullptr || metas == nullptr) throw PythonError();
    if (metas == Py_None) {
      put_plain(args, kwargs);
      return take_one(fx_node, operator_of(op));
    }
    put_arguments(fx_node, target, args, kwargs);
    const Ref all = Ref::checked(PySequence_Tuple(metas));
    const auto count = static_cast<uint32_t>(PyTuple_GET_SIZE(all.get()));
    const en::NodeId node = insert(fx_node, target.op, count);
    for (uint32_t i = 0; i < count; ++i) core_.set_meta({node, i}, PyTuple_GET_ITEM(all.get(), i));
    folded_.emplace(fx_node, node);
  }

  GraphCore& core_;
  Fields fields_;
  Ref call_function_ = Ref::checked(PyUnicode_InternFromString("call_function"));
  Ref output_ = Ref::checked(PyUnicode_InternFromString("output"));
  PyObject* getitem_;
  PyObject* reader_;
  FxValues values_;
  std::unordered_map<PyObject*, en::NodeId> folded_;
  std::unordered_map<PyObject*, Target> targets_;
  en::ArgumentList items_;
  en::ArgumentList keywords_;
};

}  // namespace

void read_fx(GraphCore& core, PyObject* fx_graph, PyObject* node_type, PyObject* getitem,
             PyObject* reader, PyObject* inherited) {
  core.mirrored = std::make_unique<Mirrored>();
  core.mirrored->resolve = get(reader, "meta");
  core.mirrored->inherited = Ref::checked(PySequence_Tuple(inherited));
  FxReading reading(core, node_type, getitem, reader);
  const Ref nodes = Ref::checked(PySequence_List(get(fx_graph, "nodes").get()));
  const auto count = static_cast<size_t>(PyList_GET_SIZE(nodes.get()));
  reading.reserve(count);
  reading.read_all(reinterpret_cast<PyListObject*>(nodes.get())->ob_item, count);
  core.mirrored->changed.clear();
}

}  // namespace bringup::python
