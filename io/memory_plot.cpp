#include "weft/io/memory_plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "weft/core/error.h"
#include "weft/io/file.h"

namespace weft::io {
namespace {

constexpr double kPlotWidth = 960, kPlotHeight = 480, kPlotLeft = 84, kPlotRight = 150,
                 kPlotTop = 64, kPlotBottom = 36, kLabelRoom = 60;
constexpr std::int64_t kColumns = 600;

// Bottom to top: what stays for the whole step first.
struct Layer {
  Category category;
  const char* colour;
};
constexpr Layer kLayers[kCategories] = {
    {Category::parameter, "#1f6fb4"}, {Category::optimizer, "#6baed6"},
    {Category::gradient, "#d9541e"},  {Category::communication, "#8a6bbd"},
    {Category::other, "#a0a0a0"},     {Category::activation, "#58a55c"}};

std::string short_number(const char* format, double v) {
  char out[64];
  std::snprintf(out, sizeof out, format, v);
  return out;
}

std::string size_text(double bytes) {
  const auto in = [&](double unit, const char* name) {
    return short_number("%.4g", bytes / unit) + name;
  };
  return bytes >= 1e9 ? in(1e9, " GB") : bytes >= 1e6 ? in(1e6, " MB") : in(1e3, " kB");
}

// 1, 2 or 5 times a power of ten, so that about five of them fit into `most`.
double tick_distance(double most) {
  const double raw = std::max(most, 1.0) / 5, power = std::pow(10, std::floor(std::log10(raw)));
  return power * (raw <= power ? 1 : raw <= 2 * power ? 2 : raw <= 5 * power ? 5 : 10);
}

class MemoryPicture {
 public:
  MemoryPicture(const std::vector<LiveBytes>& course, const std::string& title) : course_(course) {
    for (std::size_t i = 0; i < course.size(); ++i)
      if (course[i].total() > course[peak_].total()) peak_ = i;
    most_ = std::max<double>(static_cast<double>(course[peak_].total()), 1) * 1.05;
    out_ =
        R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 480" width="960" height="480" )"
        R"(font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#333">)"
        "\n<rect width=\"960\" height=\"480\" fill=\"#fff\"/>\n";
    words(kPlotLeft, 26, "start", title, R"( font-size="17" font-weight="bold")");
  }

  std::string draw(const std::vector<MemoryMark>& marks) {
    thin();
    areas();
    for (double tick = 0, step = tick_distance(most_); tick <= most_; tick += step) {
      stroke(kPlotLeft, y(tick), kPlotWidth - kPlotRight, y(tick), "#0000001a", "");
      words(kPlotLeft - 8, y(tick) + 4, "end", tick == 0 ? "0" : size_text(tick));
    }
    double free_from = kPlotLeft;
    for (const MemoryMark& m : marks) {
      const double at = x(m.event);
      stroke(at, kPlotTop, at, kPlotHeight - kPlotBottom, "#00000055", "");
      if (at < free_from) continue;
      words(at + 3, kPlotTop - 5, "start", m.label, R"( font-size="11")");
      free_from = at + kLabelRoom;
    }
    const double at = x(static_cast<std::int64_t>(peak_));
    const auto peak = static_cast<double>(course_[peak_].total());
    stroke(at, y(peak), at, kPlotHeight - kPlotBottom, "#000", R"( stroke-dasharray="3 3")");
    words(at, y(peak) - 6, at > kPlotWidth / 2 ? "end" : "start", "peak " + size_text(peak),
          R"( font-weight="bold")");
    words((kPlotLeft + kPlotWidth - kPlotRight) / 2, kPlotHeight - 10, "middle",
          message("{} allocations and frees of a step", course_.size() - 1));
    legend();
    return std::move(out_) + "</svg>\n";
  }

 private:
  double x(std::int64_t event) const {
    return kPlotLeft + (kPlotWidth - kPlotLeft - kPlotRight) * static_cast<double>(event) /
                           std::max<double>(static_cast<double>(course_.size()) - 1, 1);
  }
  double y(double bytes) const {
    return kPlotHeight - kPlotBottom - (kPlotHeight - kPlotTop - kPlotBottom) * bytes / most_;
  }

