# Warnings are errors, in our code only.
set(WEFT_WARNINGS -Wall -Wextra -Werror -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wno-missing-field-initializers)

set(WEFT_SANITIZE "" CACHE STRING "address (with undefined) or thread")
set(WEFT_SANITIZE_FLAGS "")
if(WEFT_SANITIZE STREQUAL "address")
  set(WEFT_SANITIZE_FLAGS -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
elseif(WEFT_SANITIZE STREQUAL "thread")
  set(WEFT_SANITIZE_FLAGS -fsanitize=thread -fno-omit-frame-pointer)
endif()
add_compile_options(${WEFT_SANITIZE_FLAGS})
add_link_options(${WEFT_SANITIZE_FLAGS})

# weft_library(NAME [DEPENDS weft_base ...]): one static library, weft_NAME, from the .cc files of this folder.
# Its DEPENDS state the direction of includes; tools/check_layers.py enforces it.
function(weft_library name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;SOURCES" ${ARGN})
  if(NOT ARG_SOURCES)
    file(GLOB ARG_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc ${CMAKE_CURRENT_SOURCE_DIR}/layers/*.cc
         ${CMAKE_CURRENT_SOURCE_DIR}/orders/*.cc ${CMAKE_CURRENT_SOURCE_DIR}/passes/*.cc)
  endif()
  add_library(weft_${name} STATIC ${ARG_SOURCES})
  target_include_directories(weft_${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_compile_options(weft_${name} PRIVATE ${WEFT_WARNINGS})
  target_link_libraries(weft_${name} PUBLIC ${ARG_DEPENDS})
endfunction()

# weft_tests(NAME [STARTS_WEFT] DEPENDS ...): one test program, NAME_test, from tests/NAME/*_test.cc.
function(weft_tests name)
  cmake_parse_arguments(ARG "STARTS_WEFT" "" "DEPENDS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${name}/*.cc)
  if(NOT sources)
    return()
  endif()
  add_executable(${name}_test ${sources})
  target_include_directories(${name}_test PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_options(${name}_test PRIVATE ${WEFT_WARNINGS})
  target_compile_definitions(${name}_test PRIVATE WEFT_SOURCE_DIR="${CMAKE_SOURCE_DIR}" WEFT_BINARY_DIR="${CMAKE_BINARY_DIR}")
  target_link_libraries(${name}_test PRIVATE ${ARG_DEPENDS} GTest::gtest_main)
  if(ARG_STARTS_WEFT AND TARGET weft)  # they find the executable in the build folder
    add_dependencies(${name}_test weft)
  endif()
  add_test(NAME ${name} COMMAND ${name}_test)
endfunction()
