// Turns texts into a token file: tokenize --data corpus/ --tokenizer tokenizer.json --out
// data/train.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/data/document_reader.h"
#include "weft/data/megatron.h"
#include "weft/examples/common/text_tokenizer.h"
#include "weft/io/crc32c.h"
#include "weft/io/file.h"
#include "weft/io/json.h"
#include "weft/train/command_line.h"
#include "weft/train/config_file.h"
#include "weft/train/interrupt.h"
#include "weft/train/launch.h"
#include "weft/train/options.h"
#include "weft/train/progress.h"
#include "weft/train/terminal.h"

namespace {

using namespace weft;
using data::DocumentReader;
using data::MegatronWriter;

struct Options {
  std::vector<std::string> data;
  std::string tokenizer, out, field = "text", split, end = "auto", part = "1/1";
  std::int64_t threads = 0, save_every = 256'000'000;
  bool resume = false;
};

struct Part {
  std::int64_t number = 1, of = 1;
};

Part part_of(const std::string& text) {
  Part p;
  const char *const begin = text.data(), *const end = begin + text.size();
  const auto first = std::from_chars(begin, end, p.number);
  const auto second = first.ptr == end || *first.ptr != '/'
                          ? std::from_chars_result{end, std::errc::invalid_argument}
                          : std::from_chars(first.ptr + 1, end, p.of);
  check(first.ec == std::errc() && second.ec == std::errc() && second.ptr == end && 1 <= p.number &&
            p.number <= p.of,
        "--part: must be like 2/8, got '{}'", text);
  return p;
}

// The token that ends a document; none with an empty --end.
std::optional<std::int32_t> end_token(const tokenizer::Tokenizer& t, const std::string& end) {
  if (end.empty()) return {};
  const auto found = t.find(end == "auto" ? "<|endoftext|>" : end);
  check(found || end == "auto", "--end: the tokenizer has no token '{}'", end);
  return found;
}

/// The conversion: reads pieces of documents, encodes many at once, writes them in order, and saves
/// how far it is.
class Conversion {
 public:
  explicit Conversion(const Options& o)
      : options_(o),
        text_(examples::open_text_tokenizer(o.tokenizer)),
        end_(end_token(*text_.tokenizer, o.end)),
        part_(part_of(o.part)),
        files_(files_of(o)),
        reader_(files_, {.field = o.field, .split = o.split}) {
    check(!o.resume || io::exists(progress_file()) || is_done(),
          "--resume: there is no '{}' to go on from", progress_file());
  }

  int run() {
    if (options_.resume && is_done() && io::exists(options_.out + ".bin")) {
      io::remove_all(progress_file());
      std::printf("already done: %s.idx\n", options_.out.c_str());
      return 0;
    }
    open_writer();
    const train::InterruptScope interrupts;
    while (read_batch()) {
      encode();
      write();
      show(false);
      const bool stops = train::interrupted();
      if (stops || text_bytes_ - saved_bytes_ >= options_.save_every) save();
      if (stops) {
        std::printf("\ninterrupted: --resume goes on\n");
        return 130;
      }
    }
    show(true);
    finish();
    return 0;
  }

 private:
  std::string progress_file() const { return options_.out + ".progress.json"; }
  bool is_done() const { return io::exists(options_.out + ".idx"); }
  int width() const { return MegatronWriter::width_for(text_.tokenizer->vocab()); }

  // --out may lie in a folder of --data.
  static std::vector<std::string> files_of(const Options& o) {
    const auto plain = [](const std::string& path) {
      std::error_code no_path;
      return std::filesystem::weakly_canonical(path, no_path);
    };
    std::vector<std::string> files = data::files_below(o.data);
    for (const char* end :
         {".progress.json", ".bin", ".idx", ".bin.part", ".lengths.part", ".documents.part"})
      std::erase_if(files,
                    [&](const std::string& file) { return plain(file) == plain(o.out + end); });
    return files;
  }

  // What a resumed conversion must have in common with the one before.
  io::Json settings() const {
    io::Json files;
    for (const std::string& path : files_)
      files.push_back(io::Json::object().set("path", path).set("bytes", io::file_size(path)));
    return io::Json::object()
        .set("files", files)
        .set("tokenizer", text_.name)
        .set("tokenizer_crc32c",
             std::int64_t{io::crc32c(text_.content.data(), text_.content.size())})
        .set("field", options_.field)
        .set("split", options_.split)
        .set("end", end_ ? std::int64_t{*end_} : -1)
        .set("part", options_.part);
  }

