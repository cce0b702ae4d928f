# weft_find(OUT PATTERNS...): the source files that match, in path order, relative to the project.
# CONFIGURE_DEPENDS: every build looks again, so a new file needs no line in a list.
function(weft_find out)
  list(TRANSFORM ARGN PREPEND ${PROJECT_SOURCE_DIR}/)
  file(GLOB files RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS ${ARGN})
  list(SORT files)
  set(${out} ${files} PARENT_SCOPE)
endfunction()

# Flags of every target of this project. They do not apply to a consumer's targets.
# -Wrestrict: GCC 12 reports a false overlap in std::string's operator+ (GCC PR 105651).
add_library(weft_warnings INTERFACE)
target_compile_options(weft_warnings INTERFACE -Wall -Wextra -Wno-restrict -Wshadow=local
                                               -fno-math-errno)
# GCC collects its garbage only above this many KB: unity builds with sanitizers compile in 0.87 of
# the time, others in 0.92, for up to half a GB and 0.1 GB more memory.
target_compile_options(weft_warnings INTERFACE
  "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=1000000>")
if(WEFT_WERROR)
  target_compile_options(weft_warnings INTERFACE -Werror)
endif()
add_library(weft_flags INTERFACE)
target_link_libraries(weft_flags INTERFACE weft_warnings)
if(WEFT_SANITIZE)
  # The build type is Release, for the objects that are shared with other builds
  # (cmake/tests.cmake). GCC 12 reports uninitialised members of std::variant in instrumented code.
  target_compile_options(weft_flags INTERFACE "$<$<CONFIG:Release>:-O1;-g1;-UNDEBUG>"
                                              -Wno-maybe-uninitialized)
endif()
if(WEFT_SANITIZE STREQUAL "address")
  target_compile_options(weft_flags INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=all
                                              -fno-omit-frame-pointer)
  target_link_options(weft_warnings INTERFACE -fsanitize=address,undefined)
  # Not for numeric loops. With a scope for each temporary and a check of each reference, their
  # vectors lie in memory: core/cpu/simd/isa_avx2.cpp compiled in 105 s of processor time instead
  # of 21, and twenty steps of a small GPT took 2.4 s instead of 0.7. What loops access is checked.
  set(weft_kernel_checks -fno-sanitize-address-use-after-scope -fno-sanitize=null,pointer-overflow)
  set(weft_loop_checks ${weft_kernel_checks} -fno-sanitize=alignment)
elseif(WEFT_SANITIZE STREQUAL "thread")
  target_compile_options(weft_flags INTERFACE -fsanitize=thread)
  target_link_options(weft_warnings INTERFACE -fsanitize=thread)
elseif(WEFT_SANITIZE)
  message(FATAL_ERROR "WEFT_SANITIZE must be address or thread, got ${WEFT_SANITIZE}")
endif()

# Code that runs a few times per step and layer, or once, is compiled for fast compilation. A target
# links weft_cold after weft_flags, whose level it replaces. -Og compiles in 0.7 of the time of -O1,
# and makes GCC 12 see uninitialised members in optionals and variants that it analyses correctly
# with -O1. With a sanitizer -O0 compiles in 0.45 of the time of -O1, and few tests spend their time
# in such code.
add_library(weft_cold INTERFACE)
if(WEFT_SANITIZE STREQUAL "")
  target_compile_options(weft_cold INTERFACE $<$<CONFIG:Release>:-Og>
    $<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU>>:-Wno-maybe-uninitialized>)
else()
  target_compile_options(weft_cold INTERFACE $<$<NOT:$<CONFIG:Debug>>:-O0>)
endif()
