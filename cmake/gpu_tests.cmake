# The CUDA kernels. One source of tests, two executables: on the imitated GPU, always, and on a real
# one where there is one.
set(weft_gpu_test_stems
  copy
  elementwise
  gemm
  layer_norm
  reduce
  rms_norm)
add_library(weft_gpu_tests OBJECT tests/cuda/gpu.cpp)
foreach(stem ${weft_gpu_test_stems})
  target_sources(weft_gpu_tests PRIVATE tests/cuda/test_${stem}.cpp)
endforeach()
target_include_directories(weft_gpu_tests PRIVATE ${weft_include})
target_link_libraries(weft_gpu_tests PRIVATE weft_flags doctest::doctest)

add_executable(emulated_tests tests/cuda/orders_emulated.cpp
  $<TARGET_OBJECTS:weft_gpu_tests> $<TARGET_OBJECTS:weft_test_main>)
target_link_libraries(emulated_tests PRIVATE weft_emu weft_flags doctest::doctest)
target_compile_definitions(emulated_tests PRIVATE WEFT_CUDA_EMU=1)
foreach(stem ${weft_gpu_test_stems})
  add_test(NAME emulated_${stem} COMMAND emulated_tests --source-file=*cuda/test_${stem}.cpp)
endforeach()

if(WEFT_HAVE_CUDA)
  add_executable(gpu_tests tests/cuda/main_native.cpp tests/cuda/orders_native.cpp
    $<TARGET_OBJECTS:weft_gpu_tests>)
  target_link_libraries(gpu_tests PRIVATE weft weft_flags doctest::doctest)
  add_test(NAME gpu_tests COMMAND gpu_tests)
  set_tests_properties(gpu_tests PROPERTIES SKIP_RETURN_CODE 77)
endif()
