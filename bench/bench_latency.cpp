// How fast the processors exchange a cache line: in milliseconds of time it tells whether they
// share a last-level cache at the moment.
#include "weft/bench/core_latency.h"

using namespace weft;

int main(int argc, char** argv) try {
  bench::Report report(argc, argv);
  bench::core_latency_rows(report);
  return report.finish();
} catch (const Error& e) {
  return bench::failed(argv[0], e);
}
