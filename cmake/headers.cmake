# weft_headers(VARIABLE OPTION PACKAGE VERSION HASH FOLDER FILE): headers that come from PyPI, pinned by version and hash,
# unpacked once into .cache/; or from the folder that -DOPTION=DIR names (it holds FILE). Sets VARIABLE to the folder to
# include, or to "" with a warning that tells what to do.
function(weft_headers variable option package version hash folder file)
  set(${option} "" CACHE PATH "Folder with ${file}; empty: fetched from PyPI (${package} ${version}) by pip")
  if(${option})
    if(NOT EXISTS ${${option}}/${file})
      message(FATAL_ERROR "${option}=${${option}} has no ${file}")
    endif()
    set(${variable} ${${option}} PARENT_SCOPE)
    return()
  endif()
  set(cache ${CMAKE_SOURCE_DIR}/.cache/${package}-${version})
  if(NOT EXISTS ${cache}/${folder}/${file})
    find_package(Python3 QUIET COMPONENTS Interpreter)
    file(WRITE ${cache}/requirements.txt "${package}==${version} --hash=sha256:${hash}\n")
    # One wheel for all versions of Python: only its headers matter.
    execute_process(
      COMMAND ${Python3_EXECUTABLE} -m pip download --quiet --retries 1 --timeout 20 --no-deps --only-binary :all: --python-version 311
              --implementation cp --abi cp311 --abi none --platform manylinux_2_28_x86_64 --platform any
              --require-hashes -r ${cache}/requirements.txt -d ${cache}
      RESULT_VARIABLE failed OUTPUT_QUIET ERROR_VARIABLE why)
    file(GLOB wheel ${cache}/*.whl)
    if(NOT failed AND wheel)
      file(ARCHIVE_EXTRACT INPUT ${wheel} DESTINATION ${cache} PATTERNS ${folder})
    endif()
  endif()
  if(EXISTS ${cache}/${folder}/${file})
    set(${variable} ${cache}/${folder} PARENT_SCOPE)
  else()
    message(WARNING "${package} ${version} could not be fetched by pip: ${why}\nSlower kernels of our own take its place. "
                    "To have it, name a folder that holds ${file}: -D${option}=DIR")
    set(${variable} "" PARENT_SCOPE)
  endif()
endfunction()
