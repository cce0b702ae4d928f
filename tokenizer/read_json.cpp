// tokenizer.json of the Hugging Face tokenizers library: the parts that byte-pair encodings use.
#include <string>
#include <utility>

#include "weft/core/error.h"
#include "weft/tokenizer/read.h"
#include "weft/tokenizer/utf8.h"

namespace weft::tokenizer {
namespace {

using io::Json;
using Kind = NormalStep::Kind;

/// Reads one file. Errors name the component.
class Reader {
 public:
  Reader(const Json& file, const std::string& what) : file_(file), what_(what) {}

  BpeParts parts() {
    check_system(file_.is_object() && file_.find("model"), "{}: is no tokenizer.json: no \"model\"",
                 what_);
    normalizer(member(file_, "normalizer"));
    pre_tokenizer(member(file_, "pre_tokenizer"), true);
    decoder(member(file_, "decoder"));
    model(file_.at("model"));
    added(member(file_, "added_tokens"));
    post_processor(member(file_, "post_processor"));
    return std::move(p_);
  }

 private:
  static const Json& member(const Json& j, const char* key) {
    static const Json none;
    const Json* const found = j.find(key);
    return found ? *found : none;
  }
  static bool flag(const Json& j, const char* key, bool missing = false) {
    const Json& v = member(j, key);
    return v.is_null() ? missing : v.as_bool();
  }
  static std::string type_of(const Json& j) {
    return j.is_object() && member(j, "type").is_string() ? j.at("type").as_string() : "none";
  }
  void refuse(bool ok, const char* component, const std::string& got) const {
    check_system(ok, "{}: {} {} is not supported; see docs/tokenizers.md", what_, component,
                 shown(got));
  }

  void normalizer(const Json& j) {
    if (j.is_null()) return;
    const std::string type = type_of(j);
    if (type == "Sequence") {
      for (const Json& part : j.at("normalizers").items()) normalizer(part);
    } else if (type == "NFC") {
      add_step(p_.normal, {Kind::nfc, "", ""}, "normalizer");
    } else if (type == "Prepend") {
      add_step(p_.normal, {Kind::prepend, "", j.at("prepend").as_string()}, "normalizer");
    } else if (type == "Replace") {
      add_step(p_.normal, replace(j, "normalizer"), "normalizer");
    } else {
      refuse(false, "normalizer", type);
    }
  }

  // A file of a few bytes must not make a text of any size: replacing nothing would never end, and
  // ten replacements of a byte by a hundred give 10^20 times the text.
  void add_step(std::vector<NormalStep>& to, NormalStep step, const char* component) {
    constexpr std::size_t kMostSteps = 16, kMostBytes = 64, kMostGrowth = 64;
    const bool adds = step.kind == Kind::nfc || step.kind == Kind::prepend;
    check_system(adds || !step.from.empty(), "{}: {}: the text to replace must not be empty", what_,
                 component);
    check_system(to.size() < kMostSteps, "{}: {}: more than {} steps", what_, component,
                 kMostSteps);
    check_system(step.to.size() <= kMostBytes,
                 "{}: {}: a replacement must have at most {} bytes, got {}", what_, component,
                 kMostBytes, step.to.size());
    if (step.kind == Kind::replace && !step.to.empty())
      growth_ *= (step.to.size() + step.from.size() - 1) / step.from.size();
    check_system(growth_ <= kMostGrowth,
                 "{}: {}: replacements must make a text at most {} times as long, got {}", what_,
                 component, kMostGrowth, growth_);
    to.push_back(std::move(step));
  }

  // Each cut is a level of recursion for every piece.
  void add_split(Split split) {
    constexpr std::size_t kMostSplits = 16;
    check_system(p_.splits.size() < kMostSplits, "{}: pre_tokenizer: more than {} splits", what_,
                 kMostSplits);
    p_.splits.push_back(split);
  }

  NormalStep replace(const Json& j, const char* component) const {
    const Json& pattern = j.at("pattern");
    refuse(pattern.find("String") != nullptr, component, "Replace of " + pattern.dump());
    return {Kind::replace, pattern.at("String").as_string(), j.at("content").as_string()};
  }

