# Sets FUSECONV_ONNXRUNTIME to the folder that contains onnxruntime_c_api.h, ONNX Runtime's C header. No Python package
# contains this header.
#
# The header is searched for in $FUSECONV_ONNXRUNTIME_INCLUDE, in the system, and in the distribution's package
# libonnxruntime-dev. The package is downloaded and unpacked in the build folder, never installed. Debian provides it
# from trixie on, and trixie's package also works on an older Debian. If the header is not found, a message says so.

set(FUSECONV_ONNXRUNTIME_OLDEST 17) # kApiVersion of csrc/bind/ort.h and csrc/runtime/onnx_runner.cpp

function(fuseconv_unpack_onnxruntime folder)
  find_program(APT_GET apt-get)
  find_program(DPKG dpkg)
  if(NOT APT_GET OR NOT DPKG)
    return()
  endif()
  file(MAKE_DIRECTORY ${folder}/lists/partial ${folder}/cache/archives/partial)
  execute_process(COMMAND ${APT_GET} download libonnxruntime-dev WORKING_DIRECTORY ${folder} OUTPUT_QUIET ERROR_QUIET)
  file(GLOB package ${folder}/*.deb)
  if(NOT package)
    # Uses trixie's package from the mirror that this Debian uses. All of apt's state is in the build folder.
    execute_process(COMMAND ${APT_GET} indextargets --format "$(REPO_URI)" "Created-By: Packages" "Component: main"
                    OUTPUT_VARIABLE mirrors ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    string(REGEX MATCH "[^\n]*/debian/" mirror "${mirrors}")
    if(NOT mirror)
      return()
    endif()
    file(WRITE ${folder}/trixie.list "deb ${mirror} trixie main\n")
    set(apt ${APT_GET} -qq -o Dir::Etc::SourceList=${folder}/trixie.list -o Dir::Etc::SourceParts=/dev/null
            -o Dir::State::Lists=${folder}/lists -o Dir::Cache=${folder}/cache -o Acquire::Languages=none)
    execute_process(COMMAND ${apt} update WORKING_DIRECTORY ${folder} OUTPUT_QUIET ERROR_QUIET TIMEOUT 120)
    execute_process(COMMAND ${apt} download libonnxruntime-dev WORKING_DIRECTORY ${folder} OUTPUT_QUIET ERROR_QUIET)
    file(REMOVE_RECURSE ${folder}/lists ${folder}/cache)
    file(GLOB package ${folder}/*.deb)
  endif()
  if(package)
    execute_process(COMMAND ${DPKG} -x ${package} ${folder})
  endif()
endfunction()

find_path(FUSECONV_ONNXRUNTIME onnxruntime_c_api.h HINTS $ENV{FUSECONV_ONNXRUNTIME_INCLUDE} NO_DEFAULT_PATH)
find_path(FUSECONV_ONNXRUNTIME onnxruntime_c_api.h PATH_SUFFIXES onnxruntime onnxruntime/core/session)
if(NOT FUSECONV_ONNXRUNTIME)
  set(unpacked ${CMAKE_CURRENT_BINARY_DIR}/onnxruntime)
  if(NOT EXISTS ${unpacked}/usr/include/onnxruntime)
    fuseconv_unpack_onnxruntime(${unpacked})
  endif()
  find_path(FUSECONV_ONNXRUNTIME onnxruntime_c_api.h PATHS ${unpacked}/usr/include/onnxruntime NO_DEFAULT_PATH)
endif()

if(FUSECONV_ONNXRUNTIME)
  file(STRINGS ${FUSECONV_ONNXRUNTIME}/onnxruntime_c_api.h version REGEX "^#define ORT_API_VERSION [0-9]+$")
  string(REGEX REPLACE ".* " "" version "${version}")
  if(version LESS FUSECONV_ONNXRUNTIME_OLDEST)
    message(WARNING "fuseconv: ${FUSECONV_ONNXRUNTIME} is of ONNX Runtime 1.${version}; what is for ONNX Runtime needs "
                    "the header of 1.${FUSECONV_ONNXRUNTIME_OLDEST} or newer and is left out.")
    set(FUSECONV_ONNXRUNTIME "")
  else()
    message(STATUS "fuseconv: ONNX Runtime's C API ${version} in ${FUSECONV_ONNXRUNTIME}")
  endif()
else()
  message(WARNING "fuseconv: onnxruntime_c_api.h was not found, so what is for ONNX Runtime is left out. Set "
                  "FUSECONV_ONNXRUNTIME_INCLUDE to its folder, or install libonnxruntime-dev.")
endif()
