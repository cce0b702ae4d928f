#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "weft/examples/common/text_tokenizer.h"
#include "weft/nn/gpt_config.h"
#include "weft/nn/lora.h"
#include "weft/train/command_line.h"
#include "weft/train/options.h"

namespace weft::examples {

struct DataOptions {
  std::vector<std::string> files, val_files = {};
  std::string tokenizer = "bytes", pack, chat;
  double val_fraction = 0.1;
  std::int64_t eval_tokens = 131'072;
  double bytes_per_token = 0;
  std::shared_ptr<const TextTokenizer> opened = {};  ///< by train_gpt(); null: that of bytes

  template <class V>
  void fields(V& v) {
    v.group("Data");
    v("data", files,
      "text files, or .bin or .idx files of tokens, one after the other or in shares "
      "(web.idx:0.7,books.idx:0.3)",
      any().shown_first());
    v("val-data", val_files, "files of held-out data; without them: --val-fraction",
      any().shown_first());
    v("tokenizer", tokenizer,
      "bytes, or a tokenizer.json, .tiktoken or .model file, or the folder of one: encodes text "
      "files, and names the tokens of token files");
    v("pack", pack,
      "documents end with this text, or in a .bin file with this token, or with the word documents "
      "as their .idx says, and are packed into rows, so that none sees another; empty: all data "
      "are "
      "one stream");
    v("chat", chat,
      "the data are .jsonl files of conversations, and what assistants write is learnt: chatml, "
      "llama3, mistral, llama2, deepseek, or auto as the tokenizer's folder says; empty: other "
      "data");
    v("val-fraction", val_fraction,
      "share of the data held out, taken from its end; whole documents where they are known",
      fraction().shown_first());
    v("eval-tokens", eval_tokens,
      "held-out tokens of an evaluation, the first ones; 0: all of them",
      between(0, 1e15).shown_first());
    v("bytes-per-token", bytes_per_token,
      "mean bytes of text per token of a .bin file, which gives the bits per byte; 0: what the "
      "--tokenizer says",
      at_least(0));
  }
};

/// How the load of experts is balanced: a loss over the batch, a sequence or a step; a bias on the
/// selection; not at all.
enum class Aux : std::uint8_t { aux, seq, global, bias, none };
inline constexpr Word<Aux> kAuxWords[] = {{"aux", Aux::aux},
                                          {"seq", Aux::seq},
                                          {"global", Aux::global},
                                          {"bias", Aux::bias},
                                          {"none", Aux::none}};

struct BalanceOptions {
  Aux aux = Aux::aux;
  double aux_coeff = 0.01, seq_coeff = 0, global_coeff = 0, bias_rate = 1e-3;

  template <class V>
  void fields(V& v) {
    v.group("Experts");
    v("aux", aux, kAuxWords,
      "what evens out the load: a loss over the batch, a sequence or a step, or --expert-bias, "
      "which needs --router sigmoid");
    v("aux-coeff", aux_coeff, "weight of that loss", at_least(0));
    v("seq-aux-coeff", seq_coeff, "weight of a loss over each sequence, beside --aux", at_least(0));
    v("global-aux-coeff", global_coeff, "weight of a loss over the step, beside --aux",
      at_least(0));
    v("bias-rate", bias_rate, "step of that bias", at_least(0));
  }
};

/// The settings of a run that trains a GPT on text. A flag overrides a --config file, the file a
/// preset, a preset the default.
struct GptOptions : train::Options {
  DataOptions data;
  nn::GptConfig model = {.vocab = 0};  ///< vocab is 0 until the data is known
  nn::LoraOptions lora;
  std::string adapter = {};  ///< the folder of one
  BalanceOptions balance;
  bool dry_run = false;  ///< only a command-line flag
  /// By train_gpt(): the fingerprint() of the weights that an adapter is trained on.
  std::int64_t base_crc32c = 0;

  template <class V>
  void fields(V& v) {
    data.fields(v);
    model.fields(v);
    lora.fields(v);
    v("adapter", adapter,
      "folder of an adapter to go on from, of PEFT or of a run with --lora-rank; with --init "
      "it sets the flags of LoRA",
      any().needs(lora.rank > 0, "lora-rank").shown_first());
    balance.fields(v);
    train::Options::fields(v);
  }
  /// Throws Error for the first violated rule between settings.
  void check() const;

  void check_lora() const;

  /// True if training includes a balance loss.
  bool counts_balance() const;
  /// The model configuration with --aux and the widths of experts applied.
  nn::GptConfig gpt() const;
};

/// The options with which train_moe begins.
GptOptions moe_defaults();

/// What a program with the trainers' flags has of its own.
struct ProgramLine {
  const char* what = "Trains a GPT on text. All times are seconds, all sizes bytes.";
  std::vector<std::string> examples = {};  ///< of its command line; empty: those of a trainer
  std::function<void(train::CommandLine&)> more_flags = {};
  /// Changes the defaults and the command line before it is parsed. The words include those of
  /// --config.
  std::function<void(GptOptions&, std::vector<std::string>&)> adapt = {};
  /// It needs no weights: of a Hugging Face folder --init reads config.json only.
  bool plans = false;
};

/// Reads flags, --config and --preset into `options`. Returns false if --help or --print-config has
/// printed and the program should end.
/// Throws Error (Fault::user) as train::parse_options().
bool parse(GptOptions& options, int argc, char** argv, const ProgramLine& program = {});

}  // namespace weft::examples
