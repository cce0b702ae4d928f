# The library: every source file of its folders.
find_package(Threads REQUIRED)
find_package(dnnl REQUIRED)
find_package(CLI11 REQUIRED)
find_package(tomlplusplus REQUIRED)
if(WEFT_SANITIZE STREQUAL "")
  # Used only to keep oneDNN, which depends on OpenMP, on the calling thread.
  find_package(OpenMP REQUIRED)
endif()

# WEFT_MPI: AUTO builds the mpi backend if MPI is found. Only distributed/mpi_*.cpp include its
# headers, and users of the library do not need them. Sanitizers report MPI's own leaks and races,
# so AUTO leaves it out there.
set(WEFT_MPI AUTO CACHE STRING "Ranks as processes: AUTO, ON or OFF")
set_property(CACHE WEFT_MPI PROPERTY STRINGS AUTO ON OFF)
if(NOT WEFT_MPI MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "WEFT_MPI must be AUTO, ON or OFF, got ${WEFT_MPI}")
endif()
set(WEFT_HAVE_MPI OFF)
if(WEFT_MPI STREQUAL "ON" OR (WEFT_MPI STREQUAL "AUTO" AND WEFT_SANITIZE STREQUAL ""))
  set(MPI_CXX_SKIP_MPICXX ON)  # the C interface suffices
  find_package(MPI QUIET COMPONENTS CXX)
  set(WEFT_HAVE_MPI ${MPI_CXX_FOUND})
  if(WEFT_MPI STREQUAL "ON" AND NOT WEFT_HAVE_MPI)
    message(FATAL_ERROR "WEFT_MPI is ON, but there is no MPI: install libopenmpi-dev, or set MPI_HOME")
  endif()
endif()

# Compressed text files: read where the libraries are found, else refused with one line.
find_package(ZLIB QUIET)
find_library(WEFT_ZSTD zstd)
find_path(WEFT_ZSTD_INCLUDE zstd.h)
set(WEFT_HAVE_ZSTD OFF)
if(WEFT_ZSTD AND WEFT_ZSTD_INCLUDE)
  set(WEFT_HAVE_ZSTD ON)
endif()

