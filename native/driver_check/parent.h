// Children with a time limit each, and what became of their checks.
#pragma once

#include <string>
#include <vector>

#include "driver_check/journal.h"

namespace bringup::driver_check {

struct Limits {
  double start_seconds = 60;
  double check_seconds = 20;
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
  std::vector<Result> results;
};

// Runs these checks in one child: this program again, never a fork without exec.
Report run_child(const std::string& library, const std::string& kernels,
                 const std::vector<std::string>& names, const Limits& limits);

}  // namespace bringup::driver_check
