// bringup._native._torch.graphs: the recorder and captured graphs for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>

#include <set>

#include "torch/common/tensor_caster.h"
#include "torch/graphs/accelerator_graph.h"
#include "torch/graphs/call_watch.h"
#include "torch/graphs/errors.h"
#include "torch/graphs/event_node.h"
#include "torch/graphs/fused_bindings.h"
#include "torch/graphs/graph.h"
#include "torch/graphs/handler_call.h"
#include "torch/graphs/recorder.h"
#include "torch/graphs/run_bindings.h"
#include "torch/graphs/saved_graphs.h"
#include "torch/graphs/slots.h"
#include "torch/graphs/watch_bindings.h"
#include "torch/module.h"

namespace nb = nanobind;

namespace bringup::torch_ext {
namespace {

using namespace graphs;

void translate(const std::exception_ptr& exception, void*) {
  try {
    std::rethrow_exception(exception);
  } catch (const CaptureFailure& failure) {
    set_python_error(failure);
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(exception);
  } catch (const python_error&) {
    torch::translate_exception_to_python(exception);
  } catch (const pybind11::error_already_set&) {  // of a kernel in Python that torch called
    torch::translate_exception_to_python(exception);
  }
}

// Whether a capture makes a node of the operator that Python calls so.
bool makes_node(const std::string& name, const std::string& overload) {
  const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
  return !op || !look_up(*op).no_node();
}

// Whether the operator has a kernel of ours, and (index, argument, type) of its host arguments.
nb::tuple host_arguments(const std::string& name, const std::string& overload) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  nb::list rows;
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto type = SlotType::of(arguments[i]);
    if (type && !type->is_tensor()) {
      rows.append(nb::make_tuple(i, arguments[i].name(), type->name()));
    }
  }
  const KernelRecord* kernel = find_kernel(op);
  return nb::make_tuple(kernel != nullptr && kernel->runs_on(c10::kCPU), rows);
}

std::unordered_set<std::string> as_set(const std::vector<std::string>& names) {
  return {names.begin(), names.end()};
}

// (kind, operator, scope, method, line, level, reason, target).
nb::list list_nodes(const Graph& graph) {
  nb::list rows;
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& node = *graph.nodes()[i];
    const auto [level, reason] = graph.level(i);
    rows.append(nb::make_tuple(node.kind(), node.op(), node.scope(), node.method(),
                               node.line().text(), level, reason, node.target()));
  }
  return rows;
}

// The operators of all nodes, each once.
std::vector<std::string> list_operators(const Graph& graph) {
  std::set<std::string> names;
  for (const auto& node : graph.nodes()) names.insert(node->op());
  return {names.begin(), names.end()};
}

// (position, operator, scope) of every node whose arguments can be updated.
nb::list list_updatable(const Graph& graph) {
  nb::list rows;
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& node = *graph.nodes()[i];
    if (node.updatable()) rows.append(nb::make_tuple(i, node.op(), node.scope()));
  }
  return rows;
}

// (index, argument, type, value) of every host value of a node's operator.
nb::list host_values(const Graph& graph, size_t position) {
  const Node& node = *graph.nodes().at(position);
  nb::list rows;
  if (node.schema() == nullptr) return rows;
  const auto& arguments = node.schema()->arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto value = graph.host_value(position, i);
    if (!value) continue;
    const SlotType type = *SlotType::of(arguments[i]);
    rows.append(nb::make_tuple(i, arguments[i].name(), type.name(), type.to_python(*value)));
  }
  return rows;
}

// For every node a list of (memory, writes, predates, what).
nb::list list_accesses(const Graph& graph) {
  nb::list nodes;
  for (const auto& accesses : graph.accesses()) {
    nb::list rows;
    for (const Access& access : accesses) {
      rows.append(nb::make_tuple(access.memory, access.writes, access.predates, access.what));
    }
    nodes.append(rows);
  }
  return nodes;
}

