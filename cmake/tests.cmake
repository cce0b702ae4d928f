# Tests: one executable per folder, tests_<folder>, and one ctest entry per file,
# tests/<folder>/test_<stem>.cpp. To run one by hand: bin/tests_autograd
# --source-file='*/test_softmax.cpp'.
find_package(doctest REQUIRED)
find_package(Python3 REQUIRED COMPONENTS Interpreter)
# weft_test_stems(OUT FOLDER): the stems of tests/FOLDER/test_<stem>.cpp.
function(weft_test_stems out folder)
  weft_find(stems tests/${folder}/test_*.cpp)
  list(TRANSFORM stems REPLACE ".*/test_(.*)\\.cpp" "\\1")
  set(${out} ${stems} PARENT_SCOPE)
endfunction()

# Tests that involve several threads: everything that the ThreadSanitizer job builds and runs.
set(weft_thread_tests
  allocator_threads comm_ops ddp expert_dispatch expert_fp8 expert_layouts expert_parallel
  expert_router expert_tensor fp8_linear fp8_overlap
  grouped_linear joint_norm lanes layer_norm long_work matmul overlap parallel parallelize process_group
  process_group_errors random shared_leaf sharded_checkpoint sharded_optimizer sharded_state simd
  slow_save tape tensor_parallel vocab)
add_custom_target(thread_tests)

# Tests spend their time in the library, so their own code is compiled for fast compilation, and
# without ASan and UBSan: these watch the library, its programs and kernels, and the heap that tests
# hand to them. The commands are those of a release build, so ccache has the objects when both are
# built. An exception thrown in a CHECK is reported for the whole test case.
add_library(weft_test_level INTERFACE)
target_compile_options(weft_test_level INTERFACE -O0 $<$<CONFIG:Release>:-g1>)
# Linked last by tests whose own code takes most of their time.
add_library(weft_busy_test_level INTERFACE)
target_compile_options(weft_busy_test_level INTERFACE $<$<NOT:$<CONFIG:Debug>>:-O1>)
add_library(weft_test_flags INTERFACE)
target_link_libraries(weft_test_flags INTERFACE doctest::doctest
  $<IF:$<STREQUAL:${WEFT_SANITIZE},thread>,weft_flags,weft_warnings> weft_test_level)
target_compile_definitions(weft_test_flags INTERFACE DOCTEST_CONFIG_SUPER_FAST_ASSERTS
  WEFT_FIXTURES="${PROJECT_SOURCE_DIR}/tests/fixtures")

# weft_test_headers(TARGET [REUSE_FROM OTHER]): precompiles the includes that nearly every test
# uses, or reuses those of another target with the same flags. ccache needs -fpch-preprocess.
function(weft_test_headers target)
  target_compile_options(${target} PRIVATE -fpch-preprocess)
  if(ARGN)
    target_precompile_headers(${target} ${ARGN})
    return()
  endif()
  target_precompile_headers(${target} PRIVATE <doctest/doctest.h> <algorithm> <functional> <string>
    <vector> ${PROJECT_SOURCE_DIR}/tests/support.h ${PROJECT_SOURCE_DIR}/autograd/elementwise.h
    ${PROJECT_SOURCE_DIR}/autograd/reduce.h ${PROJECT_SOURCE_DIR}/core/parallel.h)
endfunction()

add_library(weft_test_main OBJECT tests/main.cpp tests/count_new.cpp)
target_include_directories(weft_test_main PRIVATE ${weft_include})
target_link_libraries(weft_test_main PRIVATE weft_test_flags)
target_compile_definitions(weft_test_main PRIVATE WEFT_TEST_SANITIZED=$<BOOL:${WEFT_SANITIZE}>
  WEFT_TEST_ADDRESS_SANITIZED=$<STREQUAL:${WEFT_SANITIZE},address>)

# weft_test_command(OUT STEM): the command that runs the test cases of one file.
function(weft_test_command out stem)
  get_property(folder GLOBAL PROPERTY weft_folder_of_${stem})
  set(${out} $<TARGET_FILE:tests_${folder}> --source-file=*/${folder}/test_${stem}.cpp PARENT_SCOPE)
endfunction()

