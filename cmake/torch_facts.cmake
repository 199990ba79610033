# torch_dir, torch_cxx11, torch_version and torch_key of the interpreter's torch; without one the key is empty.
# Torch is found in the interpreter's environment and never installed or changed.
execute_process(
  COMMAND ${Python_EXECUTABLE} -c "
import pathlib, sys, torch
minor = '.'.join(torch.__version__.split('.')[:2])
print(pathlib.Path(torch.__file__).parent)
print(int(torch._C._GLIBCXX_USE_CXX11_ABI))
print(torch.__version__)
print(f'torch-{minor}-cp{sys.version_info[0]}{sys.version_info[1]}{sys.abiflags}')"
  OUTPUT_VARIABLE torch_facts OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE torch_missing ERROR_QUIET)
if(torch_missing)
  set(torch_key "")
  message(WARNING "torch is not importable: building without the torch library (operators and devices will be missing)")
  return()
endif()
string(REPLACE "\n" ";" torch_facts "${torch_facts}")
list(GET torch_facts 0 torch_dir)
list(GET torch_facts 1 torch_cxx11)
list(GET torch_facts 2 torch_version)
list(GET torch_facts 3 torch_key)
# Its private members are used: another minor version ends in errors of the compiler, or is no torch device at all.
file(STRINGS "${CMAKE_SOURCE_DIR}/native/torch/common/torch_private.h" written_for REGEX "TORCH_VERSION_MINOR ==")
string(REGEX REPLACE ".*MAJOR == ([0-9]+) && .*MINOR == ([0-9]+).*" "\\1.\\2" written_for "${written_for}")
if(NOT torch_version MATCHES "^${written_for}[.]")
  message(FATAL_ERROR "bringup is written for torch ${written_for}, and ${Python_EXECUTABLE} has torch "
    "${torch_version}: "
    "pip install torch==${written_for}.*, or build without operators, devices and captured graphs with "
    "-C cmake.define.BRINGUP_TORCH=OFF (jit and passes need no torch)")
endif()
