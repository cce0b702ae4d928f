# The CUDA kernels. One set of test sources, two executables: always on the emulated GPU, and on a
# real GPU if there is one.
weft_test_stems(weft_gpu_test_stems cuda)
if(WEFT_SANITIZE STREQUAL "thread")
  # A CUDA thread is a thread to ThreadSanitizer, so only small tests run.
  set(weft_gpu_test_stems copy elementwise race)
endif()
add_library(weft_gpu_tests OBJECT tests/cuda/gpu.cpp)
foreach(stem ${weft_gpu_test_stems})
  target_sources(weft_gpu_tests PRIVATE tests/cuda/test_${stem}.cpp)
endforeach()
target_include_directories(weft_gpu_tests PRIVATE ${weft_include})
target_link_libraries(weft_gpu_tests PRIVATE weft_test_flags)
weft_test_headers(weft_gpu_tests)

add_executable(emulated_tests tests/cuda/orders_emulated.cpp
  $<TARGET_OBJECTS:weft_gpu_tests> $<TARGET_OBJECTS:weft_emulated_test_kernels>
  $<TARGET_OBJECTS:weft_test_main>)
target_link_libraries(emulated_tests PRIVATE weft_emu weft_flags doctest::doctest)
target_compile_definitions(emulated_tests PRIVATE WEFT_CUDA_EMU=1)
foreach(stem ${weft_gpu_test_stems})
  add_test(NAME emulated_${stem} COMMAND emulated_tests --source-file=*cuda/test_${stem}.cpp)
  # For scripts/check_kernels.py.
  set_tests_properties(emulated_${stem} PROPERTIES
    ENVIRONMENT "WEFT_EMU_KERNELS=${PROJECT_BINARY_DIR}/launched_kernels.txt")
endforeach()

if(WEFT_HAVE_CUDA)
  weft_native_kernels(weft_cuda_test_kernels ${weft_cuda_test_kernels})
  # The library again, together with the test kernels: only the copy of libcudart with which a
  # kernel is linked can launch it, and the library has its own copy.
  weft_library(weft_native weft_host weft_cuda weft_cuda_test_kernels)
  target_link_libraries(weft_native PRIVATE CUDA::cudart_static ${CMAKE_DL_LIBS})
  add_executable(gpu_tests tests/cuda/main_native.cpp tests/cuda/orders_native.cpp
    $<TARGET_OBJECTS:weft_gpu_tests>)
  target_link_libraries(gpu_tests PRIVATE weft_native weft_test_flags)
  add_test(NAME gpu_tests COMMAND gpu_tests)
  set_tests_properties(gpu_tests PROPERTIES SKIP_RETURN_CODE 77)
endif()

# Weft's use of streams and memory on emulated GPUs.
add_library(weft_emulated_gpu_tests OBJECT)
foreach(stem capture gemm_choices gemm_plans launches nccl nccl_errors nccl_library offload_traffic staging)
  target_sources(weft_emulated_gpu_tests PRIVATE tests/cuda/emu/test_${stem}.cpp)
endforeach()
target_include_directories(weft_emulated_gpu_tests PRIVATE ${weft_include})
target_link_libraries(weft_emulated_gpu_tests PRIVATE weft_test_flags)
target_compile_definitions(weft_emulated_gpu_tests PRIVATE WEFT_WITH_CUDA=1 WEFT_CUDA_EMU=1)

# The emulator itself. These files have kernels, which the sanitizers watch.
add_executable(test_emulator tests/cuda/orders_emulated.cpp $<TARGET_OBJECTS:weft_test_main>
  $<TARGET_OBJECTS:weft_emulated_gpu_tests>)
foreach(stem energy engine engine_bugs gpu_memory open_library runtime)
  target_sources(test_emulator PRIVATE tests/cuda/emu/test_${stem}.cpp)
endforeach()
target_link_libraries(test_emulator PRIVATE weft_emu weft_flags weft_test_level doctest::doctest)
target_compile_definitions(test_emulator PRIVATE WEFT_CUDA_EMU=1 WEFT_EMU_EVERY_ORDER=1)
target_compile_options(test_emulator PRIVATE -fno-strict-aliasing -Wno-unknown-pragmas)
add_test(NAME emulator COMMAND test_emulator)
# In a separate folder, under the name that the library searches for.
add_library(fake_nvml MODULE tests/cuda/emu/fake_nvml.cpp)
set_target_properties(fake_nvml PROPERTIES PREFIX "" OUTPUT_NAME libnvidia-ml SUFFIX .so.1
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fake_nvml)
add_dependencies(test_emulator fake_nvml)
target_compile_definitions(test_emulator PRIVATE
  WEFT_FAKE_NVML="${PROJECT_BINARY_DIR}/fake_nvml")

# Ranks as processes over an emulated NCCL.
if(WEFT_HAVE_MPI AND NOT WEFT_SANITIZE)
  add_executable(nccl_fault_program tests/nccl_fault_program.cpp)
  target_link_libraries(nccl_fault_program PRIVATE weft_emu weft_test_flags)
  target_compile_definitions(nccl_fault_program PRIVATE WEFT_CUDA_EMU=1)
  add_test(NAME cli_nccl_faults
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/cli/test_nccl_faults.py)
  set_tests_properties(cli_nccl_faults PROPERTIES RUN_SERIAL ON
    ENVIRONMENT "WEFT_BIN=$<TARGET_FILE_DIR:nccl_fault_program>;PYTHONDONTWRITEBYTECODE=1")
