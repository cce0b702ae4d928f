#include "weft/io/plot.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "weft/io/file.h"
#include "weft/io/metrics.h"

namespace weft::io {
namespace {

constexpr double kWidth = 860, kHeight = 480;
constexpr double kLeft = 72, kRight = 24, kTop = 56, kBottom = 60;
constexpr double kLegend = 340;          // its width
constexpr std::size_t kSmoothFrom = 50;  // points; fewer are not smoothed
// The smoothed curve averages over at most 1 / 50 of the run and 1 / 10 of the points so far.
constexpr double kSmoothShare = 50, kSmoothBack = 10;
constexpr double kLogFrom = 200, kLogShare = 0.75;
constexpr std::size_t kMaxPoints = 1000;  // more are thinned

struct Point {
  double x, y;
};
/// Points in order; a null in the file starts a new run.
using Series = std::vector<std::vector<Point>>;

std::string number(double v, int digits = 6) {
  char buffer[32];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, v, std::chars_format::general, digits).ptr;
  return {buffer, end};
}

/// A pixel coordinate: two decimals suffice.
std::string pixel(double v) { return number(std::round(v * 100) / 100, 7); }

Series read_series(const std::vector<Json>& lines, std::string_view key) {
  Series series(1);
  for (const Json& line : lines) {
    const Json* step = line.find("step");
    const Json* value = line.find(key);
    if (!step || !step->is_number() || !value) continue;
    if (value->is_number())
      series.back().push_back({step->as_double(), value->as_double()});
    else if (!series.back().empty())
      series.emplace_back();
  }
  if (series.back().empty()) series.pop_back();
  return series;
}

/// The exponential moving average of the points. Its length grows with the number of points so
/// far, so that it follows the fall at the start.
Series smoothed(const Series& series) {
  std::size_t count = 0;
  for (const auto& run : series) count += run.size();
  if (count < kSmoothFrom) return {};
  const double longest = static_cast<double>(count) / kSmoothShare;
  Series out;
  double sum = 0, weight = 0, seen = 0;
  for (const auto& run : series) {
    out.emplace_back();
    for (const Point& p : run) {
      const double keep = 1 - 1 / std::clamp(++seen / kSmoothBack, 1.0, std::max(longest, 1.0));
      sum = keep * sum + p.y;
      weight = keep * weight + 1;
      out.back().push_back({p.x, sum / weight});
    }
  }
  return out;
}

const Point* lowest(const Series& series) {
  const Point* best = nullptr;
  for (const auto& run : series)
    for (const Point& p : run)
      if (!best || p.y < best->y) best = &p;
  return best;
}

/// Whether most of the fall is in the first tenth of the steps, which a linear axis would compress.
bool wants_log(const Series& curve, double first, double last) {
  if (curve.empty() || curve.front().empty() || first < 1 || last < kLogFrom * first) return false;
  const double begin = curve.front().front().y, end = lowest(curve)->y;
  double at_tenth = begin;
  for (const auto& run : curve)
    for (const Point& p : run)
      if (p.x <= last / 10) at_tenth = p.y;
  return begin - at_tenth > kLogShare * (begin - end);
}

/// An axis from `low` to `high`: linear with a tick distance of 1, 2 or 5 times a power of ten, or
/// logarithmic.
struct Axis {
  double low = 0, high = 1, step = 0.25;
  bool log = false;

  void fit_log(double from, double to) {
    log = true;
    low = from;
    high = to;
  }
  /// The position of a value on the axis, from 0 to 1.
  double share(double v) const {
    return log ? std::log(v / low) / std::log(high / low) : (v - low) / (high - low);
  }
  std::vector<double> ticks() const {
    std::vector<double> out;
    if (!log) {
      for (int i = 0; i < count(); ++i) out.push_back(tick(i));
      return out;
    }
    for (double power = 1; power <= high; power *= 10)
      for (const double v : {power, 2 * power, 5 * power})
        if (low <= v && v <= high) out.push_back(v);
    return out;
  }

