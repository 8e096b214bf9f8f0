# The kernels of backend/cuda compiled by nvcc and put into the program.
#
# One kernels/X.cu becomes one fat binary: machine code for several cards; when it is for all of them, also
# PTX, which a driver compiles for cards that came later. A generated C file holds the fat binaries and
# their table (cuda_images.h). Without kernels the table is empty, and the program says so when it is
# asked for a card.
#
#   SPILLWAY_CUDA        auto: where nvcc is, for the cards of this machine; ON: needs nvcc; OFF
#   SPILLWAY_CUDA_ARCHS  cards as nvcc names them; empty: those of this machine; all: every card that
#                        spillway runs on (`make cuda`), which takes minutes
#
# What nvcc says of registers and spills is kept beside each fat binary, for tools/cuda_report.
set(SPILLWAY_CUDA auto CACHE STRING "kernels for NVIDIA cards: auto, ON, OFF")
set(SPILLWAY_CUDA_ARCHS "" CACHE STRING "compute capabilities, for example 86;90a; empty: of the cards here; all")
# All: machine code of 80 is that of 86 too, and PTX of 90 serves what came later.
set(cuda_archs_all 75 80 89 90a 120a)
set(cuda_ptx 90)

# The cards of this machine, as nvcc names them.
function(cuda_archs_here out)
  set(archs "")
  find_program(NVIDIA_SMI nvidia-smi)
  mark_as_advanced(NVIDIA_SMI)
  if(NVIDIA_SMI)
    execute_process(COMMAND ${NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE said RESULT_VARIABLE failed ERROR_QUIET)
    if(NOT failed)
      string(REGEX MATCHALL "[0-9]+\\.[0-9]" archs "${said}")
      list(REMOVE_DUPLICATES archs)
      list(TRANSFORM archs REPLACE "\\." "")
      list(TRANSFORM archs REPLACE "^(90|120)$" "\\1a")
    endif()
  endif()
  set(${out} "${archs}" PARENT_SCOPE)
endfunction()

# Sets cuda_archs to what shall be compiled, nothing: no kernels.
function(cuda_decide)
  set(cuda_archs "" PARENT_SCOPE)
  string(TOLOWER "${SPILLWAY_CUDA}" wish)
  if(wish STREQUAL "auto")
    # An instrumented program is for the tests, which bring their own kernels (CudaEmulator.cmake).
    if(SPILLWAY_SANITIZE OR SPILLWAY_FUZZ OR SPILLWAY_COVERAGE)
      return()
    endif()
  elseif(NOT SPILLWAY_CUDA)
    message(STATUS "CUDA: off")
    return()
  endif()
  find_program(SPILLWAY_NVCC NAMES "$ENV{CUDACXX}" nvcc PATHS /usr/local/cuda/bin)
  if(NOT SPILLWAY_NVCC)
    if(NOT wish STREQUAL "auto")
      message(FATAL_ERROR "SPILLWAY_CUDA is on, and there is no nvcc (CUDACXX may name it)")
    endif()
    message(STATUS "CUDA: no nvcc here, the program will run on the CPU only")
    return()
  endif()
  set(archs "${SPILLWAY_CUDA_ARCHS}")
  if(NOT archs)
    cuda_archs_here(archs)
  endif()
  if(archs STREQUAL "all" OR (NOT archs AND NOT wish STREQUAL "auto"))
    set(archs ${cuda_archs_all})
  endif()
  if(NOT archs)
    message(STATUS "CUDA: nvcc but no card here; `make cuda` compiles the kernels for all cards")
    return()
  endif()
  message(STATUS "CUDA: kernels for ${archs}, by ${SPILLWAY_NVCC}")
  set(cuda_archs ${archs} PARENT_SCOPE)
endfunction()

function(cuda_kernels target)
  set(folder ${CMAKE_BINARY_DIR}/cuda)
  set(embedded "")
  set(entries "")
  set(images "")
  set(flags "")
  file(MAKE_DIRECTORY ${folder})
  cuda_decide()
  foreach(arch ${cuda_archs})
    list(APPEND flags -gencode=arch=compute_${arch},code=sm_${arch})
  endforeach()
  if(cuda_archs STREQUAL cuda_archs_all)
    list(APPEND flags -gencode=arch=compute_${cuda_ptx},code=compute_${cuda_ptx})
  endif()
  if(cuda_archs)
    file(GLOB kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cuda/kernels/*.cu)
  endif()
  foreach(file ${kernels})
    get_filename_component(stem ${file} NAME_WE)
    set(image ${folder}/${stem}.fatbin)
    add_custom_command(
      OUTPUT ${image}
      COMMAND ${SPILLWAY_NVCC} -std=c++17 -O3 -I${CMAKE_SOURCE_DIR}/src --resource-usage ${flags}
              -MD -MT ${image} -MF ${folder}/${stem}.d -fatbin -o ${image} ${file}
              > ${folder}/${stem}.log 2>&1 || (cat ${folder}/${stem}.log && false)
      DEPENDS ${file}
      DEPFILE ${folder}/${stem}.d
      COMMENT "nvcc ${stem}.cu")
    list(APPEND images ${image})
    string(APPEND embedded "    \".balign 64\\ncuda_image_${stem}:\\n.incbin \\\"${image}\\\"\\n\"\n")
    string(APPEND declared
           "extern const unsigned char cuda_image_${stem}[] __attribute__((visibility(\"hidden\")));\n")
    string(APPEND entries "    {\"${stem}\", cuda_image_${stem}},\n")
  endforeach()
  if(embedded)
    set(embedded "__asm__(\n    \".section .rodata\\n\"\n${embedded}    \".previous\\n\");\n\n")
  endif()
  file(CONFIGURE OUTPUT ${folder}/cuda_images_table.c @ONLY CONTENT
"/* The table of compiled kernels, written by cmake/CudaKernels.cmake. */
#include \"backend/cuda/cuda_images.h\"

#include <stddef.h>

@embedded@@declared@
const struct cuda_image cuda_images[] = {
@entries@    {NULL, NULL},
};
")
  set_source_files_properties(${folder}/cuda_images_table.c PROPERTIES OBJECT_DEPENDS "${images}")
  target_sources(${target} PRIVATE ${folder}/cuda_images_table.c)
  add_custom_target(cuda_fatbins DEPENDS ${images})
  target_link_libraries(${target} PUBLIC ${CMAKE_DL_LIBS})
endfunction()
