# Builds the plugins for ONNX Runtime from csrc/bind/ort*. They need ONNX Runtime's C header and do not link to ONNX
# Runtime. Without the header, no plugins are built.
include(${CMAKE_CURRENT_LIST_DIR}/../runtime/onnxruntime_header.cmake)

function(fuseconv_onnxruntime_library name)
  fuseconv_library(${name} csrc/bind/ort.cpp ${ARGN})
  target_link_libraries(${name} PRIVATE fuseconv_common)
  target_include_directories(${name} SYSTEM PRIVATE ${FUSECONV_ONNXRUNTIME})
endfunction()
