#include "weft/cuda/gemm_choices.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>

#include "weft/core/error.h"
#include "weft/core/kernels/cuda_runtime.h"

namespace weft::cuda {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMeasure = "measure:", kFormat = "weft gemm plans 1";
constexpr std::string_view kEnd = " : ", kAlgorithm = "algorithm ", kParts = "parts";
constexpr const char* kAgain = "measure again with WEFT_GEMM_PLANS=measure:FILE";

std::string card_of(int device) {
  const int capability = rt::compute_capability(device);
  return message("card {}, compute capability {}.{}", rt::device_name(device), capability / 10,
                 capability % 10);
}

std::string library_of() { return message("cublaslt {}", lt::library().version()); }

// The device is left out: all that have the card share a file.
std::string line_of(const Product& p) {
  std::ostringstream out;
  out << "D " << p.rows << " x " << p.cols << " inner " << p.inner << " ld " << p.lda << ' '
      << p.ldb << ' ' << p.ldd << ' ' << p.ld_aux << " batch " << p.batch << " steps " << p.step_a
      << ' ' << p.step_b << ' ' << p.step_d << " trans " << p.trans_a << ' ' << p.trans_b << " add "
      << p.accumulate << " types " << p.type << ' ' << p.result_type << " compute " << p.compute
      << " epilogue " << static_cast<std::uint32_t>(p.epilogue) << " align " << p.align_a << ' '
      << p.align_b << ' ' << p.align_d << ' ' << p.align_bias << ' ' << p.align_aux;
  if (p.type_b != p.type) out << " type of B " << p.type_b;
  return out.str();
}

}  // namespace

GemmChoices& GemmChoices::get() {
  static GemmChoices* all = new GemmChoices;
  return *all;
}

GemmChoices::GemmChoices() {
  if (const char* setting = std::getenv("WEFT_GEMM_PLANS")) set(setting);
}

void GemmChoices::use(const std::string& setting) {
  {
    const std::lock_guard lock(mutex_);
    set(setting);
  }
  forget_plans();
}

void GemmChoices::set(const std::string& setting) {
  const bool measure = setting.starts_with(kMeasure);
  file_ = measure ? setting.substr(kMeasure.size()) : setting;
  check(!measure || !file_.empty(), "WEFT_GEMM_PLANS: must be FILE or measure:FILE, got {}",
        setting);
  card_.clear();
  choices_.clear();
  given_ = !file_.empty();
  measuring_ = measure;
}

// Under its name at once with its first lines: ranks may be processes that share the file.
void GemmChoices::create(const std::string& head) const {
  const std::string hidden = message("{}.{}", file_, getpid());
  std::error_code failed;
  std::ofstream(hidden) << head;
  fs::create_hard_link(hidden, file_, failed);
  fs::remove(hidden, failed);
  check_system(fs::exists(file_, failed), "WEFT_GEMM_PLANS: cannot write {}", file_);
}

void GemmChoices::load(int device) {
  const std::string card = card_of(device);
  if (card == card_) return;
  const std::string library = library_of();
  std::error_code failed;
  if (measuring() && !fs::exists(file_, failed))
    create(message("{}\n{}\n{}\n", kFormat, card, library));
  std::ifstream in(file_);
  check(in.good(), "WEFT_GEMM_PLANS: {} must be a file that can be read; {}", file_, kAgain);
  std::string line;
  const auto expect = [&](std::string_view what, std::string_view want) {
    std::getline(in, line);
    check(line == want, "WEFT_GEMM_PLANS: {} of {} must be \"{}\", got \"{}\"; {}", what, file_,
          want, line, kAgain);
  };
  expect("the first line", kFormat);
  expect("the card", card);
  expect("the library", library);
  choices_.clear();
  for (int number = 4; std::getline(in, line); ++number) read_line(line, number);
  card_ = card;
}

// "PRODUCT : algorithm N : X ms" or "PRODUCT : parts : X ms"
void GemmChoices::read_line(const std::string& line, int number) {
  const std::size_t end = line.find(kEnd);
  GemmChoice choice;
  bool good = end != std::string::npos;
  if (good) {
    std::string_view what = std::string_view(line).substr(end + kEnd.size());
    what = what.substr(0, what.find(kEnd));
    if (what == kParts) {
      choice.algorithm = GemmChoice::kParts;
    } else if (what.starts_with(kAlgorithm)) {
      what.remove_prefix(kAlgorithm.size());
      const char* const stop = what.data() + what.size();
      const auto [read, error] = std::from_chars(what.data(), stop, choice.algorithm);
      good = error == std::errc() && read == stop && choice.algorithm >= 0 &&
             choice.algorithm < kGemmCandidates;
    } else {
      good = false;
    }
  }
  check(good,
        "WEFT_GEMM_PLANS: line {} of {} must end in \"algorithm N\" with N below {} or \"parts\", "
        "got \"{}\"; {}",
        number, file_, kGemmCandidates, line, kAgain);
  choices_.emplace(line.substr(0, end), choice);  // of two processes, the first one's
}

std::optional<GemmChoice> GemmChoices::find(const Product& p) {
  const std::lock_guard lock(mutex_);
  if (!given()) return {};
  load(p.device);
  const auto it = choices_.find(line_of(p));
  if (it == choices_.end()) return {};
  return it->second;
}

void GemmChoices::keep(const Product& p, const GemmChoice& choice) {
  const std::lock_guard lock(mutex_);
  load(p.device);
  const std::string product = line_of(p);
  if (!choices_.emplace(product, choice).second) return;
  std::ostringstream line;
  line << product << kEnd;
  if (choice.algorithm == GemmChoice::kParts)
    line << kParts;
  else
    line << kAlgorithm << choice.algorithm;
  line << kEnd << choice.ms << " ms\n";
  std::ofstream out(file_, std::ios::app);
  out << line.str() << std::flush;
  check_system(out.good(), "WEFT_GEMM_PLANS: cannot write {}", file_);
}

}  // namespace weft::cuda
