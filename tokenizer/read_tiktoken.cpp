#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <utility>

#include "weft/core/error.h"
#include "weft/tokenizer/read.h"
#include "weft/tokenizer/utf8.h"

namespace weft::tokenizer {
namespace {

/// The published vocabularies of .tiktoken files, which hold neither pattern nor special tokens.
struct Published {
  std::int64_t ranks;
  Split split;
  bool nfc = false;
  /// Special tokens from the first free id on, separated by spaces. "name@id" sets the id;
  /// "name{n:from}" stands for n tokens with numbers from `from` in place of '#'.
  std::string_view special;
};
constexpr Published kPublished[] = {
    {50'256, Split::gpt2, false, "<|endoftext|>"},
    {100'256, Split::gpt4, false,
     "<|endoftext|>@100257 <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|endofprompt|>@100276"},
    {128'000, Split::cl100k, false,
     "<|begin_of_text|> <|end_of_text|> <|reserved_special_token_0|> <|reserved_special_token_1|> "
     "<|finetune_right_pad_id|> <|step_id|> <|start_header_id|> <|end_header_id|> <|eom_id|> "
     "<|eot_id|> <|python_tag|> <|image|> <|reserved_special_token_#|>{244:2}"},
    {151'643, Split::qwen2, true, "<|endoftext|> <|im_start|> <|im_end|> <|extra_#|>{205:0}"},
    {199'998, Split::o200k, false, "<|endoftext|>@199999 <|endofprompt|>@200018"},
    {200'000, Split::o200k, false, "<|begin_of_text|> <|end_of_text|>"},
    {248'044, Split::qwen3_5, true,
     "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> "
     "<|box_end|> <|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> "
     "<|image_pad|> <|video_pad|> <tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> "
     "<|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> </tool_response> "
     "<think> "
     "</think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> "
     "<tts_text_bos_single> <|audio_pad|>"},
};

template <class T>
T number_of(std::string_view text) {
  T v = 0;
  std::from_chars(text.data(), text.data() + text.size(), v);
  return v;
}

void add_special(BpeParts& parts, std::int64_t id, std::string text, const std::string& what) {
  parts.set(id, text, BpeParts::TokenKind::special, what);
  parts.added.push_back(
      {.text = std::move(text), .id = static_cast<std::int32_t>(id), .special = true});
}

void add_special_list(BpeParts& parts, std::int64_t id, std::string_view list,
                      const std::string& what) {
  while (!list.empty()) {
    std::string_view entry = list.substr(0, list.find(' '));
    list.remove_prefix(std::min(list.size(), entry.size() + 1));
    std::int64_t count = 1, from = 0;
    if (const std::size_t at = entry.find('@'); at != entry.npos) {
      id = number_of<std::int64_t>(entry.substr(at + 1));
      entry = entry.substr(0, at);
    }
    if (const std::size_t at = entry.find('{'); at != entry.npos) {
      count = number_of<std::int64_t>(entry.substr(at + 1));
      from = number_of<std::int64_t>(entry.substr(entry.find(':') + 1));
      entry = entry.substr(0, at);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      std::string text(entry);
      if (const std::size_t at = text.find('#'); at != text.npos)
        text.replace(at, 1, std::to_string(from + i));
      add_special(parts, id++, std::move(text), what);
    }
  }
}

constexpr std::string_view kBase64 =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// False when the text is not base64.
bool from_base64(std::string_view text, std::string& bytes) {
  static const std::array<int, 256> values = [] {
    std::array<int, 256> v{};
    v.fill(-1);
    for (std::size_t i = 0; i < 64; ++i)
      v[static_cast<unsigned char>(kBase64[i])] = static_cast<int>(i);
    return v;
  }();
  bytes.clear();
  if (text.size() % 4 != 0) return false;
  std::size_t fill = 0;
  while (fill < 2 && fill < text.size() && text[text.size() - 1 - fill] == '=') ++fill;
  for (std::size_t i = 0; i < text.size(); i += 4) {
    unsigned bits = 0;
    for (std::size_t k = i; k < i + 4; ++k) {
      const bool filled = k + fill >= text.size();
      const int v = filled ? 0 : values[static_cast<unsigned char>(text[k])];
      if (v < 0) return false;
      bits = bits << 6 | static_cast<unsigned>(v);
    }
    for (int shift = 16; shift >= 0; shift -= 8) bytes += static_cast<char>(bits >> shift & 255);
  }
  bytes.resize(bytes.size() - fill);
  return true;
}

void add_rank(BpeParts& parts, std::vector<std::int64_t>& ranks, std::int64_t id, std::int64_t rank,
              std::string bytes, const std::string& what) {
  constexpr std::size_t kLongest = 4096;
  check_system(!bytes.empty() && bytes.size() <= kLongest,
               "{}: a token must have 1 to {} bytes, got {}", what, kLongest, bytes.size());
  parts.set(id, bytes, BpeParts::TokenKind::text, what);
  if (ranks.size() < parts.text.size()) ranks.resize(parts.text.size(), -1);
  ranks[static_cast<std::size_t>(id)] = rank;
  const bool fresh = parts.ids.emplace(std::move(bytes), static_cast<std::int32_t>(id)).second;
  check_system(fresh, "{}: two ranks are the same token: see rank {}", what, rank);
}

void finish(BpeParts& parts, const std::vector<std::int64_t>& ranks, const std::string& what) {
  for (std::size_t b = 0; b < 256; ++b) {
    const auto found = parts.ids.find(std::string(1, static_cast<char>(b)));
    parts.bytes[b] = found == parts.ids.end() ? -1 : found->second;
  }
  parts.whole_first = true;
  parts.merge_by_rank(ranks, what);
}

}  // namespace

BpeParts read_tiktoken(std::string_view content, const std::string& what,
                       const OpenOptions& options) {
  BpeParts parts;
  std::vector<std::int64_t> ranks;
  std::string bytes;
  parts.most_ids += static_cast<std::int64_t>(content.size() / 2);  // a line has more bytes
  std::int64_t line_number = 0, count = 0;
  for (std::size_t at = 0; at < content.size();) {
    std::string_view line = content.substr(at, content.find('\n', at) - at);
    at += line.size() + 1;
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::size_t space = line.find(' ');
    std::int64_t rank = -1;
    bool ok = space != line.npos && from_base64(line.substr(0, space), bytes);
    if (ok) {
      const char* const end = line.data() + line.size();
      const auto [last, error] = std::from_chars(line.data() + space + 1, end, rank);
      ok = error == std::errc() && last == end;
    }
    check_system(ok, "{}: line {}: must be a token in base64, a space and its rank, got '{}'", what,
                 line_number, shown(line));
    add_rank(parts, ranks, rank, rank, bytes, what);
    ++count;
  }
  const Published* known = nullptr;
  for (const Published& p : kPublished)
    if (p.ranks == count) known = &p;
  check(
      known || !options.split.empty(),
      "{}: {} ranks are no vocabulary that is known; name its split in OpenOptions, or convert it "
      "to tokenizer.json",
      what, count);
  parts.splits = {options.split.empty() ? known->split : split_of(options.split, what)};
  if (known && options.split.empty()) {
    if (known->nfc) parts.normal.push_back({NormalStep::Kind::nfc, "", ""});
    add_special_list(parts, known->ranks, known->special, what);
  }
  finish(parts, ranks, what);
  return parts;
}

BpeParts read_tekken(const io::Json& file, const std::string& what) {
  BpeParts parts;
  const io::Json& config = file.at("config");
  parts.splits = {split_of(config.at("pattern").as_string(), what)};
  const std::int64_t vocab = config.at("default_vocab_size").as_int();
  const std::int64_t special = config.at("default_num_special_tokens").as_int();
  check_system(special >= 0 && special < vocab,
               "{}: default_num_special_tokens must be in [0, {}), got {}", what, vocab, special);
  std::vector<std::int64_t> ranks;
  std::string bytes;
  parts.most_ids += static_cast<std::int64_t>(2 * file.at("vocab").items().size());
  for (const io::Json& token : file.at("vocab").items()) {
    const std::int64_t rank = token.at("rank").as_int();
    check_system(rank >= 0, "{}: a rank must be at least 0, got {}", what, rank);
    if (rank >= vocab - special) continue;
    check_system(from_base64(token.at("token_bytes").as_string(), bytes),
                 "{}: token_bytes of rank {} is not base64", what, rank);
    add_rank(parts, ranks, special + rank, rank, bytes, what);
  }
  if (const io::Json* const list = file.find("special_tokens"); list && list->is_array()) {
    for (const io::Json& token : list->items())
      add_special(parts, token.at("rank").as_int(), token.at("token_str").as_string(), what);
  } else {
    add_special_list(parts, 0, "<unk> <s> </s>", what);  // of older files
  }
  finish(parts, ranks, what);
  return parts;
}

}  // namespace weft::tokenizer
