# One key for all libraries that share the engine's C++ (libbringup_engine.so, _core, libbringup_bridge.so): a digest
# of the headers between them and of the compiler. Two with different keys are refused in one process.
file(GLOB_RECURSE build_key_headers CONFIGURE_DEPENDS
  "${CMAKE_SOURCE_DIR}/native/engine/*.h" "${CMAKE_SOURCE_DIR}/native/bridge/*.h"
  "${CMAKE_SOURCE_DIR}/native/runtime/*.h" "${CMAKE_SOURCE_DIR}/include/bringup/*.h")
list(SORT build_key_headers)
set(build_key_text "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} ${PROJECT_VERSION} ${BRINGUP_SANITIZE}")
foreach(header ${build_key_headers})
  file(SHA256 "${header}" digest)
  string(APPEND build_key_text " ${digest}")
endforeach()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${build_key_headers})
string(SHA256 BRINGUP_BUILD_KEY "${build_key_text}")
string(SUBSTRING "${BRINGUP_BUILD_KEY}" 0 16 BRINGUP_BUILD_KEY)
configure_file("${CMAKE_CURRENT_LIST_DIR}/build_key.h.in" "${CMAKE_BINARY_DIR}/generated/bringup_build_key.h" @ONLY)