  void pre_tokenizer(const Json& j, bool first) {
    if (j.is_null()) return;
    const std::string type = type_of(j);
    // The reference cuts the characters that stand for bytes there.
    refuse(!byte_level_ || type == "Sequence", "pre_tokenizer", type + " after ByteLevel");
    if (type == "Sequence") {
      for (const Json& part : j.at("pretokenizers").items()) {
        pre_tokenizer(part, first);
        first = false;
      }
    } else if (type == "ByteLevel") {
      byte_level_ = true;
      if (flag(j, "add_prefix_space", true)) {
        refuse(first, "pre_tokenizer", "ByteLevel with add_prefix_space after another one");
        add_step(p_.pre_split, {Kind::first, " ", " "}, "pre_tokenizer");
      }
      if (flag(j, "use_regex", true)) add_split(Split::gpt2);
    } else if (type == "Split") {
      refuse(member(j, "behavior").is_string() && j.at("behavior").as_string() == "Isolated" &&
                 !flag(j, "invert"),
             "pre_tokenizer", "Split of a behavior other than Isolated");
      const Json& pattern = j.at("pattern");
      refuse(pattern.find("Regex") != nullptr, "pre_tokenizer", "Split by " + pattern.dump());
      add_split(split_of(pattern.at("Regex").as_string(), what_));
    } else if (type == "Digits") {
      add_split(flag(j, "individual_digits") ? Split::digit : Split::digits);
    } else if (type == "Metaspace") {
      refuse(first, "pre_tokenizer", "Metaspace after another one");
      metaspace(j);
    } else {
      refuse(false, "pre_tokenizer", type);
    }
  }

  static std::string scheme_of(const Json& j) {
    const Json& scheme = member(j, "prepend_scheme");
    if (scheme.is_string()) return scheme.as_string();
    return flag(j, "add_prefix_space", true) ? "always" : "never";
  }

  void metaspace(const Json& j) {
    const std::string mark = j.at("replacement").as_string(), scheme = scheme_of(j);
    refuse(scheme == "always" || scheme == "first" || scheme == "never", "pre_tokenizer",
           "Metaspace with prepend_scheme " + scheme);
    add_step(p_.pre_split, {Kind::replace, " ", mark}, "pre_tokenizer");
    if (scheme != "never")
      add_step(p_.pre_split, {scheme == "first" ? Kind::first_of_all : Kind::first, mark, mark},
               "pre_tokenizer");
    if (!flag(j, "split", true)) return;
    refuse(mark == "\u2581", "pre_tokenizer", "Metaspace with replacement " + mark);
    add_split(Split::metaspace);
  }

  void decoder(const Json& j) {
    if (j.is_null()) return;
    const std::string type = type_of(j);
    if (type == "Sequence") {
      for (const Json& part : j.at("decoders").items()) decoder(part);
    } else if (type == "ByteLevel") {
      refuse(byte_level_, "decoder", "ByteLevel without the pre_tokenizer");
    } else if (type == "Replace") {
      add_step(p_text_, replace(j, "decoder"), "decoder");
    } else if (type == "ByteFallback") {
      bytes_decode_ = true;
    } else if (type == "Strip") {
      refuse(j.at("content").as_string() == " " && j.at("start").as_int() == 1 &&
                 j.at("stop").as_int() == 0,
             "decoder", "Strip other than of one space at the start");
      p_.drops_first_space = true;
    } else if (type == "Metaspace") {
      add_step(p_text_, {Kind::replace, j.at("replacement").as_string(), " "}, "decoder");
      p_.drops_first_space = scheme_of(j) != "never";
    } else {
      refuse(type == "Fuse", "decoder", type);
    }
  }

  void model(const Json& j) {
    const std::string type = member(j, "type").is_null() ? "BPE" : type_of(j);
    refuse(type == "BPE", "model", type);
    for (const char* const key : {"continuing_subword_prefix", "end_of_word_suffix"})
      refuse(member(j, key).is_null() || member(j, key).as_string().empty(), "model", key);
    refuse(member(j, "dropout").is_null() || member(j, "dropout").as_double() == 0, "model",
           "dropout");
    p_.characters = !byte_level_;
    p_.whole_first = flag(j, "ignore_merges");
    p_.fuse_unknown = flag(j, "fuse_unk");
    const bool falls_back = flag(j, "byte_fallback");
    p_.bytes.fill(-1);
    const Json::Object& vocab = j.at("vocab").members();
    const Json::Array& merges = j.at("merges").items();
    p_.most_ids += static_cast<std::int64_t>(4 * vocab.size());
    p_.ids.reserve(vocab.size());
    std::unordered_map<std::string, std::int32_t> names;  // by the texts of the file
    std::unordered_map<std::string, std::int32_t>& ids = byte_level_ ? names : p_.ids;
    for (const io::JsonMember& m : vocab) token(m.key, m.value.as_int(), falls_back, ids);
    if (const Json& unknown = member(j, "unk_token"); !unknown.is_null()) {
      const auto found = ids.find(unknown.as_string());
      check_system(found != ids.end(), "{}: unk_token '{}' is not in the vocabulary", what_,
                   shown(unknown.as_string()));
      p_.unknown = found->second;
    }
    p_.merges = MergeTable(merges.size());
    for (std::size_t i = 0; i < merges.size(); ++i)
      merge(merges[i], static_cast<std::uint32_t>(i), ids);
  }

