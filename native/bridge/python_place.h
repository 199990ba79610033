// Where Python is when a program does not say so: in the environment of an installed package.
#pragma once

#include <filesystem>
#include <string>

namespace bringup::bridge {

struct PythonPlace {
  std::string program;  // Py_SetProgramName: decides which standard library and packages there are
  std::string library;  // what dlopen is given: a path, or a name that the loader looks for
  bool is_named = false;  // the library, by the program
  std::string looked;     // what was looked at, for errors
};

// The folder in which `bringup` lies, from the path of the bridge as it was given: a link to the
// bridge alone is followed, one to the whole environment is not.
std::filesystem::path folder_of_package(const std::filesystem::path& bridge);

// `library` and `program` are the program's own choice, or null. Reads pyvenv.cfg; starts nothing.
// Throws BridgeError where `program` is of another Python than the package.
PythonPlace place_of_python(const char* library, const char* program,
                            const std::filesystem::path& package_folder);

}  // namespace bringup::bridge