  // The highest moment of each column.
  void thin() {
    const std::int64_t n = std::ssize(course_), columns = std::min(n, kColumns);
    for (std::int64_t c = 0; c < columns; ++c) {
      const auto first = course_.begin() + n * c / columns,
                 last = course_.begin() + n * (c + 1) / columns;
      const auto highest = std::max_element(
          first, last,
          [](const LiveBytes& a, const LiveBytes& b) { return a.total() < b.total(); });
      kept_.push_back(highest - course_.begin());
    }
    const auto at = [&](std::size_t i) { return course_[static_cast<std::size_t>(kept_[i])]; };
    std::vector<std::int64_t> corners;  // without what lies between equal moments
    for (std::size_t i = 0; i < kept_.size(); ++i)
      if (i == 0 || i + 1 == kept_.size() || at(i - 1) != at(i) || at(i) != at(i + 1))
        corners.push_back(kept_[i]);
    kept_ = std::move(corners);
  }

  void areas() {
    std::vector<double> below(kept_.size(), 0);
    for (const Layer& layer : kLayers) {
      std::string up, down;
      bool any = false;
      for (std::size_t i = 0; i < kept_.size(); ++i) {
        const auto bytes = static_cast<double>(course_[static_cast<std::size_t>(kept_[i])]
                                                   .by_category[static_cast<int>(layer.category)]);
        any = any || bytes > 0;
        const std::string at = short_number("%.1f,", x(kept_[i]));
        down = at + short_number("%.1f ", y(below[i])) + down;
        below[i] += bytes;
        up += at + short_number("%.1f ", y(below[i]));
      }
      if (any)
        out_ +=
            "<polygon fill=\"" + std::string(layer.colour) + "\" points=\"" + up + down + "\"/>\n";
    }
  }

  // The categories in the order of the picture, with their bytes at the peak.
  void legend() {
    for (int i = 0; i < kCategories; ++i) {
      const Layer& layer = kLayers[kCategories - 1 - i];
      const double at = kPlotTop + 10 + 36 * i, left = kPlotWidth - kPlotRight + 14;
      out_ += "<rect x=\"" + short_number("%.0f", left) + "\" y=\"" + short_number("%.0f", at) +
              "\" width=\"12\" height=\"12\" fill=\"" + layer.colour + "\"/>\n";
      words(left + 18, at + 10, "start", name(layer.category));
      words(left + 18, at + 24, "start",
            size_text(
                static_cast<double>(course_[peak_].by_category[static_cast<int>(layer.category)])),
            R"( font-size="11" fill="#777")");
    }
  }

  void words(double at_x, double at_y, const char* anchor, const std::string& text,
             const std::string& more = "") {
    out_ += "<text x=\"" + short_number("%.1f", at_x) + "\" y=\"" + short_number("%.1f", at_y) +
            "\" text-anchor=\"" + anchor + "\"" + more + ">";
    for (const char c : text) out_ += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
    out_ += "</text>\n";
  }

  void stroke(double x1, double y1, double x2, double y2, const char* colour, const char* more) {
    out_ += "<line x1=\"" + short_number("%.1f", x1) + "\" y1=\"" + short_number("%.1f", y1) +
            "\" x2=\"" + short_number("%.1f", x2) + "\" y2=\"" + short_number("%.1f", y2) +
            "\" stroke=\"" + colour + "\"" + more + "/>\n";
  }

  const std::vector<LiveBytes>& course_;
  std::size_t peak_ = 0;
  double most_ = 1;
  std::vector<std::int64_t> kept_;
  std::string out_;
};

}  // namespace

void write_memory_svg(const std::vector<LiveBytes>& course, const std::vector<MemoryMark>& marks,
                      const std::string& path, const std::string& title) {
  check(!course.empty(), "memory plot: the course must have a moment, got none");
  write_file(path, MemoryPicture(course, title).draw(marks));
}

}  // namespace weft::io
