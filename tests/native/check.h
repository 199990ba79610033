// A small test harness: TEST cases register themselves, CHECKs report and go on, REQUIRE leaves the
// case. Link check_main.cpp; run the program with part of a name to run some cases only.
#pragma once

#include <exception>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace check {

struct Case {
  const char* name;
  void (*run)();
};

std::vector<Case>& cases();
void fail(const char* file, int line, const std::string& what);

struct Registration {
  Registration(const char* name, void (*run)()) { cases().push_back({name, run}); }
};

// A value in words; what cannot be printed is left out.
template <class T>
std::string shown(const T& value) {
  if constexpr (requires(std::ostringstream& out) { out << value; }) {
    std::ostringstream out;
    out << value;
    return out.str();
  } else {
    return "?";
  }
}

template <class A, class B>
bool same(const A& a, const B& b) {
  if constexpr (std::is_integral_v<A> && std::is_integral_v<B>) {
    return static_cast<__int128>(a) == static_cast<__int128>(b);  // whatever the signs
  } else {
    return a == b;
  }
}

template <class A, class B>
void equal(const char* file, int line, const char* words, const A& actual, const B& expected) {
  if (!same(actual, expected)) {
    fail(file, line,
         std::string(words) + ": got " + shown(actual) + ", expected " + shown(expected));
  }
}

template <class Error, class Fn>
void throws(const char* file, int line, const char* words, std::string_view part, Fn&& fn) {
  try {
    fn();
  } catch (const Error& error) {
    if (std::string_view(error.what()).find(part) == std::string_view::npos) {
      fail(file, line, std::string(words) + ": said \"" + error.what() + "\"");
    }
    return;
  } catch (const std::exception& error) {
    fail(file, line, std::string(words) + ": another exception: " + error.what());
    return;
  }
  fail(file, line, std::string(words) + ": nothing was thrown");
}

}  // namespace check

#define TEST(name)                                           \
  static void name();                                        \
  static const check::Registration name##_case(#name, name); \
  static void name()

#define CHECK(condition)                                           \
  do {                                                             \
    if (!(condition)) check::fail(__FILE__, __LINE__, #condition); \
  } while (false)

#define REQUIRE(condition)                         \
  do {                                             \
    if (!(condition)) {                            \
      check::fail(__FILE__, __LINE__, #condition); \
      return;                                      \
    }                                              \
  } while (false)

#define CHECK_EQ(actual, expected) \
  check::equal(__FILE__, __LINE__, #actual " == " #expected, actual, expected)

// The expression throws `type`, and the message contains `part`.
#define CHECK_THROWS(expression, type, part) \
  check::throws<type>(__FILE__, __LINE__, #expression, part, [&] { (void)(expression); })
