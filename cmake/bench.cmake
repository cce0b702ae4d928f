# Benchmarks: build/<preset>/bin/bench_<stem>. Each prints a table; --json FILE writes it as rows.
foreach(stem comm ddp fsdp latency moe ops overlap overhead roof save tokenizer)
  add_executable(bench_${stem} bench/bench_${stem}.cpp)
  target_link_libraries(bench_${stem} PRIVATE weft weft_flags)
endforeach()
# These time the library's work, not their own.
foreach(stem comm ddp fsdp moe overlap save)
  target_link_libraries(bench_${stem} PRIVATE weft_cold)
endforeach()
# Objects rather than a program: a test links them with the library of the emulated GPU.
add_library(weft_bench_step OBJECT bench/bench_step.cpp bench/train_run.cpp)
target_include_directories(weft_bench_step PRIVATE ${weft_include})
target_link_libraries(weft_bench_step PRIVATE weft_flags)
add_executable(bench_step $<TARGET_OBJECTS:weft_bench_step>)
target_link_libraries(bench_step PRIVATE weft weft_flags)
if(WEFT_EXAMPLES)
  add_executable(bench_comm_model bench/bench_comm_model.cpp
    bench/comm_estimate.cpp bench/comm_layouts.cpp bench/comm_timeline.cpp bench/comm_trace.cpp
    bench/start_up.cpp $<TARGET_OBJECTS:weft_gpt>)
  target_link_libraries(bench_comm_model PRIVATE weft weft_flags weft_cold)
endif()

if(WEFT_TESTS OR NOT WEFT_CUDA STREQUAL "OFF")
  add_library(weft_bench_gpu OBJECT EXCLUDE_FROM_ALL
    bench/bench_gpu.cpp
    bench/gpu/attention.cpp
    bench/gpu/elementwise.cpp
    bench/gpu/gpu_bench.cpp
    bench/gpu/norm.cpp
    bench/gpu/optimizer.cpp
    bench/gpu/overhead.cpp
    bench/gpu/products.cpp
    bench/gpu/rows.cpp)
  target_include_directories(weft_bench_gpu PRIVATE ${weft_include})
  target_link_libraries(weft_bench_gpu PRIVATE weft_flags)
endif()
if(WEFT_HAVE_CUDA)
  add_executable(bench_gpu $<TARGET_OBJECTS:weft_bench_gpu>)
  target_link_libraries(bench_gpu PRIVATE weft weft_flags)
endif()
