# The example programs. CLI11 compiles slowly, so it is seen by one file only.
find_package(CLI11 REQUIRED)

add_library(weft_train STATIC
  examples/common/interrupt.cpp
  examples/common/options.cpp
  examples/common/progress.cpp
  examples/common/run_folder.cpp
  examples/common/session.cpp
  examples/common/trainer.cpp)
target_link_libraries(weft_train PUBLIC weft PRIVATE weft_flags CLI11::CLI11)

foreach(program train_gpt generate)
  add_executable(${program} examples/${program}.cpp)
  target_link_libraries(${program} PRIVATE weft_train weft_flags CLI11::CLI11)
endforeach()

foreach(program mini_gpt readme_model)
  add_executable(${program} examples/${program}.cpp)
  target_link_libraries(${program} PRIVATE weft weft_flags)
endforeach()
