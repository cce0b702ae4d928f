// The peak bytes by category of ten configurations, stored in tests/fixtures/memory_goldens.json. A
// change that needs another amount of memory on purpose rewrites them: WEFT_WRITE_GOLDENS=1 in the
// environment of this test. On the CPU only f32 is compared: what a bf16 product needs there
// depends on the processor.
#include <doctest/doctest.h>

#include <cstdlib>
#include <sstream>

#include "weft/examples/common/gpt_plan.h"
#include "weft/io/file.h"
#include "weft/io/json.h"
#include "weft/tests/support.h"

namespace weft::examples::memory_goldens_test {
namespace {

const std::string kGoldens = WEFT_FIXTURES "/memory_goldens.json";

GptOptions options_of(const std::string& flags) {
  std::vector<std::string> words{"plan"};
  std::istringstream in(flags);
  for (std::string word; in >> word;) words.push_back(word);
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  GptOptions o;
  if (words[1] == "--moe") {
    o = moe_defaults();
    argv.erase(argv.begin() + 1);
  }
  REQUIRE(parse(o, static_cast<int>(argv.size()), argv.data()));
  if (o.model.vocab == 0) o.model.vocab = 256;
  return o;
}

io::Json planned(const std::string& flags) {
  const LiveBytes peak = plan_memory(options_of(flags)).peak;
  io::Json bytes = io::Json::object();
  for (int i = 0; i < kCategories; ++i)
    bytes.set(name(static_cast<Category>(i)), peak.by_category[i]);
  return bytes;
}

}  // namespace

TEST_CASE("memory goldens: peak bytes by category") {
  const io::Json stored = io::Json::parse(io::read_file(kGoldens), "memory_goldens.json");
  REQUIRE(stored.items().size() == 10);
  std::string written;
  for (const io::Json& golden : stored.items()) {
    const std::string flags = golden.at("flags").as_string();
    const io::Json now = planned(flags);
    for (const io::JsonMember& m : now.members()) {
      const std::int64_t before = golden.at("bytes").at(m.key).as_int(),
                         moved = m.value.as_int() - before;
      CHECK_MESSAGE(moved == 0,
                    message("{}: {} moved by {}{} bytes, from {} to {}; if that is meant, run "
                            "this test with WEFT_WRITE_GOLDENS=1",
                            flags, m.key, moved > 0 ? "+" : "", moved, before, m.value.as_int()));
    }
    written += (written.empty() ? "[" : ",\n ") +
               io::Json::object().set("flags", flags).set("bytes", now).dump();
  }
  if (std::getenv("WEFT_WRITE_GOLDENS")) io::write_file(kGoldens, written + "]\n");
}

}  // namespace weft::examples::memory_goldens_test
