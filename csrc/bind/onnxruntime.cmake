# The plugins for ONNX Runtime: csrc/bind/ort*. They need its C header and nothing of it to link; without the header there are
# no plugins.
include(${CMAKE_CURRENT_LIST_DIR}/../runtime/onnxruntime_header.cmake)

function(fuseconv_onnxruntime_library name)
  fuseconv_library(${name} csrc/bind/ort.cpp ${ARGN})
  target_link_libraries(${name} PRIVATE fuseconv_common)
  target_include_directories(${name} SYSTEM PRIVATE ${FUSECONV_ONNXRUNTIME})
endfunction()