# weft_test_folder(FOLDER LIBRARIES...): the executable of a folder and its tests.
function(weft_test_folder folder)
  weft_test_stems(stems ${folder})
  if(WEFT_SANITIZE STREQUAL "thread")
    list(FILTER stems INCLUDE REGEX "^(${weft_thread_pattern})$")
    if(NOT stems)
      return()
    endif()
  endif()
  list(TRANSFORM stems PREPEND tests/${folder}/test_ OUTPUT_VARIABLE files)
  list(TRANSFORM files APPEND .cpp)
  add_executable(tests_${folder} ${files} $<TARGET_OBJECTS:weft_test_main>)
  target_link_libraries(tests_${folder} PRIVATE weft weft_test_flags ${ARGN})
  get_property(first GLOBAL PROPERTY weft_first_test_folder)
  if(first)
    weft_test_headers(tests_${folder} REUSE_FROM ${first})
  else()
    weft_test_headers(tests_${folder})
    set_property(GLOBAL PROPERTY weft_first_test_folder tests_${folder})
  endif()
  foreach(stem ${stems})
    set_property(GLOBAL PROPERTY weft_folder_of_${stem} ${folder})
    weft_test_command(command ${stem})
    add_test(NAME ${stem} COMMAND ${command})
    if(stem IN_LIST weft_thread_tests)
      set_tests_properties(${stem} PROPERTIES LABELS threads)
      add_dependencies(thread_tests tests_${folder})
    endif()
  endforeach()
endfunction()
list(JOIN weft_thread_tests "|" weft_thread_pattern)
foreach(folder core autograd nn optim distributed io tokenizer data docs train)
  weft_test_folder(${folder})
endforeach()
# The layer that docs/patches/mixer.patch adds, for tests/docs/test_mixer_patch.cpp.
if(TARGET tests_docs)
  set(patch ${PROJECT_SOURCE_DIR}/docs/patches/mixer.patch)
  set(patched ${CMAKE_BINARY_DIR}/patched)
  add_custom_command(OUTPUT ${patched}/running_mean.h DEPENDS ${patch} VERBATIM
    COMMAND ${CMAKE_COMMAND} -E make_directory ${patched}
    COMMAND sed -e "1,/^+++ b.nn.running_mean.h/d" -e "/^@@/d" -e "s/^+//" ${patch}
            > ${patched}/running_mean.h)
  target_sources(tests_docs PRIVATE ${patched}/running_mean.h)
  target_include_directories(tests_docs PRIVATE ${patched})
endif()
if(WEFT_EXAMPLES)
  weft_test_folder(bench)
  weft_test_folder(examples)
endif()
if(TARGET tests_bench)
  target_sources(tests_bench PRIVATE $<TARGET_OBJECTS:weft_gpt>
    bench/comm_estimate.cpp bench/comm_layouts.cpp bench/comm_timeline.cpp bench/comm_trace.cpp
    bench/start_up.cpp)
endif()
if(TARGET tests_examples)
  target_sources(tests_examples PRIVATE $<TARGET_OBJECTS:weft_gpt>)
endif()
foreach(folder distributed io examples)
  if(TARGET tests_${folder})
    target_sources(tests_${folder} PRIVATE tests/power_cut.cpp)
  endif()
endforeach()
# This test iterates over all bit patterns itself.
set_source_files_properties(tests/core/test_remainder.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON
  COMPILE_OPTIONS $<$<NOT:$<CONFIG:Debug>>:-O1>)

