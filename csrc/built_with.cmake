# Writes fuseconv/lib/built_with.json: the compiler, and for each of fuseconv's libraries the versions of the components
# from which it was compiled. fuseconv/provenance/sbom.py makes the SBOM of a bundle from this file, and contains the
# names and licenses of the components.
function(fuseconv_version_of variable file pattern) # joins the numbers in the matching lines of a header with dots
  file(STRINGS ${file} lines REGEX "${pattern}")
  list(TRANSFORM lines REPLACE ".*[ \t]([0-9]+).*" "\\1")
  list(JOIN lines . version)
  set(${variable} ${version} PARENT_SCOPE)
endfunction()

file(STRINGS ${FUSECONV_TORCH}/version.py torch REGEX "^__version__ = ")
string(REGEX REPLACE ".*'(.*)'.*" "\\1" torch "${torch}")
set(fuseconv_cpu_from "\"torch\": \"${torch}\"")
if(TARGET fuseconv_ort_cpu)
  fuseconv_version_of(onnxruntime ${FUSECONV_ONNXRUNTIME}/onnxruntime_c_api.h "^#define ORT_API_VERSION [0-9]+$")
  set(fuseconv_ort_cpu_from "\"onnxruntime\": \"1.${onnxruntime}\"")
endif()
if(TARGET fuseconv_cuda)
  file(GLOB_RECURSE macros ${FUSECONV_JSON}/nlohmann/detail/abi_macros.hpp)
  fuseconv_version_of(json ${macros} "^#define NLOHMANN_JSON_VERSION_(MAJOR|MINOR|PATCH) ")
  set(cuda "\"cuda\": \"${CMAKE_CUDA_COMPILER_VERSION}\", \"nlohmann-json\": \"${json}\"")
  if(FUSECONV_CUBLAS_INCLUDE)
    fuseconv_version_of(cublas ${FUSECONV_CUBLAS_INCLUDE}/cublas_api.h "^#define CUBLAS_VER_(MAJOR|MINOR|PATCH) ")
    string(APPEND cuda ", \"cublas\": \"${cublas}\"")
  endif()
  set(fuseconv_cuda_from "${fuseconv_cpu_from}, ${cuda}")
  set(fuseconv_ort_cuda_from "${fuseconv_ort_cpu_from}, ${cuda}")
endif()

set(libraries "")
foreach(name fuseconv_cpu fuseconv_ort_cpu fuseconv_cuda fuseconv_ort_cuda)
  if(TARGET ${name})
    set(file ${CMAKE_SHARED_LIBRARY_PREFIX}${name}${CMAKE_SHARED_LIBRARY_SUFFIX})
    list(APPEND libraries "\n  \"${file}\": {${${name}_from}}")
  endif()
endforeach()
list(JOIN libraries "," libraries)
file(WRITE ${CMAKE_CURRENT_SOURCE_DIR}/fuseconv/lib/built_with.json
     "{\n \"compiler\": \"${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}\",\n"
     " \"libraries\": {${libraries}\n }\n}\n")
install(FILES ${CMAKE_CURRENT_SOURCE_DIR}/fuseconv/lib/built_with.json DESTINATION fuseconv/lib)
