# One target every room links: the warnings, and the floating-point rules of the numeric contract (docs/numerics.md, N9).
add_library(lockstep_options INTERFACE)
target_include_directories(lockstep_options INTERFACE ${CMAKE_SOURCE_DIR})
set(LOCKSTEP_CXX_OPTIONS -Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers -ffp-contract=off)

# g++ 12 takes inlined copies of short std::strings for faults (its bugs 105651, 105329, 107852).
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND LOCKSTEP_CXX_OPTIONS -Wno-restrict -Wno-array-bounds -Wno-maybe-uninitialized)
endif()
target_compile_options(lockstep_options INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:${LOCKSTEP_CXX_OPTIONS}>")  # nvcc has its own

# A fuzzer sees only the branches that are instrumented: those of the rooms are what it is to explore, not those of its target alone.
if(LOCKSTEP_BUILD_FUZZERS)
  target_compile_options(lockstep_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

# The kernels ask for -O3 themselves (device/CMakeLists.txt); elsewhere it costs minutes of build time and gains nothing.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

set(LOCKSTEP_SANITIZE "" CACHE STRING "Sanitizers to build with, as in -fsanitize=")
if(LOCKSTEP_SANITIZE)
  target_compile_options(lockstep_options INTERFACE -fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(lockstep_options INTERFACE -fsanitize=${LOCKSTEP_SANITIZE})
endif()

# lockstep_computes(TARGET): optimised under the sanitizers too, or its tests would take an hour. The rest compiles in two thirds of the time without.
function(lockstep_computes target)
  if(LOCKSTEP_SANITIZE)
    target_compile_options(${target} PRIVATE -O1)
  endif()
endfunction()

# lockstep_room(NAME DEPENDS ...): a static library of every source below the current folder. One target a room.
function(lockstep_room name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;EXCLUDE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  foreach(pattern IN LISTS ARG_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX ${pattern})
  endforeach()
  add_library(lockstep_${name} STATIC ${sources})
  target_link_libraries(lockstep_${name} PUBLIC lockstep_options ${ARG_DEPENDS})
endfunction()