# Numeric tests again as on a processor without the wider instruction sets: the library's own
# kernels (WEFT_ISA) and oneDNN's, whose summation order differs there. The tests of the kernels
# themselves run every set that the processor supports; isa_avx512_simd is skipped, and listed in
# the last lines, where some are missing. WEFT_REQUIRE_ISA=avx512 makes that a failure.
if(WEFT_SANITIZE STREQUAL "")
  function(weft_isa_test isa stem)
    weft_test_command(command ${stem})
    add_test(NAME isa_${isa}_${stem} COMMAND ${command})
    set_tests_properties(isa_${isa}_${stem} PROPERTIES LABELS isa SKIP_RETURN_CODE 77
      ENVIRONMENT "WEFT_ISA=${isa};${ARGN}")
  endfunction()
  foreach(stem attention attention_dropout attention_nan attention_packed bf16_product causal_conv1d
      cross_entropy elementwise elementwise_compare elementwise_integers expert_fp8 experts fp8
      fp8_layers fp8_linear fp8_overlap gated_delta golden_moe gpt gpt_rows gpt_training grouped_linear
      layer_norm linear linear_cross_entropy low_precision main_grad matmul mla mlp moe moe_fp8
      recompute_parts recurrent reduce rms_norm rope rounding router scaled_activation simd
      simd_attention simd_sums softmax swiglu)
    weft_isa_test(avx2 ${stem} ONEDNN_MAX_CPU_ISA=AVX2)
  endforeach()
  foreach(stem attention attention_dropout attention_nan attention_packed causal_conv1d cross_entropy
      fp8 layer_norm optimizer recurrent rms_norm rope rounding softmax swiglu)
    weft_isa_test(scalar ${stem} ONEDNN_MAX_CPU_ISA=SSE41)
  endforeach()
  weft_isa_test(avx512 simd)
endif()

# Files of others: scripts/tokenizer_oracle.py runs the first program. The fuzz programs run for
# seconds per format, with sanitizers fewer times; more runs by hand.
foreach(program tokenizer_program fuzz_tokenizer)
  add_executable(${program} tests/${program}.cpp)
  target_link_libraries(${program} PRIVATE weft_tokenizer weft_flags)
endforeach()
if(NOT WEFT_SANITIZE STREQUAL "thread")
  set(runs 2000)
  if(WEFT_SANITIZE STREQUAL "")
    set(runs 60000)
  endif()
  foreach(file qwen.json tekken.json ranks.tiktoken small.model)
    add_test(NAME fuzz_tokenizer_${file}
      COMMAND fuzz_tokenizer ${PROJECT_SOURCE_DIR}/tests/fixtures/tokenizers/${file} ${runs})
  endforeach()
  add_executable(fuzz_tokens tests/fuzz_tokens.cpp)
  target_link_libraries(fuzz_tokens PRIVATE weft weft_test_flags)
  add_test(NAME fuzz_tokens COMMAND fuzz_tokens ${runs})
  # One program, so that the library is linked once: files of other programs' models.
  add_executable(fuzz_models tests/fuzz_models.cpp)
  target_link_libraries(fuzz_models PRIVATE weft weft_test_flags)
  foreach(kind config gguf)
    add_test(NAME fuzz_models_${kind}
      COMMAND fuzz_models ${kind} ${PROJECT_SOURCE_DIR}/tests/fixtures/hf ${runs})
  endforeach()
  math(EXPR few "${runs} / 4")  # two files to read, and a model to fit them to
  add_test(NAME fuzz_models_adapter
    COMMAND fuzz_models adapter ${PROJECT_SOURCE_DIR}/tests/fixtures ${few})
endif()

if(WEFT_SANITIZE STREQUAL "")
  # Code that the compiler must reject.
  add_test(NAME discarded_routing
    COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 -fsyntax-only -Werror=unused-result -I${weft_include}
      ${PROJECT_SOURCE_DIR}/tests/discarded_routing.cpp)
  set_tests_properties(discarded_routing PROPERTIES PASS_REGULAR_EXPRESSION "nodiscard")
  add_test(NAME refused COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/refused.py
    ${CMAKE_CXX_COMPILER} ${weft_include})
endif()

# Its ranks are up to eight threads that wait for each other: next to another test they take ten
# times as long.
if(TARGET tests_examples)
  set_tests_properties(session_fsdp session_layouts PROPERTIES RUN_SERIAL ON)
endif()

# Whole models, repeatedly, and every float: without sanitizers only.
if(NOT WEFT_SANITIZE STREQUAL "thread")
  set_tests_properties(fp8_training gpt_memory layouts remainder speculative PROPERTIES LABELS long)
  if(TARGET tests_examples)
    set_tests_properties(f16_run fp8_run lora_run session_fsdp session_layouts
      PROPERTIES LABELS long)
  endif()
endif()

