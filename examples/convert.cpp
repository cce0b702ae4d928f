// Converts a model between the folders of Hugging Face and of Weft, and to GGUF:
// convert --from Llama-3.2-1B --to runs/llama.
#include <cstdio>
#include <filesystem>

#include "weft/core/error.h"
#include "weft/distributed/gguf_file.h"
#include "weft/distributed/peft_folder.h"
#include "weft/examples/common/adapter.h"
#include "weft/examples/common/gpt_task.h"
#include "weft/examples/common/model_folder.h"
#include "weft/examples/common/model_gguf.h"
#include "weft/io/checkpoint.h"
#include "weft/io/file.h"
#include "weft/nn/fp8.h"
#include "weft/train/command_line.h"
#include "weft/train/config_file.h"
#include "weft/train/flags.h"
#include "weft/train/launch.h"

namespace {

using namespace weft;

struct Options {
  std::string from, to, adapter, family, gguf_type;
  std::int64_t file_mb = 5000;
};

// The files beside the weights that other programs read.
constexpr const char* kBeside[] = {"generation_config.json",
                                   "special_tokens_map.json",
                                   "tokenizer_config.json",
                                   "tokenizer.json",
                                   "tokenizer.model",
                                   "tekken.json",
                                   "added_tokens.json",
                                   "vocab.json",
                                   "merges.txt",
                                   "chat_template.jinja"};

using Merger = std::optional<nn::LoraMerger>;

void to_hugging_face(const Options& o, const examples::ModelFolder& m, const Merger& merger) {
  distributed::HfSaveOptions options{.family = o.family, .file_bytes = o.file_mb * 1'000'000};
  if (merger)
    options.change = [&](const std::string& parameter, std::int64_t first, const Tensor& values) {
      merger->add_to(parameter, first, values);
    };
  distributed::save_hf_folder(o.to, m.config, m.files, options);
  if (!m.text.is_bytes()) io::write_file(o.to + "/" + m.text.name, m.text.content);
  if (!distributed::is_hf_folder(o.from)) return;
  for (const char* name : kBeside)
    if (const std::string file = o.from + "/" + name; io::exists(file))
      io::write_file(o.to + "/" + name, io::read_file(file));
}

// A checkpoint of step 0 without an optimizer: what generate and --init read.
void to_weft(const Options& o, const examples::ModelFolder& m) {
  io::Json state = io::Json::object();
  state.set("tokenizer", m.text.name);
  state.set("model", examples::config_to_json(m.config));
  const std::string folder = io::begin_checkpoint(o.to, 0);
  try {
    std::vector<io::CheckpointFile> files;
    const auto save = [&](const char* kind, const StateDict& tensors) {
      const std::string name = io::shard_name(kind, 0);
      files.push_back({name, io::save_safetensors(folder + "/" + name, tensors)});
    };
    StateDict model = m.files.state_dict();
    std::erase_if(model, [](const auto& entry) { return nn::is_fp8_state(entry.first); });
    save("model", model);
    save("optim", {});
    if (!m.text.is_bytes())
      files.push_back({m.text.name, io::write_file(folder + "/" + m.text.name, m.text.content)});
    io::commit_checkpoint(o.to, 0, files, state.dump());
  } catch (...) {
    io::abandon_checkpoint(o.to, 0);
    throw;
  }
}

bool is_gguf(const Options& o) { return o.to.ends_with(".gguf"); }

void check_options(const Options& o) {
  check(!o.from.empty(), "--from: name the folder of a model");
  check(!o.to.empty(), "--to: name the folder or the .gguf file to write");
  check(o.gguf_type.empty() || is_gguf(o), "--gguf-type: needs --to with a .gguf file, got '{}'",
        o.to);
  check(o.adapter.empty() || !is_gguf(o),
        "--adapter: goes into a .gguf file by way of a Hugging Face folder; name one with --to");
  check(o.file_mb >= 1 && o.file_mb <= 1'000'000, "--file-mb: must be in [1, 1000000], got {}",
        o.file_mb);
  check(o.file_mb == Options().file_mb || !is_gguf(o),
        "--file-mb: needs --to with a folder, got '{}'", o.to);
  if (is_gguf(o)) return check(!io::exists(o.to), "--to: '{}' exists", o.to);
  check(!io::exists(o.to) || (io::is_directory(o.to) && io::list_directory(o.to).empty()),
        "--to: must be a new or an empty folder, got '{}'", o.to);
}

// The adapter of a run, as a folder of PEFT; false: the run has none.
bool writes_peft(const Options& o) {
  if (!o.adapter.empty() || is_gguf(o) || distributed::is_hf_folder(o.from)) return false;
  const std::optional<examples::AdapterRun> run = examples::find_adapter_run(o.from);
  if (!run) return false;
  distributed::save_peft_folder(o.to, nn::hf_family_of(run->config, o.family), run->config,
                                run->weights, run->base);
  std::printf("wrote %s: an adapter of %s\n", o.to.c_str(), run->base.c_str());
  return true;
}

void convert(const Options& o) {
  check_options(o);
  if (writes_peft(o)) return;
  const examples::ModelFolder m = examples::open_model_folder(o.from);
  const Merger merger = examples::open_adapter(o.adapter, m.config, m.files);
  const bool imports = distributed::is_hf_folder(o.from) && o.family.empty() && !merger;
  if (is_gguf(o)) {
    examples::write_model_gguf(o.to, m, distributed::is_hf_folder(o.from) ? o.from : "",
                               {o.family, o.gguf_type.empty() ? "f16" : o.gguf_type});
  } else {
    imports ? to_weft(o, m) : to_hugging_face(o, m, merger);
  }
  std::printf("wrote %s: %lld parameters\n", o.to.c_str(),
              static_cast<long long>(m.config.parameter_count()));
}

}  // namespace

int main(int argc, char** argv) {
  return train::guarded("convert", [&] {
    Options o;
    train::CommandLine line(
        "Converts a model: of a Hugging Face folder to a checkpoint of Weft, of a run to a Hugging "
        "Face folder, or of either to a GGUF file for llama.cpp; an adapter of a run to a folder "
        "of "
        "PEFT, or into its model.",
        "convert");
    line.examples({"convert --from Llama-3.2-1B --to runs/llama",
                   "convert --from runs/book --to book.gguf --gguf-type q8_0"});
    line.add("--from", o.from, "Hugging Face folder, --out folder of a run, or step folder");
    line.add("--adapter", o.adapter,
             "folder of an adapter, of PEFT or of a run with --lora-rank: adds it to the weights, "
             "and writes a Hugging Face folder");
    line.add("--to", o.to, "new folder to write, or a new file whose name ends in .gguf");
    line.add("--family", o.family,
             "write a Hugging Face folder of this model_type, also from another one; empty: the "
             "first that holds the model");
    const auto& types = distributed::kGgufTypeWords;
    const std::string what =
        "matrices of a GGUF file: " + train::alternatives(types) + "; empty: f16";
    line.add("--gguf-type", o.gguf_type, what.c_str());
    line.words("--gguf-type", train::names_of(types));
    line.add("--file-mb", o.file_mb, "a Hugging Face folder gets files of at most so many MB");
    std::string config;
    line.add("--config", config, "TOML file with the same names; a flag wins");
    if (!line.parse(train::expand_config(argc, argv))) return 0;
    convert(o);
    return 0;
  });
}
