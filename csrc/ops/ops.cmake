# Generates files from the headers in this folder, each of which defines one op: ops/all.h, the list of ops over which
# the bindings fold, and one file per op and target that compiles the op's kernels. For example, add_relu.h defines the
# op AddRelu.
set(FUSECONV_OPS_FOLDER ${CMAKE_CURRENT_LIST_DIR})
set(FUSECONV_GENERATED ${CMAKE_CURRENT_BINARY_DIR}/generated/ops)
file(GLOB headers CONFIGURE_DEPENDS ${FUSECONV_OPS_FOLDER}/*.h)

set(FUSECONV_OPS)
set(includes)
set(structs)
foreach(header IN LISTS headers)
  cmake_path(GET header STEM op)
  string(REPLACE "_" ";" words ${op})
  set(struct)
  foreach(word IN LISTS words)
    string(SUBSTRING ${word} 0 1 first)
    string(SUBSTRING ${word} 1 -1 rest)
    string(TOUPPER ${first} first)
    string(APPEND struct ${first}${rest})
  endforeach()
  list(APPEND FUSECONV_OPS ${op})
  set(FUSECONV_STRUCT_${op} ${struct})
  string(APPEND includes "#include \"ops/${op}.h\"\n")
  list(APPEND structs ${struct})
endforeach()
list(JOIN structs ", " structs)
file(CONFIGURE OUTPUT ${FUSECONV_GENERATED}/all.h @ONLY
     CONTENT "#pragma once\n\n#include <tuple>\n\n@includes@\nnamespace fuseconv {\nusing AllOps = std::tuple<@structs@>;\n}\n")

# Sets `files` to a list with one file per op that compiles the op's kernels for the target called `name`, whose C++
# type is `target`.
function(fuseconv_instantiations files name suffix target)
  set(made)
  foreach(op IN LISTS FUSECONV_OPS)
    set(Op ${FUSECONV_STRUCT_${op}})
    set(path ${FUSECONV_GENERATED}/${name}/${op}.${suffix})
    configure_file(${FUSECONV_OPS_FOLDER}/instantiation.in ${path} @ONLY)
    list(APPEND made ${path})
  endforeach()
  set(${files} ${made} PARENT_SCOPE)
endfunction()