# The programs, run as by a user.
if(WEFT_EXAMPLES)
  add_test(NAME readme_model COMMAND readme_model)
  set(cases async_save chat checks completion data forms hf hostile hybrid inputs lora memory metrics mini_gpt mlp moe mtp pack plan ranks repeat talk tokenizer
    wrong_use)
  if(WEFT_BENCH)
    list(APPEND cases bench)
  endif()
  if(WEFT_SANITIZE)
    set(cases hostile mlp repeat)  # the trainer's own code; the library has its own tests
  endif()
  set(without_mpi "")
  if(WEFT_SANITIZE OR NOT WEFT_HAVE_MPI)
    set(without_mpi ";WEFT_WITHOUT_MPI=1")
  endif()
  foreach(case ${cases})
    add_test(NAME cli_${case}
      COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/cli/test_${case}.py)
    set_tests_properties(cli_${case} PROPERTIES ENVIRONMENT
      "WEFT_BIN=$<TARGET_FILE_DIR:train_gpt>;WEFT_SANITIZE=${WEFT_SANITIZE};PYTHONDONTWRITEBYTECODE=1${without_mpi}"
      COST 20)
  endforeach()
endif()

# Apart in every build, so that the others are compiled together in the same way.
set_source_files_properties(tests/distributed/test_nccl_library.cpp PROPERTIES
  SKIP_UNITY_BUILD_INCLUSION ON)
if(WEFT_HAVE_CUDA)
  add_library(old_nccl MODULE tests/old_nccl.cpp)
  set_target_properties(old_nccl PROPERTIES PREFIX lib OUTPUT_NAME nccl SUFFIX .so.2
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/old_nccl)
  add_dependencies(tests_distributed old_nccl)
  set_source_files_properties(tests/distributed/test_nccl_library.cpp PROPERTIES COMPILE_DEFINITIONS
    WEFT_OLD_NCCL="${PROJECT_BINARY_DIR}/old_nccl")
endif()

# Ranks as processes; ThreadSanitizer runs only some of these tests.
if(WEFT_HAVE_MPI AND NOT WEFT_SANITIZE STREQUAL "thread")
  foreach(program bits fault rules)
    add_executable(mpi_${program}_program tests/mpi_${program}_program.cpp)
    target_link_libraries(mpi_${program}_program PRIVATE weft weft_test_flags)
  endforeach()
  target_link_libraries(mpi_fault_program PRIVATE MPI::MPI_CXX)
  target_link_libraries(mpi_rules_program PRIVATE MPI::MPI_CXX)
  set_source_files_properties(tests/distributed/test_mpi_world.cpp PROPERTIES COMPILE_DEFINITIONS
    WEFT_WITH_MPI=1)
  set(run_ranks ${PROJECT_SOURCE_DIR}/scripts/run_ranks.sh)
  foreach(ranks 2 4)
    add_test(NAME mpi_process_group_${ranks}
      COMMAND ${run_ranks} ${ranks} $<TARGET_FILE:tests_distributed>
        --source-file=*/test_process_group.cpp --test-case=conformance)
    add_test(NAME mpi_lanes_${ranks}
      COMMAND ${run_ranks} ${ranks} $<TARGET_FILE:tests_distributed>
        --source-file=*/test_lanes.cpp "--test-case=lanes: a collective completes*,batch: rings*")
    list(APPEND weft_mpi_tests mpi_process_group_${ranks} mpi_lanes_${ranks})
    set(stems capacity_layouts comm_ops ddp expert_dispatch expert_layouts expert_parallel
      expert_router expert_tensor frozen fsdp joint_norm layouts overlap parallelize sharded_optimizer
      tensor_parallel tensor_parallel_steps vocab)
    if(WEFT_EXAMPLES)
      list(APPEND stems comm_model session_fsdp session_layouts)
    endif()
    if(WEFT_SANITIZE)
      set(stems comm_ops ddp frozen)  # the backend's own code
    endif()
    # Of the tests that train longest one case of each kind: ranks as threads run all of them, and
    # processes make the same collectives.
    set(cases_of_layouts "--test-case=layouts: models with experts and*")
    set(cases_of_session_layouts "--test-case=session: f64 losses*,session: a rerun gives*")
    set(cases_of_session_fsdp "--test-case=session_fsdp: losses*")
    foreach(stem ${stems})
      weft_test_command(command ${stem})
      add_test(NAME mpi_${stem}_${ranks}
        COMMAND ${run_ranks} ${ranks} ${command} ${cases_of_${stem}})
      list(APPEND weft_mpi_tests mpi_${stem}_${ranks})
    endforeach()
  endforeach()
  set(cases mpi)
  if(NOT WEFT_SANITIZE)
    list(APPEND cases mpi_faults)
    if(WEFT_EXAMPLES)
      list(APPEND cases mpi_ranks rank_errors rank_faults)
    endif()
  endif()
  foreach(case ${cases})
    add_test(NAME cli_${case}
      COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/cli/test_${case}.py)
    set_tests_properties(cli_${case} PROPERTIES ENVIRONMENT
      "WEFT_BIN=$<TARGET_FILE_DIR:mpi_fault_program>;PYTHONDONTWRITEBYTECODE=1")
    list(APPEND weft_mpi_tests cli_${case})
  endforeach()
  # With few processors, parallel tests would make a rank look lost.
  set_tests_properties(${weft_mpi_tests} PROPERTIES RUN_SERIAL ON LABELS mpi)
  if(TEST cli_rank_faults)
    # They wait longer than they compute and have no tight limits: in parallel, and first.
    set_tests_properties(cli_mpi_ranks cli_rank_errors PROPERTIES RUN_SERIAL OFF COST 20)
    set_tests_properties(cli_rank_faults PROPERTIES RUN_SERIAL OFF COST 100)
  endif()
  if(WEFT_SANITIZE)  # MPI's own leaks
    set_property(TEST ${weft_mpi_tests} mpi_world APPEND PROPERTY ENVIRONMENT ASAN_OPTIONS=detect_leaks=0)
  endif()
