# Tests spend their time in the library: their own code is compiled in half of the time at -O1, under
# the sanitizers in a third of it at -O0.
file(GLOB weft_test_sources tests/test_*.cpp tests/cuda/test_*.cpp tests/oracle.cpp tests/main.cpp)
set(weft_test_level $<IF:$<BOOL:${WEFT_SANITIZE}>,-O0,-O1>)
set_source_files_properties(${weft_test_sources} PROPERTIES
  COMPILE_OPTIONS $<$<NOT:$<CONFIG:Debug>>:${weft_test_level}>)
# But this one goes through all bit patterns itself.
set_source_files_properties(tests/test_remainder.cpp PROPERTIES
  COMPILE_OPTIONS $<$<NOT:$<CONFIG:Debug>>:-O1>)

# One executable a stem: tests/test_<stem>.cpp.
find_package(doctest REQUIRED)
set(weft_test_stems
  accumulate
  allocator
  attention
  bucket_layout
  capacity_layouts
  causal_conv1d
  checkpoint
  clip
  comm_cost
  comm_ops
  cross_entropy
  cross_entropy_bugs
  data
  ddp
  debug_allocator
  delay_gradients
  device_mesh
  dropout
  elementwise
  elementwise_grad
  energy
  expert_capacity
  expert_dispatch
  expert_layouts
  expert_parallel
  expert_router
  expert_tensor
  experts
  file
  folder_lock
  frozen
  gated_delta
  gated_delta_net
  gemm_check
  golden_moe
  gpt
  gpt_fixtures
  gpt_memory
  gpt_moe
  gpt_packing
  gpt_norms
  gpt_padding
  grouped_linear
  hostile_files
  indexing
  joint_norm
  json
  layer_norm
  layouts
  leaves
  linear
  linear_cross_entropy
  low_precision
  master_weights
  matmul
  memory
  metrics
  mla
  mlp
  module
  moe
  moe_fp8
  mpi_world
  mse
  mtp
  mtp_losses
  nccl_library
  npy
  null_operand
  optim
  optim_golden
  optimizer
  oracle
  parallel
  overlap
  parallelize
  part
  pieces
  print
  process_group
  process_group_errors
  random
  recompute
  recompute_models
  reduce
  reduce_grad
  remainder
  rms_norm
  rope
  router
  router_gate
  router_grad
  router_loss
  router_module
  router_noise
  router_packed
  router_step
  safetensors
  sampling
  scaled_activation
  schedule
  shape
  shared_leaf
  sharded_checkpoint
  sharded_optimizer
  simd
  simd_attention
  simd_random
  simd_sums
  sinkhorn
  softmax
  sort
  speculative
  state_dict
  support
  swiglu
  tape
  tensor
  tensor_parallel
  tensor_parallel_steps
  token_permute
  view
  vocab)
add_library(weft_test_main OBJECT tests/main.cpp)
target_include_directories(weft_test_main PRIVATE ${weft_include})
target_link_libraries(weft_test_main PRIVATE weft_flags doctest::doctest)
foreach(stem ${weft_test_stems})
  add_executable(test_${stem} tests/test_${stem}.cpp $<TARGET_OBJECTS:weft_test_main>)
  target_link_libraries(test_${stem} PRIVATE weft weft_flags doctest::doctest)
  target_compile_definitions(test_${stem} PRIVATE
    WEFT_FIXTURES="${PROJECT_SOURCE_DIR}/tests/fixtures")
  add_test(NAME ${stem} COMMAND test_${stem})
endforeach()

target_sources(test_comm_cost PRIVATE bench/comm_cost.cpp bench/comm_timeline.cpp)
foreach(stem checkpoint file metrics sharded_checkpoint)
  target_sources(test_${stem} PRIVATE tests/power_cut.cpp)
endforeach()

