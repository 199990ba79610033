#include "python/engine_borrowed.h"

#include "engine/graph/native_host.h"
#include "engine/util/error.h"

namespace nb = nanobind;

namespace bringup::python {
namespace {

constexpr uint32_t kMostObjects = 1 << 20;

// The bytes of a constant.
struct HostBytes {
  en::ConstantData data;
};

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const en::ConstantData& data = nb::inst_ptr<HostBytes>(self)->data;
  void* start = const_cast<std::byte*>(data.bytes.data());
  return PyBuffer_FillInfo(view, self, start, static_cast<Py_ssize_t>(data.bytes.size()), 1, flags);
}

PyType_Slot bytes_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

nb::object python_dim(const en::Dim& dim, const Makers& makers) {
  if (dim.is_static()) return nb::int_(dim.number);
  return makers.symbol(nb::borrow(python_text(dim.symbol).get()));
}

nb::tuple python_dims(const std::vector<en::Dim>& dims, const Makers& makers) {
  nb::list all;
  for (const en::Dim& dim : dims) all.append(python_dim(dim, makers));
  return nb::tuple(all);
}

// The names of a dict.
std::string text_of(PyObject* attributes) {
  const nb::list names(nb::handle(attributes).attr("keys")());
  return nb::str(names).c_str();
}

// A copy that Python has nothing to do with.
en::ConstantData owned(const en::ConstantData& data) {
  auto bytes = std::make_shared<std::vector<std::byte>>(data.bytes.begin(), data.bytes.end());
  return {data.dtype, data.sizes, *bytes, bytes};
}

}  // namespace

nb::object python_desc(const en::TensorDesc& desc, const Makers& makers) {
  return makers.desc(python_dims(desc.sizes, makers), nb::borrow(python_text(desc.dtype).get()),
                     python_dims(desc.strides, makers), nb::borrow(python_text(desc.device).get()));
}

nb::object python_data(const en::ConstantData& data, const Makers& makers) {
  nb::list sizes;
  for (const int64_t size : data.sizes) sizes.append(size);
  return makers.data(nb::borrow(python_text(data.dtype).get()), nb::tuple(sizes),
                     nb::cast(HostBytes{data}));
}

BorrowedGraph::BorrowedGraph(en::Graph& graph, Makers makers)
    : graph_(graph.shared_from_this()),
      former_(en::NativeHost::instance()),
      makers_(std::move(makers)),
      core_(nb::cast(new GraphCore(graph_), nb::rv_policy::take_ownership)) {
  if (graph.host() != former_.get()) {
    en::throw_error(en::ErrorCode::kBusy, "graph ", en::in_quotes(graph.name()),
                    " is in the hands of Python already");
  }
}

template <class Visit>
void BorrowedGraph::for_each_value(Visit&& visit) const {
  for (en::NodeId node = graph_->first(); node != en::kNoNode; node = graph_->next(node)) {
    for (uint32_t index = 0; index < graph_->output_count(node); ++index) {
      visit(en::ValueId{node, index});
    }
  }
}

// Opaque arguments are the program's numbers, which take the first places of Python's table.
void BorrowedGraph::take_objects() {
  uint32_t count = 0;
  GraphCore& core = nb::cast<GraphCore&>(core_);
  for (en::NodeId node = graph_->first(); node != en::kNoNode; node = graph_->next(node)) {
    for (const en::Argument& argument : graph_->all_arguments(node)) {
      if (argument.tag == en::Tag::kOpaque) count = std::max(count, argument.id + 1);
      if (argument.tag != en::Tag::kSymbol) continue;
      const nb::object symbol = makers_.symbol(nb::borrow(python_text(argument.id).get()));
      core.objects.keep_symbol(argument.id, symbol.ptr());
    }
    if (count > kMostObjects) {
      en::throw_error(en::ErrorCode::kInvalid, "node ", en::in_quotes(graph_->name_text(node)),
                      " has an opaque argument above ", kMostObjects,
                      ": passes of Python cannot run on such a graph");
    }
  }
  for (uint32_t number = 0; number < count; ++number) {
    core.objects.intern(makers_.object(number).ptr());
  }
  objects_ = core.objects.size();
}

