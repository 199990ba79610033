#include "sim/faults_control.h"

#include <cstdio>
#include <exception>
#include <string>

#include "sim/faults.h"
#include "sim/simulator.h"

using bringup::sim::FaultPlan;
using bringup::sim::Faults;
using bringup::sim::simulator;

uint64_t bringup_sim_add_faults(const char* settings, char* problem, size_t problem_size) {
  try {
    simulator();  // those of the environment come first
    return Faults::instance().add(FaultPlan::parse(settings, false));
  } catch (const std::exception& error) {
    std::snprintf(problem, problem_size, "%s", error.what());
    return 0;
  }
}

void bringup_sim_remove_faults(uint64_t number) {
  Faults::instance().remove(number);
  try {
    simulator().wake_streams();
  } catch (const std::exception&) {  // the process ends, or is a forked child: nothing waits
  }
}

size_t bringup_sim_fault_counts(uint64_t number, char* text, size_t text_size) {
  std::string lines;
  if (const auto set = Faults::instance().find(number)) {
    for (const auto& [function, count] : set->counts()) {
      lines += std::string(name_of(function)) + " " + std::to_string(count.calls) + " " +
               std::to_string(count.injected) + "\n";
    }
  }
  std::snprintf(text, text_size, "%s", lines.c_str());
  return lines.size() + 1;
}
