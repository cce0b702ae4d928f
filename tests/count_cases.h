#pragma once
#include <doctest/doctest.h>

#include <cstdio>

namespace weft::test {

// A filter that matches no case must not look like a passed test.
inline unsigned cases_run = 0;
struct CountCases : doctest::IReporter {
  explicit CountCases(const doctest::ContextOptions&) {}
  void test_case_start(const doctest::TestCaseData&) override { ++cases_run; }
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};
/// The program's exit status, given doctest's status.
inline int status_of_run(doctest::Context& context, int status) {
  if (status != 0 || context.shouldExit() || cases_run > 0) return status;
  std::puts("no test case has this name");
  return 1;
}

}  // namespace weft::test

REGISTER_LISTENER("count", 1, weft::test::CountCases);
