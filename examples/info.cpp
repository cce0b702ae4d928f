// Says what is in a file or folder: info runs/book, info data/train.idx, info tokenizer.json.
#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "weft/core/error.h"
#include "weft/data/token_file.h"
#include "weft/examples/common/gpt_task.h"
#include "weft/io/checkpoint.h"
#include "weft/io/file.h"
#include "weft/io/gguf.h"
#include "weft/io/json.h"
#include "weft/io/safetensors.h"
#include "weft/tokenizer/tokenizer.h"
#include "weft/train/command_line.h"
#include "weft/train/launch.h"
#include "weft/train/terminal.h"

namespace {

using namespace weft;
using train::byte_count;
using train::print_fact;

std::string grouped(std::int64_t n) { return train::with_separators(n); }

void print_token_file(const std::string& path) {
  const data::TokenStream tokens = data::open_token_file(path);
  print_fact("tokens", message("{} of {} bits", grouped(tokens.size()), 8 * tokens.width()));
  print_fact("highest token", grouped(tokens.max_token()));
  if (!tokens.has_documents()) {
    print_fact("documents", "unknown: there is no .idx file");
    return;
  }
  std::int64_t documents = 0, begin = 0, longest = 0;
  tokens.each_document_end([&](std::int64_t end) {
    ++documents;
    longest = std::max(longest, end - begin);
    begin = end;
    return true;
  });
  print_fact("documents", message("{}, of {} tokens on average, at most {}", grouped(documents),
                                  train::formatted("%.1f", static_cast<double>(tokens.size()) /
                                                               static_cast<double>(documents)),
                                  grouped(longest)));
}

void print_tensors(const std::vector<std::string>& paths) {
  struct Sum {
    std::int64_t tensors = 0, elements = 0, bytes = 0;
  };
  std::map<std::string, Sum> by_dtype;
  for (const std::string& path : paths) {
    const auto file = io::SafetensorsFile::open(path);
    for (const std::string& name : file.names()) {
      const DType dtype = file.dtype(name);
      Sum& sum = by_dtype[message("{}", dtype)];
      ++sum.tensors;
      sum.elements += file.shape(name).numel();
      sum.bytes += file.shape(name).numel() * static_cast<std::int64_t>(size_of(dtype));
    }
  }
  for (const auto& [dtype, sum] : by_dtype)
    print_fact("tensors",
               message("{} of {}: {} values, {}", grouped(sum.tensors), dtype,
                       grouped(sum.elements), byte_count(static_cast<double>(sum.bytes))));
}

// "epoch 1, row 12": where the next batch begins, and what a mixture has given of each source.
void print_position(const io::Json& loader) {
  const auto number = [&](const char* key) {
    const io::Json* const found = loader.find(key);
    return found && found->is_int() ? found->as_int() : 0;
  };
  print_fact("position",
             message("epoch {}, row {}", grouped(number("epoch")), grouped(number("index"))));
  for (std::int64_t i = 1; i <= number("sources"); ++i)
    print_fact("", message("{} rows of source {}",
                           grouped(number(message("source_{}_rows", i).c_str())), i));
}

void print_checkpoint(const io::Checkpoint& checkpoint) {
  const io::Json state = io::Json::parse(checkpoint.state(), checkpoint.folder + "/state.json");
  std::int64_t bytes = 0;
  for (const std::string& name : checkpoint.files)
    bytes += io::file_size(checkpoint.folder + "/" + name);
  print_fact("checkpoint", checkpoint.folder);
  print_fact("step", grouped(state.at("step").as_int()));
  print_fact("files",
             message("{}, {}, all with the right checksums", grouped(std::ssize(checkpoint.files)),
                     byte_count(static_cast<double>(bytes))));
  if (const io::Json* const model = state.find("model")) {
    const nn::GptConfig config = examples::config_from_json(*model);
    print_fact("parameters", grouped(config.parameter_count()));
    print_fact("model", model->dump());
  }
  if (const io::Json* const lora = state.find("lora")) {
    print_fact("adapter", lora->dump());
    print_fact("of the model", state.at("base").as_string());
  }
  print_tensors(checkpoint.shards("model"));
  if (const io::Json* const text = state.find("tokenizer"))
    print_fact("tokenizer", text->as_string());
  if (const io::Json* const data = state.find("data"); data && data->is_array())
    for (const io::Json& source : data->items()) print_fact("data", source.dump());
  if (const io::Json* const loader = state.find("loader"); loader && loader->is_object())
    print_position(*loader);
}

void print_tokenizer(const std::string& path) {
  const std::string file = tokenizer::file_of(path);
  tokenizer::check_size(file);
  const auto t = tokenizer::open(file);
  std::int64_t special = 0, missing = 0;
  for (std::int64_t id = 0; id < t->vocab(); ++id) {
    missing += !t->has(id);
    special += t->has(id) && t->is_special(static_cast<std::int32_t>(id));
  }
  print_fact("tokenizer", file);
  print_fact("vocabulary", message("{} ids, {} of them special, {} without a token",
                                   grouped(t->vocab()), grouped(special), grouped(missing)));
}

bool print_run(const std::string& folder) {
  if (io::exists(folder + "/state.json") && io::exists(folder + "/manifest.json")) {
    print_checkpoint(io::open_checkpoint(folder));
    return true;
  }
  const std::optional<io::Checkpoint> found = io::find_checkpoint(folder);
  if (found) print_checkpoint(*found);
  return found.has_value();
}

// A text, at most so many of its bytes.
std::string quoted(const std::string& text) {
  constexpr std::size_t kMost = 100;
  if (text.size() <= kMost) return io::json_quote(text);
  return message("{}... ({} bytes)", io::json_quote(text.substr(0, kMost)),
                 grouped(std::ssize(text)));
}

struct ShowValue {
  std::string operator()(bool v) const { return v ? "true" : "false"; }
  std::string operator()(const std::string& v) const { return quoted(v); }
  template <class T>
  std::string operator()(const T& v) const {
    if constexpr (std::is_arithmetic_v<T>)
      return message("{}", v);
    else
      return "";  // arrays stay in the file
  }
};

bool is_gguf(const std::string& path) {
  const io::InputFile file(path);
  char magic[4] = {};
  if (file.size() >= 4) file.read(0, magic, 4);
  return path.ends_with(".gguf") || std::string_view(magic, 4) == "GGUF";
}

void print_gguf(const std::string& path) {
  const io::GgufFile file = io::GgufFile::open(path);
  print_fact("gguf", message("version {}", std::int64_t{file.version()}));
  for (const io::GgufFile::Entry& e : file.entries())
    print_fact("", quoted(e.key) + ": " +
                       (e.count >= 0 ? message("{}, {} values", e.type, grouped(e.count))
                                     : std::visit(ShowValue{}, e.value)));
  struct Sum {
    std::int64_t tensors = 0, bytes = 0;
    double elements = 0;
  };
  std::map<std::string, Sum> by_type;
  for (const io::GgufFile::Info& t : file.tensors()) {
    Sum& sum = by_type[io::gguf_type_name(t.type)];
    ++sum.tensors;
    sum.elements += static_cast<double>(t.shape.numel());
    sum.bytes += t.bytes;
  }
  for (const auto& [type, sum] : by_type)
    print_fact("tensors", message("{} of {}: {} values, {}", grouped(sum.tensors), type,
                                  grouped(static_cast<std::int64_t>(sum.elements)),
                                  byte_count(static_cast<double>(sum.bytes))));
}

void print_info(const std::string& path) {
  const io::PathKind kind = io::path_kind(path);
  check(kind == io::PathKind::file || kind == io::PathKind::folder,
        "'{}' must be a file or a folder", path);
  print_fact("path", path);
  if (kind == io::PathKind::file)
    print_fact("size", byte_count(static_cast<double>(io::file_size(path))));
  if (kind == io::PathKind::folder && print_run(path)) return;
  if (data::is_token_file(path)) return print_token_file(path);
  if (path.ends_with(".safetensors")) return print_tensors({path});
  if (kind == io::PathKind::file && is_gguf(path)) return print_gguf(path);
  try {
    print_tokenizer(path);
  } catch (const Error& e) {
    throw Error(
        message("'{}' is no run, checkpoint, token file, .safetensors, GGUF or tokenizer: {}", path,
                std::string(e.what())));
  }
}

}  // namespace

int main(int argc, char** argv) {
  return train::guarded("info", [&] {
    std::vector<std::string> words(argv + 1, argv + argc), paths;
    // Paths need no flag.
    if (!words.empty() && !words[0].starts_with("-")) words.insert(words.begin(), "--path");
    train::CommandLine line(
        "Says what is in runs, checkpoints, token files, .safetensors and GGUF files, and "
        "tokenizers.",
        "info");
    line.examples({"info runs/book", "info data/train.idx tokenizer.json"});
    line.add("--path", paths, "files and folders");
    if (!line.parse(train::Arguments(words))) return 0;
    check(!paths.empty(), "name a file or a folder");
    for (const std::string& path : paths) print_info(path);
    return 0;
  });
}
