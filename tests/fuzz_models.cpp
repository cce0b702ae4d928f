// Opens damaged copies of config.json in Hugging Face folders, of GGUF files, or of both files of
// adapters, and does with what is still valid what programs do: only Error may be thrown. usage:
// fuzz_models config|gguf|adapter FOLDER RUNS [SEED], where FOLDER holds folders of models, or,
// with "adapter", hf/ with these and peft/ with adapters. With clang and -DWEFT_LIBFUZZER
// -fsanitize=fuzzer it is a target of libFuzzer for GGUF files.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/distributed/gguf_file.h"
#include "weft/distributed/hf_folder.h"
#include "weft/distributed/peft_folder.h"
#include "weft/io/file.h"
#include "weft/io/gguf.h"
#include "weft/nn/gguf.h"
#include "weft/nn/gpt.h"
#include "weft/tests/mutations.h"
#include "weft/tests/temp_folder.h"

namespace {

using namespace weft;
using test::write_anew;

bool try_to(const std::function<void()>& f) {
  try {
    f();
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Whether the folder was opened. Its configuration must then write and read back.
bool try_folder(const std::string& path) {
  return try_to([&] {
    const distributed::HfFolder folder = distributed::open_hf_folder(path);
    try_to([&] { nn::gguf_model(folder.config); });
    const io::Json json = nn::write_hf_config(*folder.family, folder.config, "float32");
    nn::read_hf_config(*folder.family, json);
  });
}

bool try_gguf(const std::string& path) {
  return try_to([&] {
    const io::GgufFile file = io::GgufFile::open(path);
    for (const io::GgufFile::Entry& e : file.entries())
      if (e.type == "string array") try_to([&] { file.strings(e); });
    const std::int64_t size = io::file_size(path);
    for (const io::GgufFile::Info& t : file.tensors())
      if (static_cast<std::int64_t>(file.data(t).size()) > size) std::abort();
  });
}

// Its products with the weights must then be possible.
bool try_adapter(const std::string& path, const nn::GptConfig& config) {
  return try_to([&] {
    const nn::LoraWeights weights =
        distributed::read_peft_folder(path, nn::hf_family_of(config), config);
    if (!std::isfinite(static_cast<float>(weights.options.scale()))) std::abort();
    const nn::DeviceScope on_meta(kMeta);
    const nn::LoraMerger merger(nn::Gpt(config), weights);
  });
}

}  // namespace

#ifdef WEFT_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const test::TempFolder folder;
  write_anew(folder / "x.gguf", std::string(reinterpret_cast<const char*>(data), size));
  try_gguf(folder / "x.gguf");
  return 0;
}
#else
namespace {

struct Seed {
  std::string path;  ///< the file that is damaged
  std::string content;
  std::function<bool()> attempt;
};

std::vector<Seed> config_seeds(const std::string& models, const test::TempFolder& folder) {
  std::vector<Seed> seeds;
  for (const std::string& name : io::list_directory(models)) {
    const std::string here = folder / name, there = models + "/" + name;
    io::make_directories(here);
    for (const char* const file : {"/config.json", "/model.safetensors"})
      write_anew(here + file, io::read_file(there + file));
    seeds.push_back({here + "/config.json", io::read_file(there + "/config.json"),
                     [here] { return try_folder(here); }});
  }
  return seeds;
}

// A header without the data behind it would be refused at once: the file is whole, and small.
std::vector<Seed> gguf_seeds(const test::TempFolder& folder) {
  const std::string path = folder / "x.gguf";
  const auto tensor = [](const char* name, const Shape& shape, io::GgufType type) {
    return io::GgufTensor{name, shape, type, {[shape] { return Tensor::ones(shape); }}};
  };
  io::write_gguf(path,
                 {{"general.architecture", std::string("llama")},
                  {"general.alignment", std::uint32_t{32}},
                  {"llama.context_length", std::uint32_t{77}},
                  {"llama.rope.freq_base", 1e4F},
                  {"tokenizer.ggml.add_bos_token", true},
                  {"tokenizer.ggml.tokens", std::vector<std::string>{"a", "bc", "", "defg"}},
                  {"tokenizer.ggml.token_type", std::vector<std::int32_t>{1, 2, 3, 4}}},
                 {tensor("token_embd.weight", {3, 32}, io::GgufType::q8_0),
                  tensor("blk.0.ffn_up_exps.weight", {2, 3, 4}, io::GgufType::bf16),
                  tensor("output_norm.weight", {5}, io::GgufType::f32)});
  return {{path, io::read_file(path), [path] { return try_gguf(path); }}};
}

// Each file of each adapter in a copy of its own, as the other must be whole.
std::vector<Seed> adapter_seeds(const std::string& fixtures, const test::TempFolder& folder) {
  const std::string adapters = fixtures + "/peft";
  constexpr const char* kFiles[] = {"/adapter_config.json", "/adapter_model.safetensors"};
  std::vector<Seed> seeds;
  for (const std::string& name : io::list_directory(adapters))
    for (const char* const damaged : kFiles) {
      const std::string there = adapters + "/" + name, here = folder / std::to_string(seeds.size());
      io::make_directories(here);
      for (const char* const file : kFiles) write_anew(here + file, io::read_file(there + file));
      const io::Json json = io::Json::parse(io::read_file(there + kFiles[0]), name);
      const std::string base = json.at("base_model_name_or_path").as_string(),
                        model = fixtures + "/hf" + base.substr(base.rfind('/'));
      seeds.push_back({here + damaged, io::read_file(there + damaged),
                       [here, config = distributed::hf_folder_config(model)] {
                         return try_adapter(here, config);
                       }});
    }
  return seeds;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string kind = argc > 1 ? argv[1] : "";
  if (argc < 4 || (kind != "config" && kind != "gguf" && kind != "adapter")) {
    std::fputs("usage: fuzz_models config|gguf|adapter FOLDER RUNS [SEED]\n", stderr);
    return 2;
  }
  const test::TempFolder folder;
  const std::vector<Seed> seeds = kind == "gguf"      ? gguf_seeds(folder)
                                  : kind == "adapter" ? adapter_seeds(argv[2], folder)
                                                      : config_seeds(argv[2], folder);
  for (const Seed& s : seeds)
    if (!s.attempt()) return 1;
  test::Mutations mutations(argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 1);
  const long runs = std::strtol(argv[3], nullptr, 10);
  long opened = 0;
  for (long i = 0; i < runs; ++i) {
    const Seed& s = seeds[static_cast<std::size_t>(i) % seeds.size()];
    write_anew(s.path, mutations.of(s.content));
    opened += s.attempt();
  }
  std::printf("%ld damaged copies, %ld of them still opened\n", runs, opened);
  return 0;
}
#endif
