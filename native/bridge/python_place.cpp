#include "bridge/python_place.h"

#include <cctype>
#include <cstdlib>
#include <fstream>

#include "bridge/error.h"
#include "bridge_python.h"

namespace bringup::bridge {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStandardLibrary = BRINGUP_BRIDGE_STANDARD_LIBRARY;
constexpr const char* kLibrary = BRINGUP_BRIDGE_LIBRARY;

bool is_there(const fs::path& path) {
  std::error_code unreadable;  // nothing that can be used
  return fs::exists(path, unreadable);
}

// What is under `key` in a file of lines `key = value`; "" without it.
std::string value_in(const fs::path& file, const std::string& key) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    const size_t sign = line.find('=');
    if (sign == std::string::npos) continue;
    const auto trimmed = [](std::string text) {
      while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) {
        text.pop_back();
      }
      size_t first = 0;
      while (first < text.size() && std::isspace(static_cast<unsigned char>(text[first]))) ++first;
      return text.substr(first);
    };
    if (trimmed(line.substr(0, sign)) == key) return trimmed(line.substr(sign + 1));
  }
  return "";
}

// The interpreter of the environment that a folder of packages, PREFIX/lib/python3.X/site-packages,
// belongs to; empty where it is in none (`pip install --target`).
fs::path program_above(const fs::path& folder) {
  const fs::path versioned = folder.parent_path();
  if (versioned.filename().string().rfind("python3", 0) != 0) return {};
  const fs::path prefix = versioned.parent_path().parent_path();
  if (is_there(prefix / "pyvenv.cfg") && is_there(prefix / "bin" / "python")) {
    return prefix / "bin" / "python";
  }
  // Debian's /usr/local/lib/python3.X/dist-packages is of /usr.
  for (const fs::path& above : {prefix, prefix.parent_path()}) {
    if (is_there(above / "bin" / kStandardLibrary)) return above / "bin" / kStandardLibrary;
  }
  return {};
}

// The installation with the standard library, for an interpreter that may be a venv's.
fs::path base_of(const fs::path& program) {
  const std::string home = value_in(program.parent_path().parent_path() / "pyvenv.cfg", "home");
  if (!home.empty()) return fs::path(home).parent_path();
  std::error_code unreadable;
  const fs::path real = fs::canonical(program, unreadable);
  return (unreadable ? program : real).parent_path().parent_path();
}

// A path, or the bare name where the installation has none of its own.
std::string library_of(const fs::path& base) {
  for (const char* folder : {"lib", "lib64"}) {
    if (is_there(base / folder / kLibrary)) return base / folder / kLibrary;
  }
  return kLibrary;
}

bool has_standard_library(const fs::path& base) {
  return is_there(base / "lib" / kStandardLibrary) || is_there(base / "lib64" / kStandardLibrary);
}

// CPython ends the process where it finds no standard library, so this is looked at before.
void check_home() {
  const char* home = std::getenv("PYTHONHOME");
  if (home == nullptr || *home == '\0') return;
  const std::string prefix = std::string(home).substr(0, std::string(home).find(':'));
  if (has_standard_library(prefix)) return;
  throw BridgeError{std::string("PYTHONHOME is ") + home + ", where no lib/" + kStandardLibrary +
                    " is, which the package beside the bridge is for: unset it"};
}

void check_standard_library(const fs::path& program) {
  const fs::path base = base_of(program);
  if (has_standard_library(base)) return;
  throw BridgeError{program.string() + " is no " + kStandardLibrary +
                    ", which the package beside "
                    "the bridge is for: " +
                    base.string() + " has no lib/" + kStandardLibrary +
                    "; name one that is (bringup_python_options.python_program, bringupc: --python "
                    "FILE), or install the package for the other Python"};
}

}  // namespace

fs::path folder_of_package(const fs::path& bridge) {
  const auto above = [](const fs::path& path) {
    return path.parent_path().parent_path().parent_path();
  };
  std::error_code ignored;  // the name as it was given is as good
  const fs::path as_given = above(fs::absolute(bridge, ignored).lexically_normal());
  if (is_there(as_given / "bringup" / "__init__.py") || !program_above(as_given).empty()) {
    return as_given;
  }
  return above(fs::weakly_canonical(bridge, ignored));
}

PythonPlace place_of_python(const char* library, const char* program,
                            const fs::path& package_folder) {
  PythonPlace place;
  if (program != nullptr) {
    place.program = program;
  } else {
    place.program = program_above(package_folder);
  }
  check_home();
  const bool has_path = place.program.find('/') != std::string::npos;
  if (has_path) check_standard_library(place.program);
  place.is_named = library != nullptr;
  if (library != nullptr) {
    place.library = library;
  } else if (has_path) {
    const fs::path base = base_of(place.program);
    place.library = library_of(base);
    place.looked = base.string() + " has no lib/" + kLibrary;
  } else {
    place.library = kLibrary;
    place.looked = place.program.empty()
                       ? "there is no environment around " + package_folder.string()
                       : place.program + " is no path";
  }
  if (place.program.empty()) place.program = kStandardLibrary;  // looked for on PATH
  return place;
}

}  // namespace bringup::bridge
