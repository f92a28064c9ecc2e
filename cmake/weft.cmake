# Warnings are errors, in our code only.
set(WEFT_WARNINGS -Wall -Wextra -Werror -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wno-missing-field-initializers)

set(WEFT_SANITIZE "" CACHE STRING "address (with undefined), thread, or fuzzer (with both of the first; clang)")
set(WEFT_SANITIZE_FLAGS "")
if(WEFT_SANITIZE STREQUAL "address")
  set(WEFT_SANITIZE_FLAGS -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
elseif(WEFT_SANITIZE STREQUAL "fuzzer")
  set(WEFT_SANITIZE_FLAGS -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
elseif(WEFT_SANITIZE STREQUAL "thread")
  set(WEFT_SANITIZE_FLAGS -fsanitize=thread -fno-omit-frame-pointer)
endif()
add_compile_options(${WEFT_SANITIZE_FLAGS})
add_link_options(${WEFT_SANITIZE_FLAGS})

# What nearly every file includes costs more to read than the files themselves: read once for all (a third of the build).
# The asan and debug presets read it file by file, so a file that forgets an include is found there.
option(WEFT_PRECOMPILE "Read common headers once for all files" ON)
add_library(weft_common_headers STATIC ${CMAKE_SOURCE_DIR}/cmake/common_headers.cc)
target_compile_options(weft_common_headers PRIVATE ${WEFT_WARNINGS})
target_link_libraries(weft_common_headers PRIVATE fmt::fmt nlohmann_json::nlohmann_json)
if(WEFT_PRECOMPILE)
  target_precompile_headers(weft_common_headers PRIVATE <algorithm> <cstdint> <functional> <map> <memory> <optional> <span>
                            <string> <string_view> <vector> <fmt/format.h> <nlohmann/json.hpp>)
endif()
function(weft_read_headers_once target)
  if(WEFT_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM weft_common_headers)
    # g++ 12 forgets that precompiled headers are the system's and warns of what it inlined from them.
    target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-stringop-overflow -Wno-restrict)
  endif()
endfunction()

# weft_library(NAME [DEPENDS weft_base ...]): one static library, weft_NAME, from the .cc files of this folder and
# the subfolders below. Its DEPENDS state the direction of includes; tools/check_layers.py enforces it.
function(weft_library name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;SOURCES" ${ARGN})
  if(NOT ARG_SOURCES)
    set(folders layers orders passes check draw simulate tokenizers)
    list(TRANSFORM folders REPLACE "(.+)" "${CMAKE_CURRENT_SOURCE_DIR}/\\1/*.cc")
    file(GLOB ARG_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc ${folders})
  endif()
  add_library(weft_${name} STATIC ${ARG_SOURCES})
  target_include_directories(weft_${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_compile_options(weft_${name} PRIVATE ${WEFT_WARNINGS})
  target_link_libraries(weft_${name} PUBLIC ${ARG_DEPENDS})
  weft_read_headers_once(weft_${name})
endfunction()

# weft_tests(NAME [STARTS_WEFT] [SERIAL] DEPENDS ... [SOURCES ...]): one test program, NAME_test, from tests/NAME and its
# subfolders (those with a CMakeLists.txt are programs of their own), and one ctest entry per test, NAME.Suite.Test.
# SERIAL: its tests measure time, so ctest runs nothing beside them.
# The entries are listed when ctest starts, by the programs themselves. A process per test costs 2 to 10 ms (no program
# has a costly set-up that its tests share): about 5 s of processor time for a suite that takes 140 s.
include(GoogleTest)
function(weft_tests name)
  cmake_parse_arguments(ARG "STARTS_WEFT;SERIAL" "" "DEPENDS;SOURCES" ${ARGN})
  set(folder ${CMAKE_SOURCE_DIR}/tests/${name})
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.cc ${folder}/*/*.cc)
  file(GLOB other_programs CONFIGURE_DEPENDS ${folder}/*/CMakeLists.txt)
  foreach(program IN LISTS other_programs)
    cmake_path(GET program PARENT_PATH program)
    list(FILTER sources EXCLUDE REGEX "^${program}/")
  endforeach()
  if(NOT sources)
    return()
  endif()
  add_executable(${name}_test ${sources} ${ARG_SOURCES})
  target_include_directories(${name}_test PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_options(${name}_test PRIVATE ${WEFT_WARNINGS})
  target_compile_definitions(${name}_test PRIVATE WEFT_SOURCE_DIR="${CMAKE_SOURCE_DIR}" WEFT_BINARY_DIR="${CMAKE_BINARY_DIR}")
  if(WEFT_SANITIZE STREQUAL "address")  # it checks what is tested; in tests themselves it is a third of their compile time
    target_compile_options(${name}_test PRIVATE -fno-sanitize=undefined)
  endif()
  target_link_libraries(${name}_test PRIVATE ${ARG_DEPENDS} GTest::gtest_main)
  weft_read_headers_once(${name}_test)
  if(ARG_STARTS_WEFT AND TARGET weft)  # they find the executable in the build folder
    add_dependencies(${name}_test weft)
  endif()
  set(properties TIMEOUT 300)
  if(ARG_SERIAL)
    list(APPEND properties RUN_SERIAL ON)
  endif()
  gtest_discover_tests(${name}_test DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 TEST_PREFIX ${name}. NO_PRETTY_TYPES
                       NO_PRETTY_VALUES PROPERTIES ${properties})
  set_property(GLOBAL APPEND PROPERTY WEFT_TEST_PROGRAMS ${name}_test)
endfunction()

# weft_label_tests(SLOW REGEX... THREADS REGEX...), after the last weft_tests(): labels every discovered test `slow` where
# its name matches one of SLOW, otherwise `fast`, and `threads` where it matches one of THREADS.
function(weft_label_tests)
  cmake_parse_arguments(ARG "" "" "SLOW;THREADS" ${ARGN})
  get_property(programs GLOBAL PROPERTY WEFT_TEST_PROGRAMS)
  set(file ${CMAKE_CURRENT_BINARY_DIR}/labels.cmake)
  file(CONFIGURE OUTPUT ${file} @ONLY CONTENT [==[
# One by one: CMake compiles no expression with many parentheses.
set(slow [=[@ARG_SLOW@]=])
set(threads [=[@ARG_THREADS@]=])
foreach(program @programs@)
  foreach(test IN LISTS ${program}_TESTS)
    set(speed fast)
    foreach(expression IN LISTS slow)
      if(test MATCHES "${expression}")
        set(speed slow)
      endif()
    endforeach()
    set(kind "")
    foreach(expression IN LISTS threads)
      if(test MATCHES "${expression}")
        set(kind threads)
      endif()
    endforeach()
    set_tests_properties("${test}" PROPERTIES LABELS "${speed};${kind}")
  endforeach()
endforeach()
]==])
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${file})
endfunction()
