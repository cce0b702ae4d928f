#include "weft/tokenizer/train_bpe.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "weft/core/error.h"
#include "weft/io/json.h"
#include "weft/tokenizer/read.h"
#include "weft/tokenizer/utf8.h"

namespace weft::tokenizer {
namespace {

using Pair = std::pair<std::int32_t, std::int32_t>;

std::uint64_t pair_key(Pair p) {
  return std::uint64_t{static_cast<std::uint32_t>(p.first)} << 32 |
         static_cast<std::uint32_t>(p.second);
}

struct Word {
  std::vector<std::int32_t> symbols;
  std::int64_t count;
};

struct Entry {  // of the queue; outdated when its count is not the pair's any more
  std::int64_t count;
  Pair pair;
  bool operator<(const Entry& o) const {
    return count != o.count ? count < o.count : pair > o.pair;
  }
};

/// Finds the merges of counted words.
class Merger {
 public:
  explicit Merger(std::vector<Word> words) : words_(std::move(words)) {
    for (std::uint32_t w = 0; w < words_.size(); ++w) change(w, +1);
    for (const auto& [key, p] : pairs_) queue_.push({p.count, pair_of(key)});
  }

  /// The next pair, merged to `token`; false when none occurs often enough.
  bool next(std::int64_t least_count, std::int32_t token, Pair& merged) {
    while (!queue_.empty()) {
      const Entry top = queue_.top();
      queue_.pop();
      const auto found = pairs_.find(pair_key(top.pair));
      const std::int64_t count = found == pairs_.end() ? 0 : found->second.count;
      if (count < least_count) continue;
      if (count != top.count) {
        queue_.push({count, top.pair});
        continue;
      }
      merged = top.pair;
      merge(std::exchange(found->second.words, {}), top.pair, token);
      return true;
    }
    return false;
  }

 private:
  struct Occurrences {
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;  ///< may hold words that have lost the pair
  };
  static Pair pair_of(std::uint64_t key) {
    return {static_cast<std::int32_t>(key >> 32), static_cast<std::int32_t>(key)};
  }

  // Adds the pairs of a word to the counts, or takes them away. Only pairs with the token `fresh`
  // do not know the word yet; -1: none does.
  void change(std::uint32_t w, std::int64_t sign, std::int32_t fresh = -1) {
    const Word& word = words_[w];
    for (std::size_t i = 0; i + 1 < word.symbols.size(); ++i) {
      const Pair pair{word.symbols[i], word.symbols[i + 1]};
      Occurrences& p = pairs_[pair_key(pair)];
      p.count += sign * word.count;
      const bool knows = fresh >= 0 && pair.first != fresh && pair.second != fresh;
      if (sign > 0 && !knows && (p.words.empty() || p.words.back() != w)) p.words.push_back(w);
    }
  }

  void merge(std::vector<std::uint32_t> where, Pair pair, std::int32_t token) {
    std::sort(where.begin(), where.end());
    where.erase(std::unique(where.begin(), where.end()), where.end());
    std::vector<std::uint64_t> fresh;
    for (const std::uint32_t w : where) {
      change(w, -1);
      std::vector<std::int32_t>& s = words_[w].symbols;
      std::size_t kept = 0;
      for (std::size_t i = 0; i < s.size(); ++i) {
        const bool both = i + 1 < s.size() && Pair{s[i], s[i + 1]} == pair;
        s[kept++] = both ? token : s[i];
        if (both) ++i;
      }
      s.resize(kept);
      change(w, +1, token);
      for (std::size_t i = 0; i + 1 < s.size(); ++i)
        if (s[i] == token || s[i + 1] == token) fresh.push_back(pair_key({s[i], s[i + 1]}));
    }
    std::sort(fresh.begin(), fresh.end());
    fresh.erase(std::unique(fresh.begin(), fresh.end()), fresh.end());
    for (const std::uint64_t key : fresh) queue_.push({pairs_[key].count, pair_of(key)});
  }

