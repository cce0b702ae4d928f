# The example programs.

# Objects rather than a library: the code shared by the programs is linked with the library and, for
# a test, with the library of the emulated GPU.
add_library(weft_gpt OBJECT
  examples/common/adapter.cpp
  examples/common/adapter_start.cpp
  examples/common/check_weights.cpp
  examples/common/continuation.cpp
  examples/common/folder_json.cpp
  examples/common/gpt_data.cpp
  examples/common/gpt_options.cpp
  examples/common/gpt_plan.cpp
  examples/common/gpt_program.cpp
  examples/common/gpt_task.cpp
  examples/common/model_folder.cpp
  examples/common/model_gguf.cpp
  examples/common/open_chat.cpp
  examples/common/sample.cpp
  examples/common/score.cpp
  examples/common/text_tokenizer.cpp)
target_include_directories(weft_gpt PRIVATE ${weft_include})
target_link_libraries(weft_gpt PRIVATE weft_flags weft_cold)

foreach(program train_gpt train_moe generate chat evaluate convert info loss_compare plan tokenize)
  add_executable(${program} examples/${program}.cpp $<TARGET_OBJECTS:weft_gpt>)
  target_link_libraries(${program} PRIVATE weft weft_flags weft_cold)
endforeach()

add_executable(weft_launch examples/weft_launch.cpp examples/common/rank_processes.cpp)
target_link_libraries(weft_launch PRIVATE weft weft_flags weft_cold)

foreach(program mini_gpt readme_model train_mlp train_tokenizer)
  add_executable(${program} examples/${program}.cpp)
  target_link_libraries(${program} PRIVATE weft weft_flags weft_cold)
endforeach()

# With a sanitizer `all` has only the programs that tests run.
if(WEFT_SANITIZE)
  set_target_properties(chat convert evaluate info loss_compare mini_gpt plan tokenize train_moe
    train_tokenizer weft_launch PROPERTIES EXCLUDE_FROM_ALL ON)
endif()
