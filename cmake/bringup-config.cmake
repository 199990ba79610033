# find_package(bringup) for builds outside of this tree: cmake -Dbringup_DIR="$(bringup config --cmake)"
# Gives the target bringup::headers (bringup/kernel.h, bringup/driver.h); there is nothing to link.
if(NOT TARGET bringup::headers)
  add_library(bringup::headers INTERFACE IMPORTED)
  get_filename_component(_bringup_include "${CMAKE_CURRENT_LIST_DIR}/../include" ABSOLUTE)
  set_target_properties(bringup::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${_bringup_include}")
  unset(_bringup_include)
endif()