# Numeric tests once more as on a processor without the wider instruction sets: the library's own
# kernels (WEFT_ISA) and oneDNN's, whose sums have another order there. The tests of the kernels
# themselves run every set that the processor has; isa_avx512_simd is skipped, and so named in the
# last lines, where it is not all of them. WEFT_REQUIRE_ISA=avx512 makes that a failure.
if(WEFT_SANITIZE STREQUAL "")
  function(weft_isa_test isa stem)
    add_test(NAME isa_${isa}_${stem} COMMAND test_${stem})
    set_tests_properties(isa_${isa}_${stem} PROPERTIES LABELS isa SKIP_RETURN_CODE 77
      ENVIRONMENT "WEFT_ISA=${isa};${ARGN}")
  endfunction()
  foreach(stem attention causal_conv1d cross_entropy elementwise experts gated_delta golden_moe gpt
      grouped_linear layer_norm linear linear_cross_entropy low_precision matmul mla mlp moe moe_fp8
      reduce rms_norm rope router scaled_activation simd simd_attention simd_sums softmax swiglu)
    weft_isa_test(avx2 ${stem} ONEDNN_MAX_CPU_ISA=AVX2)
  endforeach()
  foreach(stem attention causal_conv1d cross_entropy layer_norm optimizer rms_norm rope softmax swiglu)
    weft_isa_test(scalar ${stem} ONEDNN_MAX_CPU_ISA=SSE41)
  endforeach()
  weft_isa_test(avx512 simd)
endif()

# The trainer's own parts.
if(WEFT_EXAMPLES)
  foreach(stem comm_model hostile_config run_folder session_layouts)
    add_executable(test_${stem} tests/test_${stem}.cpp $<TARGET_OBJECTS:weft_test_main>
      $<TARGET_OBJECTS:weft_train>)
    target_link_libraries(test_${stem} PRIVATE weft weft_flags doctest::doctest CLI11::CLI11
      tomlplusplus::tomlplusplus)
    add_test(NAME ${stem} COMMAND test_${stem})
  endforeach()
  target_sources(test_comm_model PRIVATE bench/comm_timeline.cpp bench/comm_trace.cpp)
  target_sources(test_run_folder PRIVATE tests/power_cut.cpp)
endif()

# What the compiler must refuse.
add_test(NAME discarded_routing
  COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 -fsyntax-only -Werror=unused-result -I${weft_include}
    ${PROJECT_SOURCE_DIR}/tests/discarded_routing.cpp)
set_tests_properties(discarded_routing PROPERTIES PASS_REGULAR_EXPRESSION "nodiscard")

# Whole models, again and again: without sanitizers only.
set_tests_properties(gpt_memory layouts speculative PROPERTIES LABELS long)

# Tests of what several threads touch, for the ThreadSanitizer job.
add_custom_target(thread_tests)
foreach(stem allocator comm_ops ddp expert_dispatch expert_layouts expert_parallel expert_router
    expert_tensor grouped_linear joint_norm layer_norm matmul overlap parallel parallelize pieces
    process_group process_group_errors random shared_leaf sharded_checkpoint sharded_optimizer simd
    tape tensor_parallel vocab)
  add_dependencies(thread_tests test_${stem})
  set_tests_properties(${stem} PROPERTIES LABELS threads)
endforeach()

# The programs, run as a user would run them.
if(WEFT_EXAMPLES)
  add_test(NAME readme_model COMMAND readme_model)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  foreach(case hostile hybrid mini_gpt moe mtp ranks repeat wrong_use)
    add_test(NAME cli_${case}
      COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/cli/test_${case}.py)
    set_tests_properties(cli_${case} PROPERTIES
      ENVIRONMENT "WEFT_BIN=$<TARGET_FILE_DIR:train_gpt>;PYTHONDONTWRITEBYTECODE=1" PROCESSORS 2)
  endforeach()
endif()