  void open_writer() {
    for (const char* suffix : {".idx", ".bin"})
      check(!io::exists(options_.out + suffix) || options_.resume,
            "--out: '{}{}' exists already; remove it, or name other files", options_.out, suffix);
    if (!options_.resume) {
      check(!io::exists(progress_file()),
            "--out: '{}' says that a conversion has begun; add --resume, or remove it",
            progress_file());
      if (const auto folder = std::filesystem::path(options_.out).parent_path(); !folder.empty())
        io::make_directories(folder.string());
      writer_.emplace(options_.out, width());
      save();
      return;
    }
    const io::Json saved =
        io::Json::parse(io::read_file(progress_file()), progress_file(), {.values = 50'000'000});
    const io::Json own = settings();
    for (const io::JsonMember& m : own.members())
      check(saved.at(m.key).dump() == m.value.dump(),
            "--resume: the conversion began with another '{}'; remove '{}' to begin anew", m.key,
            progress_file());
    const MegatronWriter::Position at{saved.at("tokens").as_int(), saved.at("sequences").as_int(),
                                      saved.at("documents").as_int()};
    for (std::int64_t skip = saved.at("pieces").as_int(); skip > 0; --skip) {
      const auto piece = reader_.next();
      check(piece.has_value(), "--resume: the files of --data must not have changed");
      count(*piece);
    }
    saved_bytes_ = text_bytes_;
    writer_.emplace(options_.out, width(), at);
    std::printf("resume           after %s documents\n",
                train::with_separators(documents_read_).c_str());
  }

  // Whether the piece belongs to --part.
  bool count(const DocumentReader::Piece& piece) {
    const bool is_ours = documents_read_ % part_.of == part_.number - 1;
    ++pieces_;
    text_bytes_ += std::ssize(piece.text);
    if (is_ours) encoded_bytes_ += std::ssize(piece.text);
    documents_read_ += piece.ends_document ? 1 : 0;
    return is_ours;
  }

  bool read_batch() {
    constexpr std::int64_t kBytesPerThread = 1 << 20;
    batch_.clear();
    std::int64_t bytes = 0;
    const std::int64_t most = std::min(kBytesPerThread * num_threads(), options_.save_every);
    while (bytes < most) {
      auto piece = reader_.next();
      if (!piece) break;
      bytes += std::ssize(piece->text);
      if (count(*piece)) batch_.push_back({std::move(*piece), {}});
    }
    return bytes > 0;
  }

