// Conversations as training data: which of their tokens are targets.
#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/error.h"
#include "weft/data/packed_documents.h"
#include "weft/examples/common/open_chat.h"
#include "weft/io/file.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"
#include "weft/tokenizer/chat.h"

namespace weft::conversations_test {
using test::error_of;
namespace {

// The bytes tokenizer with two marks.
struct Marked final : tokenizer::Tokenizer {
  tokenizer::ByteTokenizer bytes;
  std::int64_t vocab() const override { return 258; }
  std::vector<std::int32_t> encode(std::string_view text,
                                   const tokenizer::EncodeOptions& o) const override {
    return bytes.encode(text, o);
  }
  std::string_view bytes_of(std::int32_t t) const override {
    return t == 256 ? "{" : t == 257 ? "}" : bytes.bytes_of(t);
  }
  std::optional<std::int32_t> find(std::string_view text) const override {
    if (text == "<|im_start|>") return 256;
    if (text == "<|im_end|>") return 257;
    return {};
  }
};

// The rows as text: what the model reads, and what it learns in the places below, "." elsewhere.
std::string shown(const Marked& t, const data::Batch& b) {
  std::string out;
  for (std::int64_t i = 0; i < b.inputs.numel(); ++i)
    if (b.positions.data<std::int32_t>()[i] >= 0)
      out += t.bytes_of(b.inputs.data<std::int32_t>()[i]);
  out += '|';
  for (std::int64_t i = 0; i < b.targets.numel(); ++i) {
    const std::int32_t target = b.targets.data<std::int32_t>()[i];
    if (target != data::kIgnore) out += t.bytes_of(target);
  }
  return out;
}

}  // namespace

TEST_CASE("conversations: only what an assistant writes is a target") {
  const test::TempFolder folder;
  const std::string file = folder / "c.jsonl";
  const Marked t;
  const tokenizer::ChatWriter chat(t, tokenizer::ChatFormat::chatml);
  io::write_file(
      file, R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Yo"}]})"
            "\n\n"
            R"({"messages":[{"role":"system","content":"S"},{"role":"user","content":"A"},)"
            R"({"role":"assistant","content":"B"},{"role":"user","content":"C"},)"
            R"({"role":"assistant","content":"D"}]})"
            "\n");
  const auto all = examples::read_conversations({file}, chat);
  REQUIRE(all.ends.size() == 2);
  const auto rows_of = [&](const examples::Conversations& c, std::int64_t seq) {
    const data::PackedDocuments rows(data::TokenStream::of(c.tokens), seq, c.ends, c.written);
    std::vector<std::int64_t> numbers;
    for (std::int64_t i = 0; i < rows.size(); ++i) numbers.push_back(i);
    return shown(t, rows.rows(numbers));
  };
  const std::string first = "{user\nHi}\n{assistant\nYo}\n",
                    second = "{system\nS}\n{user\nA}\n{assistant\nB}\n{user\nC}\n{assistant\nD}\n";
  CHECK(rows_of(all, 128) == first + second + "|Yo}B}D}");
  CHECK(rows_of(all, 16) == first + second + "|Yo}B}D}");  // cut into pieces
  const auto [training, held_out] = all.split(0.1);
  CHECK(rows_of(training, 64) == first + "|Yo}");
  CHECK(rows_of(held_out, 128) == second + "|B}D}");
  CHECK(all.first(1).ends.size() == 1);
  CHECK(all.first(0).ends.size() == 2);
  CHECK(all.first(all.ends[0] + 1).ends.size() == 2);

  io::write_file(file, "\n{\"messages\":[{\"role\":\"tool\",\"content\":\"\"}]}");
  CHECK(error_of([&] { (void)examples::read_conversations({file}, chat); }) ==
        file + " line 2: messages: role must be system, user or assistant, got 'tool'");
  CHECK(error_of([&] {
          data::PackedDocuments(data::TokenStream::of(all.tokens), 16, all.ends,
                                std::vector<std::uint8_t>(all.tokens.size()));
        }).find("at least 1 token must count") != std::string::npos);
}

}  // namespace weft::conversations_test
