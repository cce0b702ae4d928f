#include "weft/io/flame.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>

#include "weft/io/file.h"

namespace weft::io {
namespace {

constexpr double kFlameWidth = 1000, kFlameRow = 20, kFlameTop = 40, kLetterWidth = 6.6,
                 kLeastWidth = 0.3;

struct Frame {
  KernelWork work;
  std::map<std::string, std::unique_ptr<Frame>> inside;

  Frame& child(const std::string& name) {
    std::unique_ptr<Frame>& f = inside[name];
    if (!f) f = std::make_unique<Frame>();
    return *f;
  }
  int depth() const {
    int most = 0;
    for (const auto& [name, frame] : inside) most = std::max(most, frame->depth());
    return most + 1;
  }
};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else
      out += static_cast<unsigned char>(c) < ' ' ? '?' : c;
  }
  return out;
}

// The first `bytes` bytes of the name, or a few less: no letter of UTF-8 is cut.
std::string beginning(const std::string& name, std::size_t bytes) {
  if (bytes >= name.size()) return name;
  while (bytes > 0 && (static_cast<unsigned char>(name[bytes]) & 0xc0) == 0x80) --bytes;
  return name.substr(0, bytes);
}

// The same name has the same colour everywhere.
std::string colour(const std::string& name) {
  std::uint32_t hash = 2166136261;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619;
  char out[32];
  std::snprintf(out, sizeof out, "rgb(%u,%u,%u)", 225 + hash % 30, 120 + hash / 64 % 100,
                60 + hash / 8192 % 40);
  return out;
}

class FlamePicture {
 public:
  FlamePicture(const Frame& all, const std::string& title) : all_(all) {
    const double height = kFlameTop + kFlameRow * all.depth() + 10;
    char out[256];
    std::snprintf(out, sizeof out,
                  R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" )"
                  R"(font-family="monospace" font-size="11"><rect width="100%%" height="100%%" )"
                  R"(fill="white"/><text x="8" y="24" font-size="14">)",
                  kFlameWidth, height);
    text_ = out + escaped(title) + "</text>\n";
    bottom_ = height - 10;
  }
  std::string draw() {
    children(all_, 0, 0);
    return std::move(text_) + "</svg>\n";
  }

 private:
  void children(const Frame& frame, double x, int level) {
    std::vector<std::pair<const std::string*, const Frame*>> widest;
    for (const auto& [name, inside] : frame.inside) widest.emplace_back(&name, inside.get());
    std::sort(widest.begin(), widest.end(), [](const auto& a, const auto& b) {
      return a.second->work.seconds > b.second->work.seconds;
    });
    for (const auto& [name, inside] : widest) {
      const double width =
          all_.work.seconds > 0 ? kFlameWidth * inside->work.seconds / all_.work.seconds : 0;
      if (width < kLeastWidth) break;
      box(*name, *inside, x, width, level);
      children(*inside, x, level + 1);
      x += width;
    }
  }
  void box(const std::string& name, const Frame& frame, double x, double width, int level) {
    const double y = bottom_ - kFlameRow * (level + 1);
    char out[256];
    std::snprintf(out, sizeof out,
                  R"(<g><rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill=")", x, y,
                  std::max(width - 0.5, 0.2), kFlameRow - 1);
    text_ += out + colour(name) + "\"/>";
    std::snprintf(out, sizeof out, ": %lld calls, %.3f ms, %.1f %%</title>",
                  static_cast<long long>(frame.work.calls), frame.work.seconds * 1e3,
                  100 * frame.work.seconds / all_.work.seconds);
    text_ += "<title>" + escaped(name) + out;
    if (width > 4 * kLetterWidth) {
      const auto room = static_cast<std::size_t>((width - 6) / kLetterWidth);
      std::snprintf(out, sizeof out, R"(<text x="%.1f" y="%.1f">)", x + 3, y + 14);
      text_ += out + escaped(beginning(name, room)) + "</text>";
    }
    text_ += "</g>\n";
  }

  const Frame& all_;
  std::string text_;
  double bottom_ = 0;
};

}  // namespace

void write_flame_svg(const std::vector<Profiler::Entry>& entries, const std::string& path,
                     const std::string& title) {
  Frame all;
  for (const Profiler::Entry& e : entries) {
    Frame* frame = &all;
    frame->work.add(e.work);
    const auto enter = [&](const std::string& name) {
      frame = &frame->child(name);
      frame->work.add(e.work);
    };
    enter(e.phase);
    for (const std::string& scope : e.scopes) enter(scope);
    if (!e.op.empty()) enter(e.op);
    enter(e.kernel);
  }
  write_file(path, FlamePicture(all, title).draw());
}

}  // namespace weft::io
