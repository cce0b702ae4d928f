#pragma once
#include <memory>
#include <string>
#include <vector>

#include "weft/data/dataset.h"
#include "weft/data/token_file.h"
#include "weft/examples/common/gpt_options.h"
#include "weft/io/json.h"

namespace weft::examples {

/// The data of a run: what --data, --val-data and their like name.
struct GptData {
  /// Files that are read one after the other.
  struct Source {
    std::vector<std::string> files;
    double weight =
        0;  ///< its share of a mixture, before all are divided by their sum; 0: no mixture
    data::TokenStream training = {}, held_out = {};
  };
  std::vector<Source> sources;
  std::shared_ptr<const data::Dataset> training;
  std::shared_ptr<const data::Dataset> validation;  ///< null without held-out tokens
  const TextTokenizer* text = nullptr;              ///< what the tokens mean; null: unknown
  double bytes_per_token = 0;                       ///< of the held-out part; 0: unknown

  std::int64_t tokens() const;
  std::int64_t held_out_tokens() const;
  double share(const Source& source) const;
  /// The highest id. Throws Error if the data contain an id outside this vocabulary.
  std::int32_t check_vocab(std::int64_t vocab) const;
  /// What a checkpoint says of them: files, tokens and share of each source.
  io::Json description() const;
};

/// The paths of --data or --val-data: a comma separates them, unless a file has that name.
std::vector<std::string> split_list(const std::vector<std::string>& given);
/// The sources that the words of --data name. A path may end in a share, "web.idx:0.7", which then
/// belongs to all files since the last share; so does a share alone, ":0.7".
/// Throws Error on a share that is no number above 0, or that has no file, and on files without one
/// behind others with one.
std::vector<GptData::Source> sources_of(const std::vector<std::string>& words);

/// Opens token files and reads text files. Options are checked, and their tokenizer is open.
GptData read_data(const GptOptions& options);

}  // namespace weft::examples