  void token(const std::string& text, std::int64_t id, bool falls_back,
             std::unordered_map<std::string, std::int32_t>& ids) {
    std::string bytes;
    const bool is_bytes = byte_level_ && from_byte_alphabet(text, bytes);
    if (!is_bytes) bytes = text;
    int byte = byte_level_ ? -1 : byte_piece(text);
    if (is_bytes && bytes.size() == 1) byte = static_cast<unsigned char>(bytes[0]);
    if (byte >= 0 && (byte_level_ || falls_back))
      p_.bytes[static_cast<std::size_t>(byte)] = static_cast<std::int32_t>(id);
    if (!byte_level_)
      bytes = byte >= 0 && bytes_decode_ ? std::string(1, static_cast<char>(byte))
                                         : normalize(bytes, p_text_, false);
    p_.set(id, std::move(bytes), BpeParts::TokenKind::text, what_);
    ids.emplace(text, static_cast<std::int32_t>(id));
    if (is_bytes)
      p_.ids.emplace(p_.text[static_cast<std::size_t>(id)], static_cast<std::int32_t>(id));
  }

  void merge(const Json& j, std::uint32_t rank,
             const std::unordered_map<std::string, std::int32_t>& ids) {
    std::string left, right;
    if (j.is_array()) {
      check_system(j.items().size() == 2, "{}: merge {} must have two parts, got {}", what_, rank,
                   j.items().size());
      left = j.items()[0].as_string();
      right = j.items()[1].as_string();
    } else {
      const std::string& both = j.as_string();
      const std::size_t space = both.find(' ');
      check_system(space != std::string::npos && both.find(' ', space + 1) == std::string::npos,
                   "{}: merge {} must be two tokens with a space between them, got '{}'", what_,
                   rank, shown(both));
      left = both.substr(0, space);
      right = both.substr(space + 1);
    }
    // Joining nothing would give the same token again, for ever.
    check_system(!left.empty() && !right.empty(), "{}: merge {} joins an empty token", what_, rank);
    const auto id = [&](const std::string& text) {
      const auto found = ids.find(text);
      check_system(found != ids.end(), "{}: merge {}: '{}' is not in the vocabulary", what_, rank,
                   shown(text));
      return found->second;
    };
    const std::int32_t a = id(left), b = id(right);
    p_.merges.add(a, b, rank, id(left + right));
  }

  void added(const Json& j) {
    if (j.is_null()) return;
    p_.most_ids += static_cast<std::int64_t>(4 * j.items().size());
    for (const Json& t : j.items()) {
      AddedToken a{.text = t.at("content").as_string(),
                   .special = flag(t, "special"),
                   .normalized = flag(t, "normalized"),
                   .left = flag(t, "lstrip"),
                   .right = flag(t, "rstrip")};
      refuse(!flag(t, "single_word"), "added_tokens", "single_word");
      check_added_text(a.text, what_);
      const std::int64_t id = t.at("id").as_int();
      p_.set(id, a.text, a.special ? BpeParts::TokenKind::special : BpeParts::TokenKind::text,
             what_);
      a.id = static_cast<std::int32_t>(id);
      if (a.normalized) a.text = normalize(a.text, p_.normal, false);
      p_.added.push_back(std::move(a));
    }
  }

  void check_around(std::size_t tokens) const {
    constexpr std::size_t kMost = 64;
    check_system(tokens <= kMost, "{}: post_processor: at most {} tokens around a text, got {}",
                 what_, kMost, tokens);
  }

  void post_processor(const Json& j) {
    if (j.is_null()) return;
    const std::string type = type_of(j);
    if (type == "Sequence") {
      for (const Json& part : j.at("processors").items()) post_processor(part);
    } else if (type == "TemplateProcessing") {
      std::vector<std::int32_t>* to = &p_.before;
      check_around(j.at("single").items().size());
      for (const Json& part : j.at("single").items()) {
        if (part.find("Sequence")) {
          to = &p_.after;
          continue;
        }
        const std::string& name = part.at("SpecialToken").at("id").as_string();
        for (const Json& id : j.at("special_tokens").at(name).at("ids").items()) {
          const std::int64_t v = id.as_int();
          check_system(v >= 0 && v < static_cast<std::int64_t>(p_.text.size()),
                       "{}: post_processor: a token id must be in [0, {}), got {}", what_,
                       p_.text.size(), v);
          to->push_back(static_cast<std::int32_t>(v));
          check_around(p_.before.size() + p_.after.size());
        }
      }
    } else {
      refuse(type == "ByteLevel", "post_processor", type);  // which moves offsets only
    }
  }

  const Json& file_;
  const std::string& what_;
  BpeParts p_;
  std::vector<NormalStep> p_text_;  // from a token to its text
  std::size_t growth_ = 1;          // of a text by the replacements
  bool byte_level_ = false, bytes_decode_ = false;
};

}  // namespace

Split split_of(std::string_view regex, const std::string& what) {
  const int split = find_split(regex);
  check_system(split >= 0, "{}: the expression {} is not known; known: {}", what,
               io::json_quote(shown(regex)), known_splits());
  return static_cast<Split>(split);
}

BpeParts read_tokenizer_json(const Json& file, const std::string& what) {
  return Reader(file, what).parts();
}

}  // namespace weft::tokenizer