# Tokenizers, with errors and JSON: a part of the library, and also a library of its own that has no
# tensors.
weft_find(weft_tokenizer_sources tokenizer/*.cpp)
list(APPEND weft_tokenizer_sources core/error.cpp io/json.cpp io/json_parse.cpp)

weft_find(weft_sources autograd/*.cpp core/*.cpp core/cpu/*.cpp data/*.cpp distributed/*.cpp io/*.cpp
  nn/*.cpp optim/*.cpp train/*.cpp)
list(REMOVE_ITEM weft_sources ${weft_tokenizer_sources})
if(NOT WEFT_HAVE_MPI)
  list(FILTER weft_sources EXCLUDE REGEX "^distributed/mpi_")
  list(APPEND weft_sources distributed/mpi_world.cpp)  # refuses
endif()
list(TRANSFORM weft_sources PREPEND ${PROJECT_SOURCE_DIR}/)

# core/cpu/simd/*.inc: one translation unit per instruction set, chosen at run time.
list(APPEND weft_sources
  ${PROJECT_SOURCE_DIR}/core/cpu/simd/isa_avx2.cpp
  ${PROJECT_SOURCE_DIR}/core/cpu/simd/isa_avx512.cpp
  ${PROJECT_SOURCE_DIR}/core/cpu/simd/isa_scalar.cpp)
# Only the fma calls written in the code: all three files must give the same bits. GCC 12 warns
# about the "undefined" operands inside its own AVX-512 header.
# The scalar file serves processors without AVX2: with -Og it compiles in half the time of -Os. With
# a sanitizer few tests run it.
set_source_files_properties(core/cpu/simd/isa_scalar.cpp PROPERTIES COMPILE_OPTIONS
  "-ffp-contract=off;$<IF:$<BOOL:${WEFT_SANITIZE}>,-O0,-Og>")
set_source_files_properties(core/cpu/simd/isa_avx2.cpp PROPERTIES COMPILE_OPTIONS
  "-ffp-contract=off;-mavx2;-mfma;-mf16c")
set_source_files_properties(core/cpu/simd/isa_avx512.cpp PROPERTIES COMPILE_OPTIONS
  "-ffp-contract=off;-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mfma;-mf16c;-mprefer-vector-width=512;-Wno-uninitialized;-Wno-maybe-uninitialized")
# Loops over elements benefit from -O3. They are separate files, which a unity build compiles
# separately.
set(weft_loops ${weft_sources})
list(FILTER weft_loops INCLUDE REGEX "/core/cpu/[a-z_]*.cpp$|/distributed/sum_ranks.cpp$")
list(REMOVE_ITEM weft_sources ${weft_loops})
# Of the file and not the target, whose options precede those that enable the checks.
set_property(SOURCE ${weft_loops} core/cpu/simd/isa_scalar.cpp core/cpu/simd/isa_avx2.cpp
  core/cpu/simd/isa_avx512.cpp APPEND PROPERTY COMPILE_OPTIONS ${weft_loop_checks})
# Cold code is all but the tape, the ops that users call on a few elements and most of the core.
set(weft_cold_sources ${weft_sources})
list(FILTER weft_cold_sources INCLUDE REGEX "/(data|distributed|io|nn|optim|train)/[a-z0-9_]*.cpp$\
|/core/(cgroup|cuda_graph|energy|fields|memory_trace|message_object|offload_memory|print|profile\
|profile_table|state_dict).cpp$\
|/autograd/(attention|causal_conv1d|cross_entropy|delayed_gradients|discard|expert_capacity|fp8[a-z_]*\
|gated_delta[a-z_]*|gradcheck|grouped_linear|linear_cross_entropy|mlp|offload|recompute|recurrent|router[a-z_]*\
|save_watch|scaled_activation|sinkhorn|sort|tape_print|token_permute).cpp$")
list(REMOVE_ITEM weft_sources ${weft_cold_sources})

# Properties shared by the objects and the library.
add_library(weft_needs INTERFACE)
target_link_libraries(weft_needs INTERFACE weft_flags DNNL::dnnl Threads::Threads
  CLI11::CLI11 tomlplusplus::tomlplusplus)
if(WEFT_SANITIZE STREQUAL "")
  target_link_libraries(weft_needs INTERFACE OpenMP::OpenMP_CXX)
endif()
if(ZLIB_FOUND)
  target_link_libraries(weft_needs INTERFACE ZLIB::ZLIB)
endif()
if(WEFT_HAVE_ZSTD)
  target_link_libraries(weft_needs INTERFACE ${WEFT_ZSTD})
endif()
set_source_files_properties(io/byte_reader.cpp PROPERTIES COMPILE_DEFINITIONS
  "WEFT_WITH_ZLIB=$<BOOL:${ZLIB_FOUND}>;WEFT_WITH_ZSTD=$<BOOL:${WEFT_HAVE_ZSTD}>")
set_source_files_properties(distributed/mpi_world.cpp PROPERTIES COMPILE_DEFINITIONS
  WEFT_WITH_MPI=$<BOOL:${WEFT_HAVE_MPI}>)
if(WEFT_HAVE_MPI)
  set_source_files_properties(distributed/mpi_messages.cpp PROPERTIES
    INCLUDE_DIRECTORIES "${MPI_CXX_INCLUDE_DIRS}"
    COMPILE_DEFINITIONS "OMPI_SKIP_MPICXX;MPICH_SKIP_MPICXX")
endif()

# CLI11 and <regex> take seconds to compile, and so does toml++: one file includes each. With -Og
# CLI11 compiles as fast as with -O0; <regex> compiles 1 s longer and matches in a fifth of the time.
set_source_files_properties(train/command_line.cpp core/pattern.cpp PROPERTIES
  COMPILE_OPTIONS "-Og;-fno-sanitize=all" SKIP_PRECOMPILE_HEADERS ON)
set_source_files_properties(train/command_line.cpp PROPERTIES
  COMPILE_DEFINITIONS WEFT_VERSION="${PROJECT_VERSION}")

# weft_objects(NAME FILES ... HEADERS ...): objects of the library, with a precompiled header of the
# standard includes and the given ones unless the target is a unity build: that parses each header
# once for thirty-two files, and GCC takes 0.87 of the time with -Og when none is precompiled. ccache
# needs -fpch-preprocess.
function(weft_objects name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "UNITY" "FILES;HEADERS")
  add_library(${name} OBJECT ${arg_FILES})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_compile_features(${name} PUBLIC cxx_std_20)
  # GCC inlines less in large units such as unity builds; small ops were a fifth slower.
  target_compile_options(${name} PRIVATE -ftls-model=initial-exec -fpch-preprocess
    $<$<CXX_COMPILER_ID:GNU>:--param=large-unit-insns=1000000>)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${arg_UNITY})
  if(NOT arg_UNITY)
    list(TRANSFORM arg_HEADERS PREPEND ${PROJECT_SOURCE_DIR}/)
    target_precompile_headers(${name} PRIVATE <algorithm> <cmath> <functional> <string> <vector> ${arg_HEADERS})
  endif()
  target_include_directories(${name} PRIVATE ${weft_include})
  target_link_libraries(${name} PRIVATE weft_needs)
  target_compile_definitions(${name} PRIVATE WEFT_USE_ONEDNN=$<STREQUAL:${WEFT_SANITIZE},>)
endfunction()

weft_objects(weft_cpu UNITY OFF FILES ${weft_loops} HEADERS core/cpu/elementwise_loop.h core/cpu/simd.h
  core/parallel.h)
if(WEFT_SANITIZE STREQUAL "")
  target_compile_options(weft_cpu PRIVATE $<$<CONFIG:Release>:-O3>)
endif()
# The versions of a loop that these passes make cost compile time and gain no speed.
target_compile_options(weft_cpu PRIVATE
  "$<$<CXX_COMPILER_ID:GNU>:-fno-version-loops-for-strides;-fno-peel-loops;-fno-split-loops;-fno-unswitch-loops>")
# A precompiled header requires the flags with which it was compiled.
set_source_files_properties(core/cpu/simd/isa_avx2.cpp core/cpu/simd/isa_avx512.cpp
  core/cpu/simd/isa_scalar.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON)

# weft_host_objects(NAME WITH_CUDA): all files except the CUDA kernels; with WITH_CUDA 1 they call
# the kernels.
function(weft_host_objects name with_cuda)
  set(unity OFF)
  if(CMAKE_UNITY_BUILD)
    set(unity ON)
  endif()
  set(shared UNITY ${unity} HEADERS autograd/elementwise.h autograd/tape.h autograd/view.h
    core/dispatch.h core/error.h)
  weft_objects(${name} FILES ${weft_sources} ${shared})
  weft_objects(${name}_cold FILES ${weft_cold_sources} ${shared})
  target_link_libraries(${name}_cold PRIVATE weft_cold)
  foreach(objects ${name} ${name}_cold)
    target_compile_definitions(${objects} PRIVATE WEFT_WITH_CUDA=${with_cuda})
  endforeach()
endfunction()

list(TRANSFORM weft_tokenizer_sources PREPEND ${PROJECT_SOURCE_DIR}/)
add_library(weft_text OBJECT ${weft_tokenizer_sources})
set_target_properties(weft_text PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_include_directories(weft_text PRIVATE ${weft_include})
target_link_libraries(weft_text PRIVATE weft_flags weft_cold)  # encodes faster than with -O2
add_library(weft_tokenizer SHARED $<TARGET_OBJECTS:weft_text>)
add_library(weft::tokenizer ALIAS weft_tokenizer)
set_target_properties(weft_tokenizer PROPERTIES EXPORT_NAME tokenizer)
target_compile_features(weft_tokenizer PUBLIC cxx_std_20)
target_include_directories(weft_tokenizer PUBLIC
  $<BUILD_INTERFACE:${weft_include}> $<INSTALL_INTERFACE:include>)
target_link_libraries(weft_tokenizer PRIVATE weft_flags)
set_target_properties(weft_tokenizer PROPERTIES LINKER_LANGUAGE CXX)

# weft_library(NAME HOST OBJECTS...): a shared library of these objects.
function(weft_library name host)
  add_library(${name} SHARED)
  foreach(objects weft_text weft_cpu ${host} ${host}_cold ${ARGN})
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:${objects}>)
  endforeach()
  # Calls inside the library go directly to their target instead of through the symbol table.
  target_link_options(${name} PRIVATE -Wl,-Bsymbolic-functions)
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_include_directories(${name} PUBLIC
    $<BUILD_INTERFACE:${weft_include}> $<INSTALL_INTERFACE:include>)
  target_link_libraries(${name} PRIVATE weft_needs)
  if(WEFT_HAVE_MPI)
    target_link_libraries(${name} PRIVATE MPI::MPI_CXX)
  endif()
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
endfunction()

if(WEFT_TESTS OR WEFT_CUDA STREQUAL "EMULATE")
  add_subdirectory(cuda/emu)
endif()
if(WEFT_HAVE_CUDA)
  weft_host_objects(weft_host 1)
  weft_library(weft weft_host weft_cuda)
  # libcudart needs these libraries; it is linked statically, without exporting its symbols.
  target_link_libraries(weft PRIVATE CUDA::cudart_static ${CMAKE_DL_LIBS})
  target_link_options(weft PRIVATE -Wl,--exclude-libs,libcudart_static.a)
elseif(WEFT_CUDA STREQUAL "EMULATE")
  weft_host_objects(weft_host 1)
  weft_library(weft weft_host weft_emulated)
else()
  weft_host_objects(weft_host 0)
  weft_library(weft weft_host)
endif()
add_library(weft::weft ALIAS weft)

# The library again with an emulated GPU, for the tests of the CUDA kernels.
if(WEFT_CUDA STREQUAL "EMULATE")
  add_library(weft_emu ALIAS weft)
elseif(WEFT_TESTS)
  if(WEFT_HAVE_CUDA)
    weft_library(weft_emu weft_host weft_emulated)
  else()
    weft_host_objects(weft_host_for_gpu 1)
    weft_library(weft_emu weft_host_for_gpu weft_emulated)
  endif()
  target_compile_definitions(weft_emu INTERFACE WEFT_WITH_CUDA=1)
endif()
if(WEFT_HAVE_CUDA OR WEFT_CUDA STREQUAL "EMULATE")
  # core/dispatch.h in a program must know what the library contains.
  target_compile_definitions(weft INTERFACE WEFT_WITH_CUDA=1)
endif()
