# WEFT_CUDA: AUTO builds the CUDA kernels if a toolkit is found. EMULATE compiles them for the CPU
# into the library itself: an emulated GPU for the sanitizer jobs.
set(WEFT_CUDA AUTO CACHE STRING "CUDA kernels: AUTO, ON, OFF or EMULATE")
set_property(CACHE WEFT_CUDA PROPERTY STRINGS AUTO ON OFF EMULATE)
if(NOT WEFT_CUDA MATCHES "^(AUTO|ON|OFF|EMULATE)$")
  message(FATAL_ERROR "WEFT_CUDA must be AUTO, ON, OFF or EMULATE, got ${WEFT_CUDA}")
endif()

option(WEFT_PTXAS_REPORT "Keep registers and spills of every CUDA kernel beside its object, for scripts/check_registers.py" OFF)

# The compiler runs once, to PTX for compute_80, from which ptxas generates the code of each GPU. No
# kernel uses a later architecture: the code is identical, byte for byte, to that from its own PTX.
# compute_80 in the list keeps the PTX, which other GPUs compile at load time.
set(WEFT_CUDA_CODE "sm_80;sm_90a;compute_80" CACHE STRING
  "Code of the CUDA kernels, unless CMAKE_CUDA_ARCHITECTURES says it; compute_80 is PTX")

# Also for the emulated GPU: cuda/emu/CMakeLists.txt.
weft_find(weft_cuda_kernels cuda/*.cu)
weft_find(weft_cuda_test_kernels tests/cuda/*.cu)  # in the test programs only

set(WEFT_HAVE_CUDA OFF)
if(WEFT_CUDA MATCHES "^(AUTO|ON)$")
  # The toolkit is often installed but not on the PATH, the only place where CMake looks.
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(WEFT_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
    if(WEFT_NVCC)
      set(CMAKE_CUDA_COMPILER ${WEFT_NVCC} CACHE FILEPATH "The CUDA compiler")
    endif()
  endif()
  set(weft_cuda_code)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES OFF)
    list(JOIN WEFT_CUDA_CODE "," weft_cuda_code)
    set(weft_cuda_code "--generate-code=arch=compute_80,code=[${weft_cuda_code}]")
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    # For nvcc the level applies to the host code of a file, which only launches kernels. The
    # kernels are always optimized.
    string(REPLACE "-O3" "-O1" CMAKE_CUDA_FLAGS_RELEASE "${CMAKE_CUDA_FLAGS_RELEASE}")
    if(NOT "cuda_std_20" IN_LIST CMAKE_CUDA_COMPILE_FEATURES)  # CMake 3.25 has no C++20 for nvcc
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
      list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
      set(CMAKE_CUDA20_COMPILE_FEATURES cuda_std_20)
    endif()
    find_package(CUDAToolkit 12 REQUIRED)
    set(WEFT_HAVE_CUDA ON)
  elseif(WEFT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "WEFT_CUDA is ON, but there is no nvcc: put it on the PATH, or set CUDACXX")
  endif()
endif()

# weft_native_kernels(NAME FILES...): objects for the GPU.
function(weft_native_kernels name)
  add_library(${name} OBJECT ${ARGN})
  # constexpr functions are shared with the CPU kernels. 186: comparison of an unsigned number with
  # 0, which occurs in templates.
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-restrict>)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr
    ${weft_cuda_code} --diag-suppress=186 -Xcompiler=-Wall,-Wextra,-ftls-model=initial-exec>)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON CUDA_STANDARD 20
    CUDA_RUNTIME_LIBRARY Static UNITY_BUILD OFF)  # one ptxas report per file
  target_compile_definitions(${name} PRIVATE WEFT_WITH_CUDA=1)
  target_include_directories(${name} PRIVATE ${weft_include})
  target_include_directories(${name} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  if(WEFT_PTXAS_REPORT)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v>)
    # A list, so that no empty argument is left where no other launcher is set.
    set(launcher ${PROJECT_SOURCE_DIR}/scripts/keep_report.sh ${CMAKE_CUDA_COMPILER_LAUNCHER})
    set_target_properties(${name} PROPERTIES CUDA_COMPILER_LAUNCHER "${launcher}")
  endif()
  if(WEFT_WERROR)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>
      $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
endfunction()

if(WEFT_HAVE_CUDA)
  weft_find(files cuda/*.cpp)
  # Their products and sums are rounded separately, as on the CPU.
  set_source_files_properties(cuda/adam_narrow.cu cuda/optimizer.cu cuda/random.cu
                              PROPERTIES COMPILE_OPTIONS -fmad=false)
  # Named in the Error of a card for which there is no code.
  if(weft_cuda_code)
    string(REPLACE ";" "," code "${WEFT_CUDA_CODE}")
  else()
    string(REPLACE ";" "," code "${CMAKE_CUDA_ARCHITECTURES}")
  endif()
  set_source_files_properties(cuda/runtime.cpp PROPERTIES
    COMPILE_DEFINITIONS "WEFT_CUDA_CODE=\"${code}\"")
  weft_native_kernels(weft_cuda ${files} ${weft_cuda_kernels})
endif()