void bind_graph(nb::module_& module) {
  nb::enum_<Gradients::Former>(module, "Former")
      .value("IGNORES", Gradients::Former::kIgnores)
      .value("NEEDS", Gradients::Former::kNeeds)
      .value("ADDS_TO", Gradients::Former::kAddsTo)
      .value("DROPS", Gradients::Former::kDrops)
      .value("IS_NONE", Gradients::Former::kIsNone);
  auto graph = nb::class_<Graph>(module, "Graph", nb::is_weak_referenceable());
  bind_run(module, graph);
  bind_fusing(module, graph);
  bind_saving(module, graph);
  graph
      .def("replay",
           [](const std::shared_ptr<Graph>& graph) {
             if (is_recording()) return Recorder::current()->record_replay(graph);
             graph->with_given([&] { graph->replay(); });
           })
      .def("refresh", &Graph::refresh_given)
      .def(
          "uses",
          [](const Graph& graph, const std::vector<at::Tensor>& tensors) {
            return uses_of(tensors, graph.nodes());
          },
          nb::arg("tensors"))
      .def(
          "add_gradient",
          [](Graph& graph, const at::Tensor& parameter, std::string name,
             std::optional<at::Tensor> before, std::optional<at::Tensor> after,
             Gradients::Former former, bool writes, bool needs_flag) {
            graph.gradients().add(parameter, std::move(name), before.value_or(at::Tensor()),
                                  after.value_or(at::Tensor()), former, writes, needs_flag);
          },
          nb::arg("parameter"), nb::arg("name"), nb::arg("before").none(), nb::arg("after").none(),
          nb::arg("former"), nb::arg("writes"), nb::arg("needs_flag"))
      .def("writes", &Graph::writes, nb::arg("tensor"))
      .def("knows", &Graph::knows, nb::arg("tensor"))
      .def("owns", &Graph::owns, nb::arg("tensor"))
      .def("unowned", &Graph::unowned, nb::arg("tensor"))
      .def("nodes", &list_nodes)
      .def("operators", &list_operators)
      .def("accesses", &list_accesses)
      .def("updatable", &list_updatable)
      .def(
          "constant",
          [](const Graph& graph, size_t node) {
            const auto* constant = dynamic_cast<const ConstantNode*>(graph.nodes().at(node).get());
            return constant == nullptr ? std::optional<at::Tensor>() : constant->content();
          },
          nb::arg("node"))
      .def("is_kernel",
           [](const Graph& graph, size_t node) {
             return dynamic_cast<const KernelNode*>(graph.nodes().at(node).get()) != nullptr;
           })
      .def("takes", &Graph::takes, nb::arg("node"), nb::arg("argument"), nb::arg("tensors"))
      .def_prop_ro("node_count", [](const Graph& graph) { return graph.nodes().size(); })
      .def("host_values", &host_values, nb::arg("node"))
      .def("replay_timed",
           [](Graph& graph) {
             refuse_replay_in_capture();
             std::vector<Graph::NodeTime> times;
             graph.with_given([&] { times = graph.replay_timed(); });
             nb::list rows;
             for (const auto& time : times) {
               rows.append(nb::make_tuple(time.node, time.begin, time.end));
             }
             return rows;
           })
      .def_prop_ro("memory_use",
                   [](const Graph& graph) {
                     const Graph::MemoryUse use = graph.memory_use();
                     return nb::make_tuple(use.results, use.intermediates, use.constants,
                                           use.inputs, use.shared);
                   })
      .def_prop_ro("driver_graphs",
                   [](const Graph& graph) {
                     nb::list handles;
                     for (bringup_graph one : graph.driver_graphs()) {
                       handles.append(reinterpret_cast<uintptr_t>(one));
                     }
                     return handles;
                   })
      .def_prop_ro("memory_pool", &Graph::memory_pool)
      .def_prop_ro("reserved_bytes", &Graph::reserved_bytes);

  nb::class_<SlotTable>(module, "SlotTable")
      .def(nb::init<std::shared_ptr<Graph>, nb::callable, nb::type_object>(), nb::arg("graph"),
           nb::arg("resolve"), nb::arg("report"))
      .def("add", &SlotTable::add, nb::arg("node"), nb::arg("argument"), nb::arg("name"),
           nb::arg("variable_length"))
      .def("update", &SlotTable::update, nb::arg("values"))
      .def("update_slots", &SlotTable::update_slots, nb::arg("values"));
}