endif()

# The trainer on an emulated GPU.
if(WEFT_EXAMPLES)
  add_executable(test_rank_steps tests/cuda/emu/test_rank_steps.cpp tests/cuda/emu/test_rank_faults.cpp
    $<TARGET_OBJECTS:weft_gpt>
    $<TARGET_OBJECTS:weft_test_main>)
  target_link_libraries(test_rank_steps PRIVATE weft_emu weft_test_flags)
  add_test(NAME emulated_rank_steps COMMAND test_rank_steps)
  if(NOT WEFT_SANITIZE)
    add_executable(train_gpt_emulated examples/train_gpt.cpp $<TARGET_OBJECTS:weft_gpt>)
    target_link_libraries(train_gpt_emulated PRIVATE weft_emu weft_flags weft_cold)
    set(cases gpu gpu_ranks lost_ranks)
    if(WEFT_BENCH)
      list(APPEND cases gpu_check)
    endif()
    foreach(case ${cases})
      add_test(NAME cli_${case}
        COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/cli/test_${case}.py)
      set_tests_properties(cli_${case} PROPERTIES
        ENVIRONMENT "WEFT_BIN=$<TARGET_FILE_DIR:train_gpt>;PYTHONDONTWRITEBYTECODE=1")
    endforeach()
    set_tests_properties(cli_gpu cli_gpu_ranks cli_lost_ranks PROPERTIES COST 50)
  endif()
endif()

# The benchmarks on an emulated GPU, only to check that they run.
if(WEFT_BENCH)
  add_executable(bench_gpu_emulated $<TARGET_OBJECTS:weft_bench_gpu>)
  target_link_libraries(bench_gpu_emulated PRIVATE weft_emu weft_flags)
  add_test(NAME bench_gpu_emulated COMMAND bench_gpu_emulated --quick)
  add_executable(bench_step_emulated $<TARGET_OBJECTS:weft_bench_step>)
  target_link_libraries(bench_step_emulated PRIVATE weft_emu weft_flags)
  add_test(NAME bench_step_emulated COMMAND bench_step_emulated --model smoke --device cuda
    --dtype bf16 --warmup 1 --steps 6)
  add_test(NAME bench_step_emulated_graph COMMAND bench_step_emulated --model smoke --device cuda
    --dtype bf16 --warmup 3 --steps 6 --graph on)
  set_tests_properties(bench_step_emulated bench_step_emulated_graph PROPERTIES
    PASS_REGULAR_EXPRESSION "\"host_syncs\":0(\\.0+)?[,}]")
  # The prediction from recorded steps, and the check of the machine code.
  foreach(case gpu_model sass)
    add_test(NAME cli_${case}
      COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/cli/test_${case}.py)
    set_tests_properties(cli_${case} PROPERTIES
      ENVIRONMENT "WEFT_BIN=$<TARGET_FILE_DIR:bench_step_emulated>;PYTHONDONTWRITEBYTECODE=1")
  endforeach()
endif()

# Faults that only a sanitizer detects: one planted bug per run, and the expected report.
if(WEFT_SANITIZE)
  add_executable(emulator_bugs tests/cuda/emu/emulator_bugs.cpp)
  target_link_libraries(emulator_bugs PRIVATE weft_emu weft_flags)
  target_compile_definitions(emulator_bugs PRIVATE WEFT_CUDA_EMU=1)
  target_compile_options(emulator_bugs PRIVATE -fno-strict-aliasing)
  function(weft_planted_bug name report)
    add_test(NAME emulator_bug_${name} COMMAND emulator_bugs ${name})
    set_tests_properties(emulator_bug_${name} PROPERTIES PASS_REGULAR_EXPRESSION "${report}"
      ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0;TSAN_OPTIONS=halt_on_error=1")
  endfunction()
  weft_planted_bug(sound "^no report\n$")
  if(WEFT_SANITIZE STREQUAL "address")
    weft_planted_bug(static_shared "use-after-poison.*static_shared_kernel.*emulator_bugs.cpp")
    weft_planted_bug(dynamic_shared "use-after-poison.*dynamic_shared_kernel.*emulator_bugs.cpp")
    weft_planted_bug(global "use-after-poison.*global_kernel.*emulator_bugs.cpp")
    weft_planted_bug(freed "use-after-poison.*global_kernel.*emulator_bugs.cpp")
    weft_planted_bug(local_array "emulator_bugs.cpp.*index 4 out of bounds|stack-buffer-overflow.*local_array_kernel")
    weft_planted_bug(misaligned "emulator_bugs.cpp.*requires 16 byte alignment")
  else()
    set(races race_in_block race_between_blocks race_past_barriers race_on_fiber missing_barrier missing_second_barrier early_copy)
    foreach(name ${races})
      weft_planted_bug(${name} "data race.*${name}_kernel.*emulator_bugs.cpp")
    endforeach()
    add_test(NAME race_elementwise COMMAND emulated_tests "--test-case=elementwise: updates in place")
    list(TRANSFORM races PREPEND emulator_bug_)
    set_tests_properties(${races} emulator_bug_sound emulated_copy emulated_race race_elementwise
      PROPERTIES LABELS race)
    add_dependencies(thread_tests emulator_bugs emulated_tests)
  endif()
endif()