  void encode() {
    constexpr std::int64_t kWork = 1 << 20;  // enough for a thread
    parallel_for(std::ssize(batch_), kWork, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        Item& item = batch_[static_cast<std::size_t>(i)];
        item.tokens = text_.tokenizer->encode(item.piece.text);
        if (item.piece.ends_document && end_) item.tokens.push_back(*end_);
      }
    });
  }

  void write() {
    for (const Item& item : batch_) writer_->add(item.tokens, item.piece.ends_document);
  }

  void save() {
    const MegatronWriter::Position& at = writer_->sync();
    io::Json state = settings();
    state.set("pieces", pieces_)
        .set("tokens", at.tokens)
        .set("sequences", at.sequences)
        .set("documents", at.documents);
    io::write_file(progress_file(), state.dump());
    saved_bytes_ = text_bytes_;
  }

  // A line every ten seconds, or one that is overwritten twice a second on a terminal.
  void show(bool last) {
    using Clock = std::chrono::steady_clock;
    const bool terminal = isatty(STDOUT_FILENO) != 0;
    const std::chrono::duration<double> since = Clock::now() - shown_, all = Clock::now() - begin_;
    if (!last && since.count() < (terminal ? 0.5 : 10)) return;
    shown_ = Clock::now();
    const double done = static_cast<double>(reader_.file_bytes_read()),
                 whole = static_cast<double>(reader_.file_bytes());
    if (!terminal && last) return;
    std::printf("%s%s of %s, %s documents, %s tokens, %s/s, %s left%s", terminal ? "\r\033[K" : "",
                train::byte_count(done).c_str(), train::byte_count(whole).c_str(),
                train::with_separators(documents_read_).c_str(),
                train::with_separators(writer_->position().tokens).c_str(),
                train::byte_count(static_cast<double>(encoded_bytes_) / all.count()).c_str(),
                train::format_duration(done > 0 ? all.count() * (whole - done) / done : 0),
                terminal && !last ? "" : "\n");
    std::fflush(stdout);
  }

  void finish() {
    const MegatronWriter::Position at = writer_->position();
    check(at.tokens > 0, "--data: the files must hold text, got none");
    writer_->commit();
    io::remove_all(progress_file());
    const auto fact = [](const char* name, const std::string& text) {
      train::print_fact(name, text);
    };
    fact("wrote", message("{}.bin and {}.idx", options_.out, options_.out));
    fact("tokens", message("{} of {} bits, in {} documents", train::with_separators(at.tokens),
                           8 * width(), train::with_separators(at.documents)));
    fact("bytes per token", train::formatted("%.4f", static_cast<double>(encoded_bytes_) /
                                                         static_cast<double>(at.tokens)));
    fact("document end", end_ ? message("token {}", *end_) : "no token");
  }

  struct Item {
    DocumentReader::Piece piece;
    std::vector<std::int32_t> tokens;
  };

  Options options_;
  examples::TextTokenizer text_;
  std::optional<std::int32_t> end_;
  Part part_;
  std::vector<std::string> files_;
  DocumentReader reader_;
  std::optional<MegatronWriter> writer_;
  std::vector<Item> batch_;
  std::int64_t pieces_ = 0, documents_read_ = 0, text_bytes_ = 0, encoded_bytes_ = 0,
               saved_bytes_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now(), shown_ = begin_;
};

int tokenize(Options o) {
  check(!o.data.empty(), "--data: name at least one file or folder");
  check(!o.tokenizer.empty(), "--tokenizer: name a tokenizer's file or folder, or bytes");
  check(!o.out.empty(), "--out: name the files to write, without .bin and .idx");
  for (const char* suffix : {".bin", ".idx"})
    if (o.out.ends_with(suffix)) o.out.resize(o.out.size() - 4);
  check(o.threads >= 0 && o.threads <= train::kMostThreads, "--threads: must be in [0, {}], got {}",
        train::kMostThreads, o.threads);
  check(o.save_every >= 1, "--save-every: must be at least 1, got {}", o.save_every);
  if (o.threads > 0) set_num_threads(static_cast<int>(o.threads));
  return Conversion(o).run();
}

}  // namespace

int main(int argc, char** argv) {
  return train::guarded("tokenize", [&] {
    Options o;
    train::CommandLine line(
        "Turns texts into a token file for train_gpt --data: OUT.bin and OUT.idx.", "tokenize");
    line.examples({"tokenize --data corpus/ --tokenizer tokenizer.json --out data/train",
                   "tokenize --data web.jsonl.zst --tokenizer gpt2.tiktoken --out data/web",
                   "tokenize --data book.txt --split '***' --tokenizer bytes --out data/book"});
    line.add("--data", o.data,
             "text files, .jsonl files, or folders of them; also compressed as .gz or .zst");
    line.add("--tokenizer", o.tokenizer,
             "tokenizer.json, .tiktoken or .model file, the folder of one, or bytes");
    line.add("--out", o.out, "what the files to write begin with");
    line.add("--field", o.field, "member of each object of a .jsonl file that holds a document");
    line.add(
        "--split", o.split,
        "text between the documents of a text file, which gets no tokens; empty: a file is one "
        "document");
    line.add("--end", o.end,
             "token that ends each document; empty: none; auto: <|endoftext|> if there is one");
    line.add("--threads", o.threads, "threads that encode; 0: all processors");
    line.add("--part", o.part,
             "one of several processes: 2/8 converts every eighth document, from the second");
    line.add("--save-every", o.save_every, "bytes of text between saves of the progress");
    line.add("--resume", o.resume, "go on after the last save of an interrupted conversion");
    if (!line.parse(train::Arguments({argv + 1, argv + argc}))) return 0;
    return tokenize(o);
  });
}