if(WEFT_HAVE_CUDA)
  add_library(old_nccl MODULE tests/old_nccl.cpp)
  set_target_properties(old_nccl PROPERTIES PREFIX lib OUTPUT_NAME nccl SUFFIX .so.2
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/old_nccl)
  add_dependencies(test_nccl_library old_nccl)
  target_compile_definitions(test_nccl_library PRIVATE WEFT_OLD_NCCL="${PROJECT_BINARY_DIR}/old_nccl")
endif()

# Ranks as processes.
if(WEFT_HAVE_MPI)
  foreach(program bits fault)
    add_executable(mpi_${program}_program tests/mpi_${program}_program.cpp)
    target_link_libraries(mpi_${program}_program PRIVATE weft weft_flags)
  endforeach()
  target_link_libraries(mpi_fault_program PRIVATE MPI::MPI_CXX)
  target_compile_definitions(test_mpi_world PRIVATE WEFT_WITH_MPI=1)
  set(run_ranks ${PROJECT_SOURCE_DIR}/scripts/run_ranks.sh)
  foreach(ranks 2 4)
    add_test(NAME mpi_process_group_${ranks}
      COMMAND ${run_ranks} ${ranks} $<TARGET_FILE:test_process_group> --test-case=conformance)
    list(APPEND weft_mpi_tests mpi_process_group_${ranks})
    set(stems capacity_layouts comm_ops ddp expert_dispatch expert_layouts expert_parallel
      expert_router expert_tensor frozen joint_norm layouts overlap parallelize sharded_optimizer
      tensor_parallel tensor_parallel_steps vocab)
    if(WEFT_EXAMPLES)
      list(APPEND stems comm_model session_layouts)
    endif()
    foreach(stem ${stems})
      add_test(NAME mpi_${stem}_${ranks} COMMAND ${run_ranks} ${ranks} $<TARGET_FILE:test_${stem}>)
      list(APPEND weft_mpi_tests mpi_${stem}_${ranks})
    endforeach()
  endforeach()
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(cases mpi mpi_faults)
  if(WEFT_EXAMPLES)
    list(APPEND cases mpi_ranks rank_errors rank_faults)
  endif()
  foreach(case ${cases})
    add_test(NAME cli_${case}
      COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/cli/test_${case}.py)
    set_tests_properties(cli_${case} PROPERTIES ENVIRONMENT
      "WEFT_BIN=$<TARGET_FILE_DIR:mpi_fault_program>;PYTHONDONTWRITEBYTECODE=1")
    list(APPEND weft_mpi_tests cli_${case})
  endforeach()
  # On few processors other tests would make a rank look as if it did not come.
  set_tests_properties(${weft_mpi_tests} PROPERTIES PROCESSORS 2 LABELS mpi)
endif()

# xtensor is an independent oracle for array arithmetic; it compiles slowly, so one file includes it.
find_package(xtensor REQUIRED)
target_sources(test_oracle PRIVATE tests/oracle.cpp)
target_link_libraries(test_oracle PRIVATE xtensor)
# GCC 12 misreads xtensor's small vector.
set_source_files_properties(tests/oracle.cpp PROPERTIES COMPILE_OPTIONS
  "-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread")

# What only AddressSanitizer finds in the memory of CPU tensors: a planted bug a run.
if(WEFT_SANITIZE STREQUAL "address")
  add_executable(allocator_bugs tests/allocator_bugs.cpp)
  target_link_libraries(allocator_bugs PRIVATE weft weft_flags)
  set(bugs past_request past_block past_large before before_large read_past freed_small freed_large
    released shrunk guard)
  foreach(name ${bugs} sound)
    add_test(NAME allocator_bug_${name} COMMAND allocator_bugs ${name})
    set_tests_properties(allocator_bug_${name} PROPERTIES
      PASS_REGULAR_EXPRESSION "use-after-poison.*allocator_bugs.cpp"
      ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0")
  endforeach()
  set_tests_properties(allocator_bug_sound PROPERTIES PASS_REGULAR_EXPRESSION "^no report\n$")
endif()

include(cmake/gpu_tests.cmake)
include(cmake/generated_tests.cmake)
