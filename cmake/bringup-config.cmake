# find_package(bringup) for builds outside of this tree: cmake -Dbringup_DIR="$(bringup config --cmake)"
# Gives the target bringup::headers (bringup/kernel.h, bringup/driver.h); there is nothing to link.
# bringup_add_driver(NAME PACKAGE LIBRARIES...): libNAME.so of src/*.c, in the Python package src/PACKAGE.
if(NOT TARGET bringup::headers)
  add_library(bringup::headers INTERFACE IMPORTED)
  get_filename_component(_bringup_include "${CMAKE_CURRENT_LIST_DIR}/../include" ABSOLUTE)
  set_target_properties(bringup::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${_bringup_include}")
  unset(_bringup_include)
endif()

function(bringup_add_driver name package)
  find_package(Threads REQUIRED)
  file(GLOB sources CONFIGURE_DEPENDS src/*.c)
  add_library(${name} MODULE ${sources})
  set_target_properties(${name} PROPERTIES C_STANDARD 11 C_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}/src/${package}")
  target_compile_definitions(${name} PRIVATE _POSIX_C_SOURCE=200809L)
  target_compile_options(${name} PRIVATE -Wall -Wextra -Werror)
  target_link_libraries(${name} PRIVATE bringup::headers Threads::Threads ${ARGN})
  install(TARGETS ${name} LIBRARY DESTINATION ${package})
endfunction()
