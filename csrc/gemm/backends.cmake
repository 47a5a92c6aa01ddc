# The CUDA backends of linear_act, in the folder of this file.
#
# fuseconv_gemm_backends(<target>) defines <target>, a framework-free static library of the backends, for
# FUSECONV_CUDA_ARCHS. It requires only nvcc 12.3 or newer: the Hopper kernel uses no other library. cuBLASLt becomes a
# backend if cublasLt.h is found in $FUSECONV_CUBLAS_INCLUDE, in the CUDA toolkit, or in the Python package
# nvidia-cublas; otherwise a message says what is left out. The build does not need the cuBLASLt library itself: a stub
# with its soname stands in, and torch has loaded the real library.
#
# fuseconv_gemm_library(<target> <backends>) adds a shared library of these backends with a plain C interface. It is
# built only on request, and is used by bench/linear_library.py and tests/gpu/test_linear_backends.py.

set(FUSECONV_GEMM ${CMAKE_CURRENT_LIST_DIR})
# Reads the names of the activations from their list in sm90_kernel_table.h.
file(READ ${FUSECONV_GEMM}/sm90_kernel_table.h activations)
string(REGEX MATCHALL "\n  DO\\([a-z_0-9]+" FUSECONV_SM90_ACTIVATIONS "${activations}")
list(TRANSFORM FUSECONV_SM90_ACTIVATIONS REPLACE "\n  DO\\(" "")
if(NOT "gelu_tanh" IN_LIST FUSECONV_SM90_ACTIVATIONS)
  message(FATAL_ERROR "sm90_kernel_table.h has no list of activations that this file can read: ${FUSECONV_SM90_ACTIVATIONS}")
endif()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${FUSECONV_GEMM}/sm90_kernel_table.h)

function(fuseconv_gemm_backends target)
  find_package(CUDAToolkit 12.3 REQUIRED)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import sysconfig; print(sysconfig.get_path('purelib'))"
    OUTPUT_VARIABLE packages OUTPUT_STRIP_TRAILING_WHITESPACE)
  find_path(FUSECONV_CUBLAS_INCLUDE cublasLt.h
            HINTS $ENV{FUSECONV_CUBLAS_INCLUDE} ${CUDAToolkit_INCLUDE_DIRS} ${packages}/nvidia/cu13/include
                  ${packages}/nvidia/cublas/include
            NO_DEFAULT_PATH)

  add_library(${target} STATIC ${FUSECONV_GEMM}/backends.cpp ${FUSECONV_GEMM}/choices.cpp ${FUSECONV_GEMM}/pass.cu
                               ${FUSECONV_GEMM}/sm80.cu ${FUSECONV_GEMM}/tensor_map.cpp
                               ${FUSECONV_GEMM}/../tuning/tactics.cpp ${FUSECONV_GEMM}/../tuning/process.cpp)
  fuseconv_cuda_code(${target} ${FUSECONV_CUDA_ARCHS})
  if("90a" IN_LIST FUSECONV_CUDA_ARCHS)
    # Each activation is one translation unit, so that they build in parallel. Only this architecture has the
    # instructions that they use.
    foreach(activation IN LISTS FUSECONV_SM90_ACTIVATIONS)
      add_library(${target}_${activation} OBJECT ${FUSECONV_GEMM}/sm90_kernels.cu)
      target_compile_definitions(${target}_${activation} PRIVATE FUSECONV_ACTIVATION=${activation})
      fuseconv_cuda_code(${target}_${activation} 90a)
      fuseconv_gemm_options(${target}_${activation})
      target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_${activation}>)
    endforeach()
    add_library(${target}_tf32x3 OBJECT ${FUSECONV_GEMM}/tf32x3.cu)
    fuseconv_cuda_code(${target}_tf32x3 90a)
    fuseconv_gemm_options(${target}_tf32x3)
    target_sources(${target} PRIVATE ${FUSECONV_GEMM}/sm90.cpp $<TARGET_OBJECTS:${target}_tf32x3>)
  else()
    target_sources(${target} PRIVATE ${FUSECONV_GEMM}/sm90_absent.cpp ${FUSECONV_GEMM}/tf32x3_absent.cpp)
  endif()
  fuseconv_gemm_options(${target})
  find_path(FUSECONV_JSON nlohmann/json.hpp PATHS ${packages}/nlohmann_json/include REQUIRED)
  target_include_directories(${target} SYSTEM PRIVATE ${FUSECONV_JSON})

  if(FUSECONV_CUBLAS_INCLUDE)
    file(STRINGS ${FUSECONV_CUBLAS_INCLUDE}/cublas_api.h major REGEX "#define CUBLAS_VER_MAJOR")
    string(REGEX REPLACE ".* " "" major "${major}")
    if(NOT TARGET cublasLt)
      fuseconv_stand_in(cublasLt libcublasLt.so.${major})
    endif()
    target_sources(${target} PRIVATE ${FUSECONV_GEMM}/cublaslt.cpp ${FUSECONV_GEMM}/cublaslt_problem.cpp)
    target_include_directories(${target} SYSTEM PRIVATE ${FUSECONV_CUBLAS_INCLUDE})
    target_link_libraries(${target} PUBLIC cublasLt)
  else()
    message(WARNING "fuseconv: cublasLt.h was not found, so linear_act is built without its backends cublaslt and cublas. "
                    "Install nvidia-cublas beside the Python that builds, or set FUSECONV_CUBLAS_INCLUDE to its folder.")
    target_sources(${target} PRIVATE ${FUSECONV_GEMM}/cublaslt_absent.cpp)
  endif()
endfunction()

function(fuseconv_gemm_library target backends)
  add_library(${target} SHARED EXCLUDE_FROM_ALL ${FUSECONV_GEMM}/c_api.cpp)
  fuseconv_gemm_options(${target})
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET default)
  # This library must load cublasLt although the linker sees only a stub. In a process with torch, torch's own is
  # already loaded.
  target_link_options(${target} PRIVATE -Wl,--no-as-needed)
  target_link_libraries(${target} PRIVATE ${backends} CUDA::cudart_static)
endfunction()

function(fuseconv_gemm_options target)
  target_link_libraries(${target} PRIVATE fuseconv_common)
  target_include_directories(${target} PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
endfunction()