void bind_event(nb::module_& module) {
  using Action = EventNode::Action;
  const auto action = [](bool wait) { return wait ? Action::kWait : Action::kRecord; };
  nb::class_<NamedEvent>(module, "Event")
      .def(nb::new_([](std::string name, double limit) {
             const std::chrono::duration<double> seconds(limit);
             auto event = std::make_shared<NamedEvent>();
             event->name = std::move(name);
             event->limit = std::chrono::duration_cast<std::chrono::nanoseconds>(seconds);
             return event;
           }),
           nb::arg("name"), nb::arg("limit"))
      .def("record", [](NamedEvent& event) { event.event.record(); })
      .def(
          "take", [](NamedEvent& event) { event.take("the host"); },
          nb::call_guard<nb::gil_scoped_release>())
      .def("reset", [](NamedEvent& event) { event.event.reset(); })
      .def_prop_ro("ahead", [](const NamedEvent& event) { return event.event.ahead(); })
      .def(
          "enqueue",
          [action](const std::shared_ptr<NamedEvent>& event, bool wait, int device) {
            enqueue(event, action(wait), static_cast<c10::DeviceIndex>(device));
          },
          nb::arg("wait"), nb::arg("device"))
      .def(
          "capture",
          [action](const std::shared_ptr<NamedEvent>& event, Recorder& recorder, bool wait) {
            recorder.add_event(event, action(wait));
          },
          nb::arg("recorder"), nb::arg("wait"))
      .def(
          "capture_reset",
          [](const NamedEvent& event, Recorder& recorder) { recorder.reset_event(event); },
          nb::arg("recorder"));
}

void bind_memory_pool(nb::module_& module) {
  nb::class_<MemoryPool>(module, "MemoryPool")
      .def(nb::new_([](bool reuses) { return std::make_shared<MemoryPool>(reuses); }),
           nb::arg("reuses_results"))
      .def_prop_ro("reserved_bytes", &MemoryPool::reserved_bytes)
      .def("trim", &MemoryPool::trim, nb::call_guard<nb::gil_scoped_release>())
      // (name, bytes, bytes that others use too) of every graph.
      .def("graphs", [](const MemoryPool& pool) {
        nb::list rows;
        for (const auto& graph : pool.graphs()) {
          rows.append(nb::make_tuple(graph->name(), graph->bytes(), pool.shared_bytes(*graph)));
        }
        return rows;
      });
}