  std::vector<Word> words_;
  std::unordered_map<std::uint64_t, Occurrences> pairs_;
  std::priority_queue<Entry> queue_;
};

// The bytes in the order of their characters, which is the order of their ids.
std::vector<std::string> byte_symbols() {
  std::vector<std::string> all;
  for (int b = 0; b < 256; ++b) all.push_back(byte_alphabet(static_cast<unsigned char>(b)));
  std::sort(all.begin(), all.end());
  return all;
}

io::Json added_token(const std::string& text, std::int64_t id) {
  return io::Json::object()
      .set("id", id)
      .set("content", text)
      .set("single_word", false)
      .set("lstrip", false)
      .set("rstrip", false)
      .set("normalized", false)
      .set("special", true);
}

io::Json byte_level(bool use_regex) {
  return io::Json::object()
      .set("type", "ByteLevel")
      .set("add_prefix_space", false)
      .set("trim_offsets", true)
      .set("use_regex", use_regex);
}

io::Json pre_tokenizer(Split split) {
  io::Json cut = io::Json::object();
  cut.set("type", "Split")
      .set("pattern", io::Json::object().set("Regex", std::string(regex_of(split))))
      .set("behavior", "Isolated")
      .set("invert", false);
  return io::Json::object()
      .set("type", "Sequence")
      .set("pretokenizers", io::Json(io::Json::Array{cut, byte_level(false)}));
}

}  // namespace

BpeTrainer::BpeTrainer(BpeTrainOptions options) : options_(std::move(options)) {
  const auto least = static_cast<std::int64_t>(256 + options_.special.size());
  check(options_.vocab >= least, "train_tokenizer: vocab must be at least {}, got {}", least,
        options_.vocab);
  check(options_.vocab <= INT32_MAX, "train_tokenizer: vocab must be at most {}, got {}", INT32_MAX,
        options_.vocab);
  for (std::size_t i = 0; i < options_.special.size(); ++i) {
    const std::string& text = options_.special[i];
    constexpr std::size_t kLongest = 1024;  // of added tokens
    check(!text.empty() && text.size() <= kLongest,
          "train_tokenizer: a special token must have 1 to {} bytes, got {}", kLongest,
          text.size());
    const auto end = options_.special.begin() + static_cast<std::ptrdiff_t>(i);
    check(std::find(options_.special.begin(), end, text) == end,
          "train_tokenizer: special tokens must differ, got '{}' twice", shown(text));
  }
  check(options_.least_count >= 1, "train_tokenizer: the least count must be at least 1, got {}",
        options_.least_count);
}

void BpeTrainer::add(std::string_view text) {
  each_piece(text, {options_.split}, [&](std::string_view piece) { ++words_[std::string(piece)]; });
}

std::string BpeTrainer::to_json() const {
  std::vector<std::string> symbols = byte_symbols();
  std::unordered_map<std::string, std::int32_t> ids;
  for (const std::string& s : symbols) ids.emplace(s, static_cast<std::int32_t>(ids.size()));
  std::vector<std::int32_t> of_byte;
  for (int b = 0; b < 256; ++b)
    of_byte.push_back(ids.at(byte_alphabet(static_cast<unsigned char>(b))));
  std::vector<Word> words;
  for (const auto& [text, count] : words_) {
    words.push_back({{}, count});
    for (const char c : text)
      words.back().symbols.push_back(of_byte[static_cast<unsigned char>(c)]);
  }
  Merger merger(std::move(words));
  io::Json vocab = io::Json::object(), merges = io::Json(io::Json::Array{});
  const auto most = static_cast<std::size_t>(options_.vocab) - options_.special.size();
  for (Pair p; symbols.size() < most;) {
    const auto token = static_cast<std::int32_t>(symbols.size());
    if (!merger.next(options_.least_count, token, p)) break;
    const std::string left = symbols[static_cast<std::size_t>(p.first)],
                      right = symbols[static_cast<std::size_t>(p.second)];
    symbols.push_back(left + right);
    merges.push_back(io::Json(io::Json::Array{left, right}));
  }
  std::int64_t id = 0;
  for (const std::string& s : symbols) vocab.append(s, id++);
  io::Json added = io::Json(io::Json::Array{});
  for (const std::string& s : options_.special) added.push_back(added_token(s, id++));
  io::Json model = io::Json::object();
  model.set("type", "BPE")
      .set("dropout", io::Json())
      .set("unk_token", io::Json())
      .set("continuing_subword_prefix", io::Json())
      .set("end_of_word_suffix", io::Json())
      .set("fuse_unk", false)
      .set("byte_fallback", false)
      .set("ignore_merges", false)
      .set("vocab", std::move(vocab))
      .set("merges", std::move(merges));
  return io::Json::object()
             .set("version", "1.0")
             .set("truncation", io::Json())
             .set("padding", io::Json())
             .set("added_tokens", std::move(added))
             .set("normalizer", io::Json())
             .set("pre_tokenizer", pre_tokenizer(options_.split))
             .set("post_processor", io::Json())
             .set("decoder", byte_level(true))
             .set("model", std::move(model))
             .dump() +
         "\n";
}

}  // namespace weft::tokenizer