PyObject* BorrowedGraph::meta_of(uint64_t description, const en::TensorDesc& desc) {
  nb::object& meta = metas_[description];
  if (!meta.is_valid()) {
    meta = python_desc(desc, makers_);
    descriptions_[meta.ptr()] = description;
  }
  return meta.ptr();
}

void BorrowedGraph::describe() {
  take_objects();
  GraphCore& core = nb::cast<GraphCore&>(core_);
  // The descriptions are those of the former host, which the graph no longer asks.
  std::vector<std::pair<en::ValueId, PyObject*>> known;
  for_each_value([&](en::ValueId value) {
    const uint64_t description = graph_->meta(value);
    if (description == 0) return;
    const auto desc = former_->describe(*graph_, value);
    if (desc) known.emplace_back(value, meta_of(description, *desc));
  });
  for (const auto& [value, meta] : known) core.set_meta(value, meta);
  for (const en::NodeId node : graph_->find(en::Operators::constant()->type)) {
    const en::ConstantData* data = graph_->payload(node);
    if (data == nullptr) continue;
    core.payloads[node] = Ref(python_data(*data, makers_).release().ptr());
  }
}

void BorrowedGraph::check() const {
  const nb::str attributes("attributes");
  GraphCore& core = nb::cast<GraphCore&>(core_);
  for (en::NodeId node = graph_->first(); node != en::kNoNode; node = graph_->next(node)) {
    const Ref entry = core.node_meta_entry(node, attributes.ptr());
    if (entry && PyObject_IsTrue(entry.get()) == 1) {
      en::throw_error(en::ErrorCode::kPass, "node ", en::in_quotes(graph_->name_text(node)),
                      " was given the attributes ", text_of(entry.get()),
                      ", which the graph of a C++ program does not keep: pass them as "
                      "arguments of the operator");
    }
    for (const en::Argument& argument : graph_->all_arguments(node)) {
      if (argument.tag != en::Tag::kOpaque || argument.id < objects_) continue;
      en::throw_error(
          en::ErrorCode::kPass, "node ", en::in_quotes(graph_->name_text(node)), " reads ",
          graph_->host()->text(*graph_, argument.id),
          ": in the graph of a C++ program arguments are values, numbers, strings, and lists");
    }
  }
}

uint64_t BorrowedGraph::description_of(en::ValueId value) {
  PyObject* meta = nb::cast<GraphCore&>(core_).meta(value);
  if (meta == nullptr) return 0;
  const auto known = descriptions_.find(meta);
  if (known != descriptions_.end()) return known->second;
  const en::TensorDesc* desc = graph_->desc(value);
  const uint64_t description = desc == nullptr ? 0 : en::NativeHost::instance()->intern(*desc);
  metas_[description + (uint64_t{1} << 63)] = nb::borrow(meta);  // its address stays its own
  descriptions_[meta] = description;
  return description;
}

void BorrowedGraph::give_back() {
  GraphCore& core = nb::cast<GraphCore&>(core_);
  std::vector<std::pair<en::ValueId, uint64_t>> described;
  for_each_value([&](en::ValueId value) { described.emplace_back(value, description_of(value)); });
  for (const en::NodeId node : graph_->find(en::Operators::constant()->type)) {
    const auto payload = core.payloads.find(node);
    if (payload == core.payloads.end()) continue;
    if (nb::isinstance<HostBytes>(nb::handle(payload->second.get()).attr("data"))) continue;
    const en::ConstantData* data = graph_->payload(node);
    if (data != nullptr) graph_->set_payload(node, owned(*data));
  }
  core.expired = true;
  graph_->set_host(former_);
  for (const auto& [value, description] : described) graph_->set_meta(value, description);
}

void bind_borrowed(nb::module_& module) {
  nb::class_<HostBytes>(module, "HostBytes", nb::type_slots(bytes_slots))
      .def("__len__", [](const HostBytes& held) { return held.data.bytes.size(); });
}

}  // namespace bringup::python
