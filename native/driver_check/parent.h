// Children with a time limit each, and what became of their checks.
#pragma once

#include <string>
#include <vector>

#include "driver_check/context.h"
#include "driver_check/journal.h"

namespace bringup::driver_check {

struct Limits {
  double start_seconds = 60;
  double check_seconds = 20;
};

// What a child is started with.
struct Launch {
  std::string library;
  Kernels kernels;
  std::vector<std::string> emulator;  // what runs this program and its arguments; empty: the kernel
};

struct Result {
  std::string check;
  Outcome outcome = Outcome::kNotRun;
  std::string function;
  std::string reason, expected, got;
  std::vector<std::string> calls;
  double seconds = 0;
};

struct Report {
  DriverSheet sheet{};
  std::string start_failure;  // why no check could be made; "" when they were
  std::string start_function;
  std::vector<std::string> start_calls;
  std::string end_failure;  // how a child without checks ended, where that was no ordinary end
  std::vector<Result> results;
};

// Runs these checks in one child: this program again, never a fork without exec.
Report run_child(const Launch& launch, const std::vector<std::string>& names, const Limits& limits);

}  // namespace bringup::driver_check