endif()

# The same without MPI, and the program that starts such ranks.
if(WEFT_EXAMPLES AND NOT WEFT_SANITIZE)
  foreach(case tcp launch)
    add_test(NAME cli_${case}
      COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/cli/test_${case}.py)
    set_tests_properties(cli_${case} PROPERTIES ENVIRONMENT
      "WEFT_BIN=$<TARGET_FILE_DIR:weft_launch>;PYTHONDONTWRITEBYTECODE=1")
  endforeach()
  set_tests_properties(cli_tcp PROPERTIES RUN_SERIAL ON)  # its ranks have seconds to answer
  set_tests_properties(cli_launch PROPERTIES COST 20)
endif()

# xtensor is an independent oracle for array arithmetic; it compiles slowly, so one file includes
# it. GCC 12 reports false warnings in its small vector.
find_package(xtensor REQUIRED)
if(NOT WEFT_SANITIZE STREQUAL "thread")
  add_library(weft_test_oracle OBJECT tests/oracle.cpp)
  target_include_directories(weft_test_oracle PRIVATE ${weft_include})
  target_link_libraries(weft_test_oracle PRIVATE xtensor weft_test_flags)
  target_compile_options(weft_test_oracle PRIVATE -Wno-array-bounds -Wno-stringop-overflow
    -Wno-stringop-overread)
  target_sources(tests_autograd PRIVATE $<TARGET_OBJECTS:weft_test_oracle>)
endif()

# Faults in the memory of CPU tensors that only AddressSanitizer detects: one planted bug per run.
if(WEFT_SANITIZE STREQUAL "address")
  add_executable(allocator_bugs tests/allocator_bugs.cpp)
  target_link_libraries(allocator_bugs PRIVATE weft weft_flags)
  set(bugs past_request past_block past_large before before_large read_past freed_small freed_large
    released shrunk guard)
  foreach(name ${bugs} loop product sound)
    add_test(NAME allocator_bug_${name} COMMAND allocator_bugs ${name})
    set_tests_properties(allocator_bug_${name} PROPERTIES
      PASS_REGULAR_EXPRESSION "use-after-poison.*allocator_bugs.cpp"
      ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0")
  endforeach()
  set_tests_properties(allocator_bug_loop PROPERTIES
    PASS_REGULAR_EXPRESSION "use-after-poison.*core/cpu/elementwise.*allocator_bugs.cpp")
  set_tests_properties(allocator_bug_product PROPERTIES
    PASS_REGULAR_EXPRESSION "use-after-poison.*panel_product.inc.*allocator_bugs.cpp")
  set_tests_properties(allocator_bug_sound PROPERTIES PASS_REGULAR_EXPRESSION "^no report\n$")
endif()

include(cmake/gpu_tests.cmake)
include(cmake/generated_tests.cmake)
