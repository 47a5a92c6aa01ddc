# The page of `fuseconv report`, built with npm in the build folder. Without npm the command says what is missing.
option(FUSECONV_REPORT "Build the page of fuseconv report if npm is found" ON)
find_program(FUSECONV_NPM npm)

set(page ${CMAKE_CURRENT_SOURCE_DIR}/fuseconv/lib/report.html)
if(FUSECONV_REPORT AND FUSECONV_NPM)
  set(frontend ${CMAKE_CURRENT_LIST_DIR})
  set(copy ${CMAKE_CURRENT_BINARY_DIR}/report)
  file(GLOB page_sources CONFIGURE_DEPENDS ${frontend}/*.json ${frontend}/*.mjs ${frontend}/src/*)
  add_custom_command(
    OUTPUT ${page}
    COMMAND ${CMAKE_COMMAND} -E rm -rf ${copy}/src
    COMMAND ${CMAKE_COMMAND} -E copy_directory ${frontend} ${copy}
    COMMAND ${CMAKE_COMMAND} -E chdir ${copy} ${FUSECONV_NPM} ci --ignore-scripts --no-audit --no-fund --loglevel=error
    COMMAND ${CMAKE_COMMAND} -E chdir ${copy} ${FUSECONV_NPM} run --silent check
    COMMAND ${CMAKE_COMMAND} -E chdir ${copy} ${FUSECONV_NPM} run --silent build -- ${page}
    DEPENDS ${page_sources}
    COMMENT "The page of fuseconv report; -DFUSECONV_REPORT=OFF leaves it out"
    VERBATIM)
  add_custom_target(fuseconv_report ALL DEPENDS ${page})
  install(FILES ${page} DESTINATION fuseconv/lib)
else()
  file(REMOVE ${page})
endif()
