# find_package(fuseconv [COMPONENTS torch onnx]) provides the C++ runtime and the program fuseconv-run.
#
#   fuseconv::runtime  a static library, csrc/runtime, compiled together with the project that uses it: LibTorch's C++
#                      interface changes between releases, so a prebuilt library would fit only one of them
#   fuseconv-run       a program, built only on request
#
# Without COMPONENTS, the package contains `torch`, and also `onnx` if the header onnxruntime_c_api.h is found. `torch`
# runs TorchScript and AOTInductor, in CUDA graphs if LibTorch supports CUDA, and needs LibTorch. `onnx` runs ONNX and
# needs onnxruntime_c_api.h, which is searched for in FUSECONV_ONNXRUNTIME and in the system; the ONNX Runtime library
# is loaded when the program runs. Both need nlohmann/json.hpp, which is searched for in FUSECONV_JSON and in the
# system.
#
# FUSECONV_LIBRARY names an already compiled library, built with the same COMPONENTS and against the same LibTorch.
# `fuseconv verify --build-runtime` keeps such a library next to the program.
set(runtime ${CMAKE_CURRENT_LIST_DIR})
if(FUSECONV_LIBRARY)
  add_library(fuseconv_runtime STATIC IMPORTED)
  add_library(fuseconv::runtime ALIAS fuseconv_runtime)
  set_target_properties(fuseconv_runtime PROPERTIES IMPORTED_LOCATION ${FUSECONV_LIBRARY})
  target_compile_features(fuseconv_runtime INTERFACE cxx_std_20)
  target_include_directories(fuseconv_runtime INTERFACE ${runtime}/include)
  target_link_libraries(fuseconv_runtime INTERFACE ${CMAKE_DL_LIBS})
  if(NOT fuseconv_FIND_COMPONENTS OR "torch" IN_LIST fuseconv_FIND_COMPONENTS)
    find_package(Torch REQUIRED)
    target_link_libraries(fuseconv_runtime INTERFACE -Wl,--no-as-needed ${TORCH_LIBRARIES})
  endif()
  add_executable(fuseconv-run EXCLUDE_FROM_ALL ${runtime}/run.cpp)
  target_link_libraries(fuseconv-run PRIVATE fuseconv_runtime)
  return()
endif()
set(components ${fuseconv_FIND_COMPONENTS})
if(NOT components)
  set(components torch)
  find_path(FUSECONV_ONNXRUNTIME onnxruntime_c_api.h PATH_SUFFIXES onnxruntime)
  if(FUSECONV_ONNXRUNTIME)
    list(APPEND components onnx)
  else()
    message(STATUS "fuseconv: without ONNX, whose onnxruntime_c_api.h was not found: set FUSECONV_ONNXRUNTIME")
  endif()
endif()

# The Python package nlohmann-json is installed next to fuseconv's package, which contains this file in
# share/cmake/fuseconv.
find_path(FUSECONV_JSON nlohmann/json.hpp PATHS ${CMAKE_CURRENT_LIST_DIR}/../../../../nlohmann_json/include)
if(NOT FUSECONV_JSON)
  set(fuseconv_NOT_FOUND_MESSAGE "nlohmann/json.hpp was not found: install nlohmann-json3-dev, pip install nlohmann-json, or set FUSECONV_JSON")
  set(fuseconv_FOUND FALSE)
  return()
endif()

add_library(fuseconv_runtime STATIC ${runtime}/bundle.cpp ${runtime}/contract.cpp ${runtime}/files.cpp ${runtime}/model.cpp
                                    ${runtime}/packages.cpp ${runtime}/safetensors.cpp ${runtime}/sha256.cpp ${runtime}/state.cpp)
add_library(fuseconv::runtime ALIAS fuseconv_runtime)
target_compile_features(fuseconv_runtime PUBLIC cxx_std_20)
target_include_directories(fuseconv_runtime PUBLIC ${runtime}/include PRIVATE ${runtime})
target_include_directories(fuseconv_runtime SYSTEM PRIVATE ${FUSECONV_JSON})
target_link_libraries(fuseconv_runtime PRIVATE ${CMAKE_DL_LIBS})
# The library is compiled as one file, because most of the compile time goes into headers that its files share.
set_target_properties(fuseconv_runtime PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
# These files are compiled separately: they define names of their own and need headers that the others do not need.
set_source_files_properties(${runtime}/onnx_runner.cpp ${runtime}/cuda_graphs.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
# Whatever is loaded is hashed first, which takes ten times as long without compiler optimization.
set_source_files_properties(${runtime}/sha256.cpp PROPERTIES COMPILE_OPTIONS "$<$<CXX_COMPILER_ID:GNU,Clang>:-O3>")

if("torch" IN_LIST components)
  find_package(Torch REQUIRED)
  target_sources(fuseconv_runtime PRIVATE ${runtime}/torch_runner.cpp ${runtime}/weights.cpp)
  if(TORCH_CUDA_LIBRARIES)
    target_sources(fuseconv_runtime PRIVATE ${runtime}/cuda_graphs.cpp)
  else()
    target_sources(fuseconv_runtime PRIVATE ${runtime}/cuda_graphs_absent.cpp)
  endif()
  # The op libraries use symbols of torch's libraries, so all of torch's libraries must be in the process, even those
  # that the linker sees no use of.
  target_link_libraries(fuseconv_runtime PUBLIC -Wl,--no-as-needed ${TORCH_LIBRARIES})
else()
  target_sources(fuseconv_runtime PRIVATE ${runtime}/torch_absent.cpp)
endif()
if("onnx" IN_LIST components)
  find_path(FUSECONV_ONNXRUNTIME onnxruntime_c_api.h PATH_SUFFIXES onnxruntime REQUIRED)
  target_sources(fuseconv_runtime PRIVATE ${runtime}/onnx_runner.cpp)
  target_include_directories(fuseconv_runtime SYSTEM PRIVATE ${FUSECONV_ONNXRUNTIME})
else()
  target_sources(fuseconv_runtime PRIVATE ${runtime}/onnx_absent.cpp)
endif()

add_executable(fuseconv-run EXCLUDE_FROM_ALL ${runtime}/run.cpp)
target_link_libraries(fuseconv-run PRIVATE fuseconv_runtime)
