# The kernels of backend/cuda compiled by the C++ compiler, for tests without a card (emulator.h).
#
# sw_cuda_emulator is an object library, so that the kernels, which nobody calls by name, are linked.
# It exists only where there is a C++ compiler and the tests are built; the program needs neither.
set(SPILLWAY_EMULATED "" CACHE STRING
    "regular expression of kernel files for the emulator, for short builds; empty: all")

option(SPILLWAY_EMULATOR_RACES "watch the kernels' shared memory for races (emulator_races.h)" OFF)

# Its threads are not those that ThreadSanitizer knows.
if(NOT CMOCKA_FOUND OR SPILLWAY_FUZZ OR SPILLWAY_SANITIZE MATCHES "thread")
  return()
endif()
include(CheckLanguage)
check_language(CXX)
if(NOT CMAKE_CXX_COMPILER)
  message(STATUS "no C++ compiler: building without the tests of the CUDA backend")
  return()
endif()
enable_language(CXX)
set(CMAKE_CXX_FLAGS_RELEASE "${CMAKE_C_FLAGS_RELEASE}")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "${CMAKE_C_FLAGS_RELWITHDEBINFO}")

file(GLOB emulator_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cuda/emulator/*.c)
file(GLOB emulator_kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cuda/kernels/*.cu)
if(SPILLWAY_EMULATED)
  list(FILTER emulator_kernels INCLUDE REGEX "/kernels/(${SPILLWAY_EMULATED})\\.cu$")
endif()
list(APPEND emulator_kernels ${CMAKE_SOURCE_DIR}/src/backend/cuda/emulator/emulator_test_kernels.cu)
set_source_files_properties(${emulator_kernels} PROPERTIES LANGUAGE CXX)

add_library(sw_cuda_emulator OBJECT EXCLUDE_FROM_ALL ${emulator_sources} ${emulator_kernels})
target_compile_features(sw_cuda_emulator PRIVATE cxx_std_17)
target_link_libraries(sw_cuda_emulator PUBLIC sw_base)
target_compile_options(sw_cuda_emulator PRIVATE
                       "$<$<COMPILE_LANGUAGE:CXX>:-Wno-sign-compare;-Wno-unknown-pragmas;-Wno-unused-function>")
if(SPILLWAY_SANITIZE) # half the time to compile, and instrumented they are slow anyway
  target_compile_options(sw_cuda_emulator PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-O1;-g1>")
endif()
if(SPILLWAY_EMULATOR_RACES)
  target_compile_definitions(sw_cuda_emulator PRIVATE SPILLWAY_EMULATOR_RACES)
  target_compile_options(sw_cuda_emulator PRIVATE
                         "$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=thread;--param=tsan-instrument-func-entry-exit=0;-g1>")
endif()
