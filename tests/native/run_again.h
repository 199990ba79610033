// For tests that need a fresh process image, because a forked one may not use a driver.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>

// This program again, with one test. Under an emulator the kernel cannot run it: TEST_EMULATOR, if
// set, is what can.
[[noreturn]] inline void run_again(const char* test) {
  if (const char* emulator = std::getenv("TEST_EMULATOR")) {
    char path[4096] = "";
    if (readlink("/proc/self/exe", path, sizeof path - 1) < 0) _exit(1);
    const std::string command = std::string("exec ") + emulator + " '" + path + "' " + test;
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
  } else {
    execl("/proc/self/exe", "test", test, nullptr);
  }
  _exit(1);
}