void bind_recorder(nb::module_& module) {
  nb::class_<Recorder>(module, "Recorder")
      .def(
          "__init__",
          [](Recorder* self, const std::vector<std::string>& updatable,
             const std::vector<std::string>& hooked, std::vector<std::string> not_the_user,
             nb::callable handle, std::shared_ptr<MemoryPool> memory, const std::string& name) {
            auto call = [handle = std::move(handle)](const c10::OperatorHandle& op,
                                                     std::vector<c10::IValue>* stack) {
              return call_handler(handle, op, stack);
            };
            new (self) Recorder(as_set(updatable), as_set(hooked), std::move(not_the_user),
                                std::move(call), std::move(memory), name);
          },
          nb::arg("updatable"), nb::arg("hooked"), nb::arg("not_the_user"), nb::arg("handle"),
          nb::arg("memory"), nb::arg("name"))
      .def(
          "note_failures",
          [](Recorder& recorder, nb::callable note) {
            recorder.note_failures([note = std::move(note)](const CaptureFailure& failure) {
              set_python_error(failure);
              const nb::python_error error;
              note(error.value());
            });
          },
          nb::arg("note"))
      .def(
          "split_at",
          [](Recorder& recorder, const std::vector<std::string>& names,
             std::optional<nb::callable> asked) {
            Recorder::Predicate predicate;
            if (asked) {
              predicate = [asked = *std::move(asked)](const c10::OperatorHandle& op,
                                                      std::vector<c10::IValue>* stack) {
                return call_predicate(asked, op, stack);
              };
            }
            recorder.split_at(as_set(names), std::move(predicate));
          },
          nb::arg("names"), nb::arg("predicate").none())
      .def_prop_ro("split_met",
                   [](const Recorder& recorder) {
                     const auto& names = recorder.split_met();
                     return std::vector<std::string>(names.begin(), names.end());
                   })
      .def("set_all_updatable", &Recorder::set_all_updatable, nb::arg("all"))
      .def("accept_gradients", &Recorder::accept_gradients)
      .def("begin", &Recorder::begin)
      .def("stop", &Recorder::stop)
      .def(
          "finish",
          [](Recorder& recorder, int level, int64_t verify) {
            return std::shared_ptr<Graph>(recorder.finish(level, verify));
          },
          nb::arg("level"), nb::arg("verify"), nb::call_guard<nb::gil_scoped_release>())
      .def("abandon", &Recorder::abandon, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("seen", &Recorder::seen)
      .def_prop_ro("node_count", &Recorder::node_count)
      .def("begin_control", &Recorder::begin_control, nb::arg("name"))
      .def("begin_branch", &Recorder::begin_branch, nb::arg("computes"))
      .def("end_branch", &Recorder::end_branch)
      .def("end_control", &Recorder::end_control, nb::arg("exclusive"))
      .def_prop_ro("computes", &Recorder::computes)
      .def("add_control", &Recorder::add_control, nb::arg("predicate").none())
      .def("go_to", &Recorder::go_to, nb::arg("control"), nb::arg("target"))
      .def("writer", &Recorder::writer, nb::arg("tensor"))
      .def("is_written", &Recorder::is_written, nb::arg("tensor"))
      .def("repeated", &Recorder::repeated)
      .def("predates", &Recorder::predates, nb::arg("tensor"))
      .def("unwritten", &Recorder::unwritten)
      .def_prop_ro("watch", &Recorder::watch)
      .def_prop_ro("handled_without_node",
                   [](const Recorder& recorder) {
                     const auto& names = recorder.handled_without_node();
                     return std::vector<std::string>(names.begin(), names.end());
                   })
      .def("remember", &Recorder::remember, nb::arg("tensor"), nb::arg("name"), nb::arg("most"))
      .def(
          "know_buffer",
          [](Recorder& recorder, nb::handle object) { recorder.know_buffer(object.ptr()); },
          nb::arg("object"))
      .def(
          "watch_generator",
          [](Recorder& recorder, const nb::object& generator) {
            recorder.watch_generator(THPGenerator_Unwrap(generator.ptr()));
          },
          nb::arg("generator"))
      .def("set_scope", &Recorder::set_scope, nb::arg("scope"))
      .def("set_paused", &Recorder::set_paused, nb::arg("paused"))
      .def_prop_ro("paused", &Recorder::paused)
      .def_prop_ro("busy", &Recorder::busy)
      .def("declare_constant", &Recorder::declare_constant, nb::arg("tensor"))
      .def(
          "refuse_host_read",
          [](const Recorder& recorder, const std::string& op, const at::Tensor& tensor) {
            try {
              recorder.refuse_host_read(op, tensor);
            } catch (const CaptureFailure& failure) {
              if (!recorder.notes(failure)) throw;
            }
          },
          nb::arg("op"), nb::arg("tensor"));
}

}  // namespace

void bind_graphs(nb::module_& module) {
  nb::register_exception_translator(&translate);
  bind_watch(module);
  bind_call_watch(module);
  bind_event(module);
  bind_memory_pool(module);
  bind_graph(module);
  bind_recorder(module);
  module.def("is_recording", &is_recording);
  module.def("host_arguments", &host_arguments, nb::arg("name"), nb::arg("overload"));
  module.def("makes_node", &makes_node, nb::arg("name"), nb::arg("overload"));
  module.def("register_accelerator_graph", &register_accelerator_graph, nb::arg("device_name"));
}

}  // namespace bringup::torch_ext
