// The progress lines of a run, --help, and the names of flags.
#include <doctest/doctest.h>

#include <cstdlib>
#include <sstream>

#include "weft/core/error.h"
#include "weft/tests/support.h"
#include "weft/train/help_text.h"
#include "weft/train/terminal.h"
#include "weft/train/time_left.h"
#include "weft/train/unknown_flag.h"

namespace weft::train::progress_test {
namespace {

using test::error_of;

TimeLeft of_plan(const TimeLeft::Plan& plan) {
  TimeLeft left(plan);
  left.add_step(50);  // the first step is slow
  left.add_step(2);
  left.add_step(4);
  return left;
}

}  // namespace

TEST_CASE("progress: a line loses its least important parts, then its end") {
  const std::vector<LinePart> parts{
      {"step 1"}, {"  loss 2"}, {"  norm 3", 3}, {"  lr 4", 4}, {"  left 5 s", 1}};
  CHECK(fit_line(parts, 100) == "step 1  loss 2  norm 3  lr 4  left 5 s");
  CHECK(fit_line(parts, 38) == "step 1  loss 2  norm 3  lr 4  left 5 s");
  CHECK(fit_line(parts, 37) == "step 1  loss 2  norm 3  left 5 s");
  CHECK(fit_line(parts, 31) == "step 1  loss 2  left 5 s");
  CHECK(fit_line(parts, 23) == "step 1  loss 2");
  CHECK(fit_line(parts, 9) == "step 1  l");
  CHECK(fit_line(parts, 0).empty());
}

TEST_CASE("progress: numbers are readable") {
  CHECK(with_separators(0) == "0");
  CHECK(with_separators(999) == "999");
  CHECK(with_separators(1000) == "1,000");
  CHECK(with_separators(124439808) == "124,439,808");
  CHECK(with_separators(-1234567) == "-1,234,567");
  CHECK(with_separators(-123) == "-123");
  CHECK(byte_count(512) == "512 bytes");
  CHECK(byte_count(12e6) == "12.0 MB");
  CHECK(byte_count(3.456e9) == "3.46 GB");
}

TEST_CASE("progress: a sample is shown in lines that fit") {
  using Lines = std::vector<std::string>;
  CHECK(sample_lines("ab\ncdefgh\n", 6) == Lines{"ab", "cdef", "gh", ""});
  CHECK(sample_lines("a\tb\x1b[Kc\xff", 100) == Lines{"a?b?[Kc?"});
  CHECK(sample_lines("a\xc2\x9b"
                     "2J\xc2\xa0",
                     100) == Lines{"a?2J\xc2\xa0"});
  CHECK(sample_lines("\xc3\xa9\xc3\xa9\xc3\xa9", 4) == Lines{"\xc3\xa9\xc3\xa9", "\xc3\xa9"});
}

TEST_CASE("progress: facts are wrapped between words, under their own beginning") {
  using Lines = std::vector<std::string>;
  CHECK(fact_lines("data", "1,024 tokens, and 64 held out", 80) ==
        Lines{"data             1,024 tokens, and 64 held out"});
  CHECK(fact_lines("data", "1,024 tokens, and 64 held out", 34) ==
        Lines{"data             1,024 tokens, and", "                 64 held out"});
  CHECK(fact_lines("data", "1,024 tokens, and 64 held out", 33) ==
        Lines{"data             1,024 tokens,", "                 and 64 held out"});
  CHECK(fact_lines("key", "\x1b[2J a\n\x7f\xff\xc2\x9b\xc3\xa9\xc2", 80) ==
        Lines{"key              \\x1b[2J a\\x0a\\x7f\\xff\\xc2\\x9b\xc3\xa9\\xc2"});
  CHECK(fact_lines("\x1b\x1b\x1b\x1b\x1b", "x", 80) == Lines{"\\x1b\\x1b\\x1b\\x1b\\x1b x"});
  CHECK(fact_lines("plot", "/a/long/path", 4) == Lines{"plot             /a/long/path"});
  CHECK(fact_lines("a name of eighteen", "x", 80) == Lines{"a name of eighteen x"});
}

TEST_CASE("progress: COLUMNS sets the width") {
  const char* const before = std::getenv("COLUMNS");
  const std::string kept = before ? before : "";
  setenv("COLUMNS", "57", 1);
  CHECK(terminal_width() == 57);
  setenv("COLUMNS", "wide", 1);
  CHECK(terminal_width() > 0);
  if (before)
    setenv("COLUMNS", kept.c_str(), 1);
  else
    unsetenv("COLUMNS");
}

TEST_CASE("progress: the time left counts steps, evaluations, saves and samples") {
  CHECK(of_plan({.steps = 10}).after(4) == doctest::Approx(6 * 3));
  // Evaluations at 8 and at the end, 10; each counts as 5 steps until one is timed.
  TimeLeft left = of_plan({.steps = 10, .eval_every = 4, .steps_per_evaluation = 5});
  CHECK(left.after(5) == doctest::Approx(5 * 3 + 2 * 5 * 3));
  CHECK(left.after(8) == doctest::Approx(2 * 3 + 2 * 5 * 3));
  CHECK(left.after(9) == doctest::Approx(1 * 3 + 1 * 5 * 3));
  CHECK(left.after(10) == doctest::Approx(5 * 3));
  left.add(Aside::evaluation, 7);
  left.add(Aside::evaluation, 9);
  CHECK(left.after(9) == doctest::Approx(3 + 8));
  // The last step is also on the interval and counts once.
  TimeLeft even = of_plan({.steps = 8, .save_every = 4});
  even.add(Aside::save, 100);
  CHECK(even.after(4) == doctest::Approx(4 * 3 + 200));
  CHECK(even.after(5) == doctest::Approx(3 * 3 + 100));
  CHECK(even.after(8) == doctest::Approx(100));
  // A run on the meta device saves nothing.
  TimeLeft meta = of_plan({.steps = 8, .save_every = 4, .saves = false});
  meta.add(Aside::save, 100);
  CHECK(meta.after(4) == doctest::Approx(4 * 3));
  // Samples are drawn on the interval only: at 3, 6 and 9.
  TimeLeft samples = of_plan({.steps = 10, .saves = false, .sample_every = 3});
  samples.add(Aside::sample, 40);
  CHECK(samples.after(3) == doctest::Approx(7 * 3 + 120));
  CHECK(samples.after(4) == doctest::Approx(6 * 3 + 80));
  CHECK(samples.after(10) == doctest::Approx(0));
  TimeLeft first({.steps = 3});
  first.add_step(50);
  CHECK(first.after(1) == doctest::Approx(100));  // the only step so far
}

TEST_CASE("help: no line is wider than 80 columns") {
  const std::string text = help_text(
      "Trains.\nAll times are seconds.", {"train --data book.txt"},
      {{"Data", {{"--data TEXT...", "files " + std::string(30, 'a') + " and then a word or two"}}},
       {"Empty", {}},
       {"Run", {{"--a-flag-that-is-long TEXT...", "help"}, {"--out TEXT", "folder [out]"}}}});
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 80);
  CHECK(text ==
        "Trains.\nAll times are seconds.\n\nExamples\n  train --data book.txt\n\nData\n"
        "  --data TEXT...              files aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa and then a\n"
        "                              word or two\n\nRun\n  --a-flag-that-is-long TEXT...\n"
        "                              help\n  --out TEXT                  folder [out]\n");
}

