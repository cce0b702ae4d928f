# The example programs. CLI11 and toml++ compile slowly: one file sees each.
find_package(CLI11 REQUIRED)
find_package(tomlplusplus REQUIRED)

# Objects, not a library: the trainer is linked with the library, and for a test with the one that
# imitates a GPU.
add_library(weft_train OBJECT
  examples/common/check_memory.cpp
  examples/common/check_weights.cpp
  examples/common/command_line.cpp
  examples/common/config_file.cpp
  examples/common/interrupt.cpp
  examples/common/model_options.cpp
  examples/common/options.cpp
  examples/common/progress.cpp
  examples/common/ranks.cpp
  examples/common/run_folder.cpp
  examples/common/session.cpp
  examples/common/session_state.cpp
  examples/common/test_aids.cpp
  examples/common/trainer.cpp
  examples/common/unknown_flag.cpp)
# CLI11 is code of others, run once: compiled for speed of compiling.
set_source_files_properties(examples/common/command_line.cpp PROPERTIES
  COMPILE_OPTIONS "-O0;-fno-sanitize=all")
target_include_directories(weft_train PRIVATE ${weft_include})
target_link_libraries(weft_train PRIVATE weft_flags CLI11::CLI11 tomlplusplus::tomlplusplus)

foreach(program train_gpt train_moe generate loss_compare)
  add_executable(${program} examples/${program}.cpp $<TARGET_OBJECTS:weft_train>)
  target_link_libraries(${program} PRIVATE weft weft_flags tomlplusplus::tomlplusplus)
endforeach()

foreach(program mini_gpt readme_model)
  add_executable(${program} examples/${program}.cpp)
  target_link_libraries(${program} PRIVATE weft weft_flags)
endforeach()
