#include "weft/examples/common/gpt_data.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <optional>
#include <sstream>
#include <utility>

#include "weft/core/error.h"
#include "weft/data/document_reader.h"
#include "weft/data/documents.h"
#include "weft/data/mixture.h"
#include "weft/data/packed_documents.h"
#include "weft/data/text.h"
#include "weft/data/token_windows.h"
#include "weft/distributed/launcher.h"
#include "weft/examples/common/open_chat.h"
#include "weft/tokenizer/utf8.h"

namespace weft::examples {
namespace {

using data::is_token_file;
using data::TokenStream;
using data::TokenWindows;

// The share at the end of "web.idx:0.7", and the path before it. A file may have such a name.
std::pair<std::string, std::optional<double>> split_share(const std::string& word) {
  const std::size_t colon = word.rfind(':');
  std::error_code ignored;
  if (colon == word.npos || std::filesystem::exists(word, ignored)) return {word, {}};
  double share = 0;
  const char* const end = word.data() + word.size();
  const auto read = std::from_chars(word.data() + colon + 1, end, share);
  if (read.ec != std::errc() || read.ptr != end) return {word, {}};
  check(std::isfinite(share) && share > 0, "--data: a share must be above 0, got '{}'", word);
  return {word.substr(0, colon), share};
}

// Whether these are token files. Errors name `flag`.
bool check_paths(const char* flag, const std::vector<std::string>& paths) {
  check(!paths.empty(), "{}: name at least one file", flag);
  for (const std::string& path : paths)
    check(distributed::launched_ranks() <= 1 || !std::filesystem::is_fifo(path),
          "{}: processes cannot share the pipe '{}'; give a file", flag, path);
  const auto shards = std::count_if(paths.begin(), paths.end(), is_token_file);
  check(shards == 0 || shards == static_cast<std::ptrdiff_t>(paths.size()),
        "{}: must be text files or .bin files, got {} of {} with tokens", flag, shards,
        paths.size());
  data::check_holds_text(flag, paths);
  return shards > 0;
}

// Text files are bytes for the tokenizer; .bin and .idx files hold token ids.
TokenStream read_tokens(const char* flag, const std::vector<std::string>& paths) {
  if (!check_paths(flag, paths)) return TokenStream::of_bytes(data::read_text(paths));
  std::vector<TokenStream> parts;
  for (const std::string& path : paths) parts.push_back(data::open_token_file(path));
  return TokenStream::joined(std::move(parts));
}

// Text files that --tokenizer encodes. The held-out part is the same text whatever the tokenizer,
// up to the character in which it would begin.
std::pair<TokenStream, TokenStream> encode_files(const DataOptions& o,
                                                 const std::vector<std::string>& files,
                                                 double held_out) {
  check_paths("--data", files);
  const std::string text = data::read_text(files);
  const std::string_view all = text;
  const auto held = data::held_out_size(std::ssize(all), held_out);
  std::size_t cut = all.size() - static_cast<std::size_t>(held);
  if (held > 0) cut -= tokenizer::incomplete_utf8(all.substr(0, cut));
  return {encode_text(*o.opened, all.substr(0, cut)), encode_text(*o.opened, all.substr(cut))};
}

// The tokens that end a document: the bytes of a text, or one token, by its id or its text; none
// where .idx files say it.
std::vector<std::int32_t> document_end(const DataOptions& o, bool is_text,
                                       const TokenStream& tokens) {
  if (is_text) {
    check(o.opened->is_bytes(),
          "--pack: with --tokenizer needs .bin files, where a token ends each document");
    std::vector<std::int32_t> bytes;
    for (const char c : o.pack) bytes.push_back(static_cast<unsigned char>(c));
    return bytes;
  }
  if (o.pack == "documents") {
    check(tokens.has_documents(), "--pack: documents needs files with an .idx, which lists them");
    return {};
  }
  // A number first: "2" is the token 2, not the one of the digit.
  std::int32_t token = -1;
  const char* const end = o.pack.data() + o.pack.size();
  const auto read = std::from_chars(o.pack.data(), end, token);
  if (read.ec == std::errc() && read.ptr == end && token >= 0) return {token};
  const auto named = o.opened->tokenizer->find(o.pack);
  check(named.has_value(),
        "--pack: with a .bin file must be the number of a token, or its text in --tokenizer, got "
        "'{}'",
        o.pack);
  return {*named};
}

// Training and held-out part: cut between documents where their ends are known.
std::pair<TokenStream, TokenStream> split(const TokenStream& all, double fraction,
                                          const DataOptions& o, bool is_text) {
  if (!o.pack.empty()) return data::split_documents(all, fraction, document_end(o, is_text, all));
  return all.has_documents() ? data::split_documents(all, fraction, {})
                             : data::split_tokens(all, fraction);
}

std::shared_ptr<const data::Dataset> dataset_of(const GptOptions& o, const TokenStream& tokens,
                                                bool is_text, TokenWindows::Tail tail) {
  if (o.data.pack.empty()) return std::make_shared<TokenWindows>(tokens, o.model.seq, tail);
  return std::make_shared<data::PackedDocuments>(tokens, o.model.seq,
                                                 document_end(o.data, is_text, tokens));
}

// Bytes of text of a target, for what assistants write.
double bytes_per_written(const tokenizer::Tokenizer& t, const Conversations& c) {
  double bytes = 0, tokens = 0;
  for (std::size_t i = 0; i < c.tokens.size(); ++i) {
    if (!c.written[i]) continue;
    ++tokens;
    if (!t.is_special(c.tokens[i])) bytes += static_cast<double>(t.bytes_of(c.tokens[i]).size());
  }
  return tokens > 0 ? bytes / tokens : 0;
}

// --chat: conversations, of which the last are held out.
GptData read_chats(const GptOptions& options) {
  const DataOptions& o = options.data;
  GptData out;
  out.sources = sources_of(o.files);
  check(out.sources.size() == 1, "--chat: takes one list of files without shares, got {} sources",
        out.sources.size());
  const bool has_folder = o.tokenizer != "bytes";
  const std::filesystem::path path(o.tokenizer);
  const std::string folder = !has_folder                           ? ""
                             : std::filesystem::is_directory(path) ? o.tokenizer
                                                                   : path.parent_path().string();
  const tokenizer::Tokenizer& t = *o.opened->tokenizer;
  const tokenizer::ChatWriter chat(t, open_chat("--chat", o.chat, folder, t));
  const Conversations all = read_conversations(out.sources[0].files, chat);
  const std::size_t least = o.val_files.empty() && o.val_fraction > 0 ? 2 : 1;
  check(all.ends.size() >= least, "--data: must have at least {} conversations, got {}", least,
        all.ends.size());
  auto [training, held_out] = all.split(o.val_files.empty() ? o.val_fraction : 0);
  if (!o.val_files.empty()) held_out = read_conversations(o.val_files, chat);
  held_out = held_out.first(o.eval_tokens);
  const auto dataset = [&](const char* flag, const Conversations& c) {
    check(std::find(c.written.begin(), c.written.end(), 1) != c.written.end(),
          "{}: an assistant must write in the conversations, got none of {} in which one does",
          flag, c.ends.size());
    return std::make_shared<data::PackedDocuments>(TokenStream::of(c.tokens), options.model.seq,
                                                   c.ends, c.written);
  };
  out.sources[0].training = TokenStream::of(training.tokens);
  out.sources[0].held_out = TokenStream::of(held_out.tokens);
  out.training = dataset("--data", training);
  if (!held_out.ends.empty())
    out.validation = dataset(o.val_files.empty() ? "--data, held out" : "--val-data", held_out);
  out.text = o.opened.get();
  out.bytes_per_token = bytes_per_written(t, held_out);
  return out;
}

}  // namespace

std::int64_t GptData::tokens() const {
  return std::accumulate(sources.begin(), sources.end(), std::int64_t{0},
                         [](std::int64_t sum, const Source& s) { return sum + s.training.size(); });
}

std::int64_t GptData::held_out_tokens() const {
  return std::accumulate(sources.begin(), sources.end(), std::int64_t{0},
                         [](std::int64_t sum, const Source& s) { return sum + s.held_out.size(); });
}

double GptData::share(const Source& source) const {
  double sum = 0;
  for (const Source& s : sources) sum += s.weight;
  return sources.size() == 1 ? 1 : source.weight / sum;
}

std::int32_t GptData::check_vocab(std::int64_t vocab) const {
  std::int32_t highest = -1;
  for (const Source& s : sources)
    highest = std::max(
        {highest, data::check_vocab(s.training, vocab), data::check_vocab(s.held_out, vocab)});
  return highest;
}

io::Json GptData::description() const {
  io::Json all;
  for (const Source& s : sources) {
    io::Json files;
    for (const std::string& path : s.files) files.push_back(path);
    all.push_back(io::Json::object()
                      .set("files", files)
                      .set("tokens", s.training.size())
                      .set("held_out_tokens", s.held_out.size())
                      .set("share", share(s)));
  }
  return all;
}

std::vector<std::string> split_list(const std::vector<std::string>& given) {
  std::vector<std::string> paths;
  for (const std::string& text : given) {
    std::error_code no_path;  // such as a list that is too long for one
    if (text.find(',') == std::string::npos || std::filesystem::exists(text, no_path)) {
      paths.push_back(text);
      continue;
    }
    std::string path;
    for (std::istringstream list(text); std::getline(list, path, ',');)
      if (!path.empty()) paths.push_back(path);
  }
  return paths;
}

std::vector<GptData::Source> sources_of(const std::vector<std::string>& words) {
  std::vector<GptData::Source> sources;
  GptData::Source next;
  for (const std::string& word : words) {
    const auto [path, share] = split_share(word);
    if (!path.empty()) next.files.push_back(path);
    if (!share) continue;
    check(!next.files.empty(), "--data: the share '{}' must have a file before it", word);
    next.weight = *share;
    sources.push_back(std::exchange(next, {}));
  }
  check(next.files.empty() || sources.empty(),
        "--data: with shares every file needs one, as in '{}:0.5'",
        next.files.empty() ? "" : next.files.back());
  if (!next.files.empty()) sources.push_back(std::move(next));
  return sources;
}

GptData read_data(const GptOptions& options) {
  const DataOptions& o = options.data;
  if (!o.chat.empty()) return read_chats(options);
  GptData out;
  out.sources = sources_of(o.files);
  check(!out.sources.empty(), "--data: name at least one file");
  const bool is_text = !is_token_file(out.sources[0].files[0]),
             is_encoded = is_text && !o.opened->is_bytes(), has_own = !o.val_files.empty();
  check(!has_own || is_token_file(o.val_files[0]) != is_text,
        "--val-data: must be {} as --data, got '{}'", is_text ? "text" : "a .bin file",
        has_own ? o.val_files[0] : "");
  const double fraction = has_own ? 0 : o.val_fraction;
  std::vector<TokenStream> held_out;
  for (GptData::Source& s : out.sources) {
    check(check_paths("--data", s.files) != is_text,
          "--data: must be text files or .bin files, got both");
    std::tie(s.training, s.held_out) =
        is_encoded ? encode_files(o, s.files, fraction)
                   : split(read_tokens("--data", s.files), fraction, o, is_text);
    const auto most =
        static_cast<std::int64_t>(std::llround(static_cast<double>(o.eval_tokens) * out.share(s)));
    // The first token is not a target.
    if (o.eval_tokens > 0 && s.held_out.size() > most) s.held_out = s.held_out.slice(0, most + 1);
    held_out.push_back(s.held_out);
  }
  TokenStream evaluated = TokenStream::joined(std::move(held_out));
  if (has_own) {
    evaluated =
        is_encoded ? encode_files(o, o.val_files, 0).first : read_tokens("--val-data", o.val_files);
    check(evaluated.size() >= 2, "--val-data: must have at least 2 tokens, got {}",
          evaluated.size());
    if (o.eval_tokens > 0 && evaluated.size() > o.eval_tokens)
      evaluated = evaluated.slice(0, o.eval_tokens + 1);
    out.sources.back().held_out = evaluated;
  }

  const auto rows = [&](const TokenStream& tokens, TokenWindows::Tail tail) {
    return dataset_of(options, tokens, is_text, tail);
  };
  if (out.sources.size() == 1) {
    out.training = rows(out.sources[0].training, TokenWindows::Tail::dropped);
  } else {
    std::vector<data::Mixture::Source> mixed;
    for (const GptData::Source& s : out.sources)
      mixed.push_back({rows(s.training, TokenWindows::Tail::dropped), s.weight});
    out.training = std::make_shared<data::Mixture>(
        std::move(mixed), static_cast<std::uint64_t>(options.machine.seed));
  }
  if (evaluated.size() > 1) out.validation = rows(evaluated, TokenWindows::Tail::padded);
  const bool is_known = is_text || !o.opened->is_bytes();
  out.text = is_known ? o.opened.get() : nullptr;
  out.bytes_per_token = is_text && !is_encoded ? 1 : o.bytes_per_token;
  if (out.bytes_per_token == 0 && is_known)
    out.bytes_per_token = bytes_per_target(*o.opened, evaluated);
  return out;
}

}  // namespace weft::examples