TEST_CASE("flags: names of other trainers are known") {
  const std::vector<std::string> known{"--lr", "--steps", "--eval-every", "--batch", "--log-every"};
  CHECK(our_name("--lr", known) == "--lr");
  CHECK(our_name("--lr=1_0", known) == "--lr=1_0");
  CHECK(our_name("--eval_every=5", known) == "--eval-every=5");
  CHECK(our_name("--learning-rate", known) == "--lr");
  CHECK(our_name("--learning_rate=1e-3", known) == "--lr=1e-3");
  CHECK(our_name("--max_iters", known) == "--steps");
  CHECK(our_name("some_text", known) == "some_text");
  // A name with another meaning, or of a flag that the program lacks, is not replaced.
  CHECK(our_name("--batch-size", known) == "--batch-size");
  CHECK(our_name("--n-layer", known) == "--n-layer");

  const auto said = [&](const std::string& given) {
    return error_of([&] { throw_unknown_flag(given, known, "--help"); });
  };
  CHECK(said("--batch_size=8") ==
        "unknown flag '--batch_size'; the nearest in meaning is --batch: it counts the rows of a "
        "step over all ranks and micro-batches (--help lists all)");
  CHECK(said("--compile") ==
        "unknown flag '--compile'; nothing is compiled at run time; --graph captures a step on a "
        "GPU");
  CHECK(said("--stps") == "unknown flag '--stps'; the nearest is --steps (--help lists all)");
  CHECK(said("--n-layer").starts_with("unknown flag '--n-layer'; the nearest is --"));
}

}  // namespace weft::train::progress_test
