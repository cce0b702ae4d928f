# Benchmarks: build/<preset>/bin/bench_<stem>. Each prints a table; --json FILE writes it as rows.
foreach(stem ops overhead roof step)
  add_executable(bench_${stem} bench/bench_${stem}.cpp)
  target_link_libraries(bench_${stem} PRIVATE weft weft_flags)
endforeach()
target_sources(bench_step PRIVATE bench/train_run.cpp)