  void fit(double from, double to, int ticks, double least_step) {
    if (from == to) {
      const double room = from == 0 ? 1 : std::abs(from) * 0.1;
      from -= room;
      to += room;
    }
    const double raw = (to - from) / ticks, power = std::pow(10, std::floor(std::log10(raw)));
    step = power * (raw <= power ? 1 : raw <= 2 * power ? 2 : raw <= 5 * power ? 5 : 10);
    step = std::max(step, least_step);
    low = std::floor(from / step + 1e-9) * step;
    high = std::ceil(to / step - 1e-9) * step;
  }
  int count() const { return static_cast<int>(std::lround((high - low) / step)) + 1; }
  double tick(int i) const {
    const double v = low + i * step;
    return std::abs(v) < step * 1e-9 ? 0 : v;
  }
};

class Picture {
 public:
  Picture(const std::string& title, const Axis& x, const Axis& y) : x_(x), y_(y) {
    out_ = R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 480" width="860" )"
           R"(height="480" font-family="Helvetica, Arial, sans-serif" font-size="13" )"
           R"(fill="#333">)"
           "\n<rect width=\"860\" height=\"480\" fill=\"#fff\"/>\n";
    text(kLeft, 32, "start", title, R"( font-size="18" font-weight="bold")");
  }

  void axes() {
    for (const double tick : y_.ticks()) {
      const double at = y(tick);
      line(kLeft, at, kWidth - kRight, at, "#e3e3e3");
      text(kLeft - 10, at + 4.5, "end", number(tick));
    }
    for (const double tick : x_.ticks()) {
      const double at = x(tick);
      line(at, kTop, at, kHeight - kBottom, "#e3e3e3");
      text(at, kHeight - kBottom + 20, "middle", number(tick, 12));
    }
    line(kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom, "#555");
    line(kLeft, kTop, kLeft, kHeight - kBottom, "#555");
    text((kLeft + kWidth - kRight) / 2, kHeight - 14, "middle", x_.log ? "step (log)" : "step");
    const std::string middle = pixel((kTop + kHeight - kBottom) / 2);
    text(18, (kTop + kHeight - kBottom) / 2, "middle", "loss (nats per token)",
         " transform=\"rotate(-90 18 " + middle + ")\"");
  }

  void draw(const Series& series, const std::string& color, double width, bool dots) {
    for (const auto& run : series) {
      const std::vector<Point> points = thin(run);
      if (points.size() > 1) {
        out_ += "<polyline fill=\"none\" stroke=\"" + color + "\" stroke-width=\"" + pixel(width) +
                "\" stroke-linejoin=\"round\" points=\"";
        for (const Point& p : points) out_ += pixel(x(p.x)) + "," + pixel(y(p.y)) + " ";
        out_.back() = '"';
        out_ += "/>\n";
      }
      if (dots || points.size() == 1)
        for (const Point& p : points)
          out_ += "<circle cx=\"" + pixel(x(p.x)) + "\" cy=\"" + pixel(y(p.y)) +
                  "\" r=\"3.5\" fill=\"" + color + "\"/>\n";
    }
  }

  /// "validation: best 1.146 at step 6000".
  void best(const Series& series, const std::string& name, const std::string& color) {
    const Point* const p = lowest(series);
    if (p) legend(name + ": best " + number(p->y, 4) + " at step " + number(p->x, 12), color);
  }

  void text(double at_x, double at_y, const char* anchor, const std::string& words,
            const std::string& more = "") {
    out_ += "<text x=\"" + pixel(at_x) + "\" y=\"" + pixel(at_y) + "\" text-anchor=\"" + anchor +
            "\"" + more + ">";
    for (const char c : words) {
      if (c == '<')
        out_ += "&lt;";
      else if (c == '&')
        out_ += "&amp;";
      else
        out_ += c;
    }
    out_ += "</text>\n";
  }

  std::string finish() { return out_ + "</svg>\n"; }

