// Runs the registered cases; exit status 1 when one failed or none ran.
#include <atomic>
#include <cstdio>
#include <cstring>

#include "check.h"

namespace check {
namespace {
std::atomic<int> failures{0};
}  // namespace

std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

void fail(const char* file, int line, const std::string& what) {
  ++failures;
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}

}  // namespace check

int main(int argc, char** argv) {
  int ran = 0;
  int failed = 0;
  for (const check::Case& test : check::cases()) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    const int before = check::failures;
    try {
      test.run();
    } catch (const std::exception& error) {
      check::fail(test.name, 0, std::string("uncaught: ") + error.what());
    }
    const bool passed = check::failures == before;
    std::printf("%s %s\n", passed ? "ok    " : "FAILED", test.name);
    failed += passed ? 0 : 1;
    ++ran;
  }
  std::printf("%d run, %d failed\n", ran, failed);
  return ran > 0 && failed == 0 ? 0 : 1;
}
