// A graph of operators as a list of steps over registers: run without Python between the steps.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace bringup::torch_ext::compiler {

// What a step reads: a constant, a register, or a list in which registers stand. A register may
// hold a number that only the run tells where a tensor or a float is wanted.
struct Operand {
  enum class Kind {
    kConstant,
    kRegister,
    kTensorRegister,
    kFloatRegister,
    kIntegers,
    kTensors,
    kOptionalTensors
  };

  Kind kind = Kind::kConstant;
  c10::IValue constant;
  size_t place = 0;            // of the register
  std::vector<Operand> items;  // of a list

  bool is_register() const {
    return kind == Kind::kRegister || kind == Kind::kTensorRegister || kind == Kind::kFloatRegister;
  }
  c10::IValue value(const std::vector<c10::IValue>& registers) const;
  void visit_registers(const std::function<void(size_t)>& visit) const;
};

// A number as an operand of an operator on tensors: it does not decide the dtype of the result.
at::Tensor tensor_of_number(const at::Scalar& number);

// What is no operator (a computation of sizes): called with values of registers and constants.
using HostFunction = std::function<c10::IValue(std::vector<c10::IValue>)>;

constexpr int64_t kNoRegister = -1;

// Immutable once it is finished, so threads may run it at once.
class Program {
 public:
  explicit Program(size_t inputs) : inputs_(inputs), registers_(inputs) {}

  size_t inputs() const { return inputs_; }
  size_t new_register() { return registers_++; }

  // Each operand in the order of the schema; a result goes to the register of its number, or to
  // none. `pass` is what an error of the call blames, or empty.
  void add_call(const c10::OperatorHandle& op, std::vector<Operand> operands,
                std::vector<int64_t> results, std::string pass);
  void add_host_call(HostFunction function, std::vector<Operand> operands, int64_t result);
  // One element of a list of tensors.
  void add_element(size_t list, int64_t index, size_t result);
  // From here on: registers are emptied behind the last step that reads them.
  void finish(std::vector<Operand> outputs);

  // `values` are the inputs. Throws what a step throws.
  std::vector<c10::IValue> run(std::vector<c10::IValue> values) const;

 private:
  struct Step {
    std::optional<c10::OperatorHandle> op;
    std::string pass;  // that put it into the graph, or empty
    HostFunction function;
    std::vector<Operand> operands;
    std::vector<int64_t> results;
    int64_t element = 0;
    std::vector<size_t> emptied;
  };

  void run_step(const Step& step, std::vector<c10::IValue>& registers,
                std::vector<c10::IValue>& stack) const;
  Step& add_step(std::vector<Operand> operands, std::vector<int64_t> results);

  size_t inputs_;
  size_t registers_;
  std::vector<size_t> unread_inputs_;
  std::vector<Step> steps_;
  std::vector<Operand> outputs_;
};

}  // namespace bringup::torch_ext::compiler
