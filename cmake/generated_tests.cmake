# Tests with generated cases: every op by layouts and dtypes, and random programs. They link the
# library of the emulated GPU.
add_executable(test_generated_ops tests/generated/test_generated_ops.cpp
  tests/generated/test_op_kernels.cpp tests/generated/op_runs.cpp tests/generated/ops_page.cpp
  tests/generated/ops_table.cpp)
target_compile_definitions(test_generated_ops PRIVATE
  WEFT_OPS_PAGE="${PROJECT_SOURCE_DIR}/docs/ops.md")
add_executable(test_generated_programs tests/generated/test_generated_programs.cpp
  tests/generated/interpreter.cpp tests/generated/ops_page.cpp tests/generated/program.cpp)
target_compile_definitions(test_generated_programs PRIVATE
  WEFT_OPS_PAGE="${PROJECT_SOURCE_DIR}/docs/ops.md")
foreach(stem axis capacity check elementwise experts fused indexing joins losses masks members ops
        recurrent rope sequences tokens unary views)
  target_sources(test_generated_programs PRIVATE tests/generated/program_${stem}.cpp)
endforeach()

add_library(weft_generated OBJECT tests/generated/layouts.cpp)
target_include_directories(weft_generated PRIVATE ${weft_include})
target_link_libraries(weft_generated PRIVATE weft_test_flags weft_busy_test_level)
# What documents say is checked once, without sanitizers.
set(weft_generated_cases)
if(WEFT_SANITIZE)
  set(weft_generated_cases --test-case-exclude=*docs/ops.md*)
endif()
foreach(stem ops programs)
  target_sources(test_generated_${stem} PRIVATE $<TARGET_OBJECTS:weft_generated>
    $<TARGET_OBJECTS:weft_test_main>)
  target_link_libraries(test_generated_${stem} PRIVATE weft_emu weft_test_flags
    weft_busy_test_level)
  add_test(NAME generated_${stem} COMMAND test_generated_${stem} ${weft_generated_cases})
endforeach()
if(WEFT_SANITIZE STREQUAL "")
  # Again as on narrower processors; see weft_isa_test() in tests.cmake.
  foreach(stem ops programs)
    foreach(limit "avx2 AVX2" "scalar SSE41")
      string(REPLACE " " ";" limit ${limit})
      list(GET limit 0 isa)
      list(GET limit 1 onednn)
      add_test(NAME isa_${isa}_generated_${stem}
        COMMAND test_generated_${stem} --test-case-exclude=*GPU*)
      set_tests_properties(isa_${isa}_generated_${stem} PROPERTIES LABELS isa SKIP_RETURN_CODE 77
        ENVIRONMENT "WEFT_ISA=${isa};ONEDNN_MAX_CPU_ISA=${onednn}")
    endforeach()
  endforeach()
else()
  set_tests_properties(generated_ops PROPERTIES ENVIRONMENT WEFT_GENERATED_SHARE=8)
  set_tests_properties(generated_programs PROPERTIES ENVIRONMENT WEFT_GENERATED_PROGRAMS=200)
endif()
