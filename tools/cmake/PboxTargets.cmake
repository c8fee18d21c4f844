# Build settings of every folder, and the functions that declare targets.
# Contributors' presets build the tests and, except `tsan`, pbox-perf. tools/test --werror makes
# warnings errors. All three options are off by default, so that a plain build needs no test
# framework, and a newer compiler's warnings do not stop it.
option(PBOX_BUILD_TESTS "Build the test programs" OFF)
option(PBOX_BUILD_PERF "Build pbox-perf" OFF)
option(PBOX_WERROR "Treat warnings as errors" OFF)
set(PBOX_SANITIZE "" CACHE STRING "Sanitizers for -fsanitize=: address,undefined or thread")
option(PBOX_FUZZ "Build the libFuzzer targets (clang only)" OFF)
option(PBOX_WHEEL "Build the worker's libraries alone, for worker/python/pyproject.toml" OFF)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

# Each folder installs its own files, as a component: `box`, `worker` and others. Libraries go to
# lib, not to lib/TRIPLET, because the Python package looks for libpbox.so there.
include(GNUInstallDirs)
set(CMAKE_INSTALL_LIBDIR lib)

find_package(Threads REQUIRED)

add_library(pbox_options INTERFACE)
# -ffp-contract=off, because sums must not depend on whether the compiler fuses multiply and add.
target_compile_options(pbox_options INTERFACE -Wall -Wextra -Wpedantic -ffp-contract=off
  $<$<BOOL:${PBOX_WERROR}>:-Werror>)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # Every server since 2009 has SSE4.2 and its CRC32C instruction. Wider vectors are chosen at
  # program start.
  target_compile_options(pbox_options INTERFACE -march=x86-64-v2)
endif()
target_include_directories(pbox_options INTERFACE "${PROJECT_SOURCE_DIR}")
if(PBOX_SANITIZE)
  target_compile_options(pbox_options INTERFACE -fsanitize=${PBOX_SANITIZE}
    -fno-omit-frame-pointer -fno-sanitize-recover=all
    # Sanitizer code hides stores from GCC's flow analysis, which then warns inside <regex>.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(pbox_options INTERFACE -fsanitize=${PBOX_SANITIZE})
  if(PBOX_SANITIZE MATCHES "thread")
    # The thread sanitizer does not understand fences. Each io_context has one thread here, so Asio
    # needs none.
    target_compile_definitions(pbox_options INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
  endif()
endif()
if(PBOX_FUZZ)
  target_compile_options(pbox_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

# pbox_combine(TARGET) chooses the sources of a target that a unity build compiles together, eight
# at a time. Sources of PBOX_MUTATED are grouped only with one another, because pbox-sim-mutants
# compiles them itself and must not link an object that holds them. A source that is compiled once
# for each width of vectors stays alone, because foreach_target.h includes it again.
function(pbox_combine target)
  get_target_property(sources ${target} SOURCES)
  set(mutated_count 0)
  set(other_count 0)
  foreach(source IN LISTS sources)
    if(NOT source MATCHES "\\.cc$")
      continue()
    endif()
    set(path "${source}")
    cmake_path(ABSOLUTE_PATH path)
    file(STRINGS "${path}" is_vectors REGEX "hwy/foreach_target.h" LIMIT_COUNT 1)
    cmake_path(RELATIVE_PATH path BASE_DIRECTORY "${PROJECT_SOURCE_DIR}")
    if(is_vectors)
      continue()
    endif()
    set(kind other)
    if(path IN_LIST PBOX_MUTATED)
      set(kind mutated)
    endif()
    math(EXPR number "${${kind}_count} / 8")
    math(EXPR ${kind}_count "${${kind}_count} + 1")
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${kind}_${number}")
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
endfunction()

# pbox_folder(NAME [DEPENDS lib...] [EXCLUDE regex...]) makes one static library of all .cc files of
# the folder and its subfolders. The target all_verify_interface_header_sets compiles each header
# alone, to prove that it is self-contained.
function(pbox_folder name)
  cmake_parse_arguments(arg "" "" "DEPENDS;EXCLUDE" ${ARGN})
  file(GLOB_RECURSE sources RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" CONFIGURE_DEPENDS "*.cc")
  file(GLOB_RECURSE headers RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" CONFIGURE_DEPENDS "*.h")
  # EXCLUDE matches "/sub/file.cc", never the path of the checkout, which may contain such a name.
  foreach(list_name sources headers)
    list(TRANSFORM ${list_name} PREPEND "/")
    foreach(pattern IN LISTS arg_EXCLUDE)
      list(FILTER ${list_name} EXCLUDE REGEX "${pattern}")
    endforeach()
    list(TRANSFORM ${list_name} PREPEND "${CMAKE_CURRENT_SOURCE_DIR}")
  endforeach()
  if(sources)
    add_library(${name} STATIC ${sources})
    pbox_combine(${name})
    target_link_libraries(${name} PUBLIC pbox_options Threads::Threads ${arg_DEPENDS})
    target_sources(${name} PUBLIC
      FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}" FILES ${headers})
    set_target_properties(${name} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE pbox_options Threads::Threads ${arg_DEPENDS})
  endif()
endfunction()

# pbox_test(NAME LABEL unit|integration|slow [DEPENDS lib...] SOURCES file...) makes one Catch2
# program and its test.
function(pbox_test name)
  cmake_parse_arguments(arg "" "LABEL" "DEPENDS;SOURCES" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE pbox_test_main ${arg_DEPENDS})
  # Optimising a test's own code costs more time than it saves.
  target_compile_options(${name} PRIVATE -O0)
  set_target_properties(${name} PROPERTIES UNITY_BUILD_BATCH_SIZE 16)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABEL}" TIMEOUT 600)
endfunction()
