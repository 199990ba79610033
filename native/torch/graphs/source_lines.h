// Where in the user's Python code the operators of a capture were called.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace bringup::torch_ext::graphs {

struct SourceLine {
  struct Function {
    std::string file;
    std::string name;
  };
  std::shared_ptr<const Function> function;  // null where no Python code called
  int line = 0;

  // "model.py:12 in forward", or "".
  std::string text() const;
};

class SourceLines {
 public:
  // `others`: beginnings of the names of files whose code is not the user's.
  explicit SourceLines(std::vector<std::string> others) : others_(std::move(others)) {}
  ~SourceLines();
  SourceLines(const SourceLines&) = delete;
  SourceLines& operator=(const SourceLines&) = delete;

  // Of the innermost function of the user that runs on this thread. Takes the GIL.
  SourceLine here();

 private:
  struct Code {
    nanobind::object held;                                 // so that no other code gets its address
    std::shared_ptr<const SourceLine::Function> function;  // null: not the user's
  };
  const Code& code_of(PyCodeObject* code);

  std::vector<std::string> others_;
  std::unordered_map<const PyCodeObject*, Code> codes_;
};

}  // namespace bringup::torch_ext::graphs
