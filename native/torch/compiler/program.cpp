#include "torch/compiler/program.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/List.h>
#include <c10/util/Exception.h>

#include <utility>

namespace bringup::torch_ext::compiler {

at::Tensor tensor_of_number(const at::Scalar& number) {
  // Made without the dispatcher: a program is built where torch makes fake tensors.
  at::Tensor tensor = at::detail::scalar_tensor_static(number, number.type(), at::kCPU);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

c10::IValue Operand::value(const std::vector<c10::IValue>& registers) const {
  switch (kind) {
    case Kind::kConstant:
      return constant;
    case Kind::kRegister:
      return registers[place];
    case Kind::kTensorRegister: {
      const c10::IValue& found = registers[place];
      return found.isScalar() ? c10::IValue(tensor_of_number(found.toScalar())) : found;
    }
    case Kind::kFloatRegister: {
      const c10::IValue& found = registers[place];
      return found.isInt() ? c10::IValue(static_cast<double>(found.toInt())) : found;
    }
    case Kind::kIntegers: {
      c10::List<int64_t> list;
      list.reserve(items.size());
      for (const Operand& item : items) list.push_back(item.value(registers).toInt());
      return list;
    }
    case Kind::kTensors: {
      c10::List<at::Tensor> list;
      list.reserve(items.size());
      for (const Operand& item : items) list.push_back(item.value(registers).toTensor());
      return list;
    }
    case Kind::kOptionalTensors: {
      c10::List<std::optional<at::Tensor>> list;
      list.reserve(items.size());
      for (const Operand& item : items) {
        list.push_back(item.value(registers).toOptional<at::Tensor>());
      }
      return list;
    }
  }
  TORCH_INTERNAL_ASSERT(false, "unknown kind of operand");
}

void Operand::visit_registers(const std::function<void(size_t)>& visit) const {
  if (is_register()) visit(place);
  for (const Operand& item : items) item.visit_registers(visit);
}

Program::Step& Program::add_step(std::vector<Operand> operands, std::vector<int64_t> results) {
  Step& step = steps_.emplace_back();
  step.operands = std::move(operands);
  step.results = std::move(results);
  return step;
}

void Program::add_call(const c10::OperatorHandle& op, std::vector<Operand> operands,
                       std::vector<int64_t> results, std::string pass) {
  Step& step = add_step(std::move(operands), std::move(results));
  step.op = op;
  step.pass = std::move(pass);
}

void Program::add_host_call(HostFunction function, std::vector<Operand> operands, int64_t result) {
  add_step(std::move(operands), {result}).function = std::move(function);
}

void Program::add_element(size_t list, int64_t index, size_t result) {
  Operand operand;
  operand.kind = Operand::Kind::kRegister;
  operand.place = list;
  add_step({std::move(operand)}, {static_cast<int64_t>(result)}).element = index;
}

void Program::finish(std::vector<Operand> outputs) {
  outputs_ = std::move(outputs);
  std::vector<bool> is_read(registers_, false);
  for (const Operand& output : outputs_) {
    output.visit_registers([&](size_t place) { is_read[place] = true; });
  }
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    const auto read_last = [&](size_t place) {
      if (!is_read[place]) step->emptied.push_back(place);
      is_read[place] = true;
    };
    for (int64_t& result : step->results) {  // what nothing reads is dropped at once
      if (result != kNoRegister && !is_read[static_cast<size_t>(result)]) result = kNoRegister;
    }
    for (const Operand& operand : step->operands) operand.visit_registers(read_last);
  }
  for (size_t place = 0; place < inputs_; ++place) {
    if (!is_read[place]) unread_inputs_.push_back(place);
  }
}

void Program::run_step(const Step& step, std::vector<c10::IValue>& registers,
                       std::vector<c10::IValue>& stack) const {
  const auto keep = [&](int64_t place, c10::IValue value) {
    if (place != kNoRegister) registers[static_cast<size_t>(place)] = std::move(value);
  };
  stack.clear();
  for (const Operand& operand : step.operands) stack.push_back(operand.value(registers));
  if (step.op.has_value()) {
    // A tensor that nothing needs behind this step is freed by the operator's own frame.
    for (const size_t place : step.emptied) registers[place] = c10::IValue();
    step.op->callBoxed(stack);
    for (size_t i = 0; i < step.results.size(); ++i) keep(step.results[i], std::move(stack[i]));
    return;
  }
  if (step.function) {
    keep(step.results[0], step.function(stack));
  } else {
    keep(step.results[0], stack[0].toListRef()[static_cast<size_t>(step.element)]);
  }
  for (const size_t place : step.emptied) registers[place] = c10::IValue();
}

std::vector<c10::IValue> Program::run(std::vector<c10::IValue> values) const {
  TORCH_CHECK(values.size() == inputs_, "a compiled graph with ", inputs_, " inputs was given ",
              values.size());
  values.resize(registers_);
  for (const size_t place : unread_inputs_) values[place] = c10::IValue();
  std::vector<c10::IValue> stack;
  const Step* now = nullptr;
  try {
    for (const Step& step : steps_) {
      now = &step;
      run_step(step, values, stack);
    }
  } catch (c10::Error& error) {
    if (now != nullptr && !now->pass.empty()) {
      error.add_context("pass '" + now->pass + "' put " + now->op->schema().name() +
                        " into the graph; BRINGUP_PASS_VERIFY=1 compares each rewrite with what "
                        "it replaces");
    }
    throw;
  }
  std::vector<c10::IValue> results;
  results.reserve(outputs_.size());
  for (const Operand& output : outputs_) results.push_back(output.value(values));
  return results;
}

}  // namespace bringup::torch_ext::compiler