 private:
  /// Keeps the lowest and the highest point of each column of pixels, so that spikes stay visible.
  std::vector<Point> thin(const std::vector<Point>& run) const {
    if (run.size() <= kMaxPoints) return run;
    std::vector<Point> out;
    for (auto first = run.begin(), last = first; first != run.end(); first = last) {
      const double column = std::floor(x(first->x));
      while (last != run.end() && std::floor(x(last->x)) == column) ++last;
      auto [low, high] =
          std::minmax_element(first, last, [](Point p, Point q) { return p.y < q.y; });
      if (high < low) std::swap(low, high);
      out.push_back(*low);
      if (high != low) out.push_back(*high);
    }
    return out;
  }
  double x(double v) const { return kLeft + x_.share(v) * (kWidth - kLeft - kRight); }
  double y(double v) const { return kHeight - kBottom - y_.share(v) * (kHeight - kTop - kBottom); }
  void line(double x1, double y1, double x2, double y2, const char* color) {
    out_ += "<line x1=\"" + pixel(x1) + "\" y1=\"" + pixel(y1) + "\" x2=\"" + pixel(x2) +
            "\" y2=\"" + pixel(y2) + "\" stroke=\"" + color + "\"/>\n";
  }
  void legend(const std::string& label, const std::string& color) {
    const double at = kTop + 20 + 20 * entries_++;
    out_ += "<rect x=\"" + pixel(kWidth - kRight - kLegend) + "\" y=\"" + pixel(at - 14) +
            "\" width=\"" + pixel(kLegend - 4) +
            "\" height=\"20\" fill=\"#fff\" fill-opacity=\"0.85\"/>\n";
    out_ += "<rect x=\"" + pixel(kWidth - kRight - kLegend + 6) + "\" y=\"" + pixel(at - 5.5) +
            "\" width=\"22\" height=\"3\" fill=\"" + color + "\"/>\n";
    text(kWidth - kRight - kLegend + 36, at, "start", label);
  }

  Axis x_, y_;
  int entries_ = 0;
  std::string out_;
};

}  // namespace

void write_loss_svg(const std::string& metrics_path, const std::string& svg_path,
                    const std::string& title) {
  const std::vector<Json> lines = read_whole_metrics(metrics_path);
  const Series loss = read_series(lines, "loss"), val = read_series(lines, "val_loss");
  double low_x = INFINITY, high_x = -INFINITY, low_y = INFINITY, high_y = -INFINITY;
  for (const Series* series : {&loss, &val})
    for (const auto& run : *series)
      for (const Point& p : run) {
        low_x = std::min(low_x, p.x);
        high_x = std::max(high_x, p.x);
        low_y = std::min(low_y, p.y);
        high_y = std::max(high_y, p.y);
      }
  const bool any = low_x <= high_x;
  const Series smooth = smoothed(loss);
  const Series& curve = smooth.empty() ? loss : smooth;
  Axis x, y;
  if (any) {
    // Training starts at 0; the plot of a resumed part starts at its first step.
    if (wants_log(curve, low_x, high_x)) {
      x.fit_log(low_x, high_x);
    } else {
      x.fit(low_x < 0.2 * high_x ? 0 : low_x, high_x, 8, 1);
      x.low = std::max(x.low, 0.0);
    }
    y.fit(low_y, high_y, 6, 0);
  }
  Picture picture(title, x, y);
  if (any) {
    picture.axes();
    if (!smooth.empty()) picture.draw(loss, "#c3dbf0", 1, false);
    picture.draw(curve, "#1f6fb4", 1.6, false);
    picture.draw(val, "#d9541e", 2, true);
    picture.best(curve, smooth.empty() ? "training" : "training, smoothed", "#1f6fb4");
    picture.best(val, "validation", "#d9541e");
  } else {
    picture.text(kWidth / 2, kHeight / 2, "middle", "no points yet");
  }
  write_file(svg_path, picture.finish());
}

}  // namespace weft::io
