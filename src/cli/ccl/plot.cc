#include "cli/ccl/plot.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace nupa::cli::collectives {
namespace {

// Of the drawing and the space around its axes, in pixels of its own.
constexpr double kWidth = 860;
constexpr double kHeight = 440;
constexpr double kLeft = 92;
constexpr double kRight = kWidth - 30;
constexpr double kTop = 16;
constexpr double kBottom = kHeight - 52;
constexpr double kBytesBase = 8;  // 8 B, 64 B, 512 B, ...
constexpr double kValueBase = 10;

/// From the power of a base below the least value to the one above the greatest.
class Axis {
 public:
  Axis(double least, double greatest, double base, double start, double end) : base_(base), start_(start), end_(end) {
    constexpr double kRounding = 1e-9;
    low_ = static_cast<int>(std::floor(std::log(least) / std::log(base) + kRounding));
    high_ = std::max(low_ + 1, static_cast<int>(std::ceil(std::log(greatest) / std::log(base) - kRounding)));
  }

  double at(double value) const {
    return start_ + (std::log(value) / std::log(base_) - low_) / (high_ - low_) * (end_ - start_);
  }
  std::vector<double> ticks() const {
    std::vector<double> all;
    for (int power = low_; power <= high_; ++power) all.push_back(std::pow(base_, power));
    return all;
  }

 private:
  double base_;
  double start_;
  double end_;
  int low_;
  int high_;
};

std::string marker(size_t style, double x, double y) {
  switch (style % 3) {
    case 0:
      return fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="4"/>)", x, y);
    case 1:
      return fmt::format(R"(<rect x="{:.1f}" y="{:.1f}" width="7" height="7"/>)", x - 3.5, y - 3.5);
    default:
      return fmt::format(R"(<path d="M{:.1f} {:.1f}l5 5l-5 5l-5 -5z"/>)", x, y - 5);
  }
}

std::string words(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>)", x, y, anchor, text);
}

std::string line(double x1, double y1, double x2, double y2, const char* style) {
  return fmt::format(R"(<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>)", style, x1, y1, x2, y2);
}

std::string grid(const PlotText& text, const Axis& across, const Axis& up) {
  std::string svg = "<g class=\"grid\">";
  const auto values = up.ticks();
  for (const double value : values) {
    for (double step = 2; value != values.back() && step < kValueBase; ++step)
      svg += line(kLeft, up.at(value * step), kRight, up.at(value * step), "minor");
    svg += line(kLeft, up.at(value), kRight, up.at(value), "major");
    svg += words(kLeft - 8, up.at(value) + 4, "end", text.y_name(value));
  }
  for (const double value : across.ticks()) {
    svg += line(across.at(value), kTop, across.at(value), kBottom, "major");
    svg += words(across.at(value), kBottom + 20, "middle", text.x_name(value));
  }
  svg += "</g>" + words((kLeft + kRight) / 2, kHeight - 8, "middle", "size");
  const double middle = (kTop + kBottom) / 2;
  return svg +
         fmt::format(
             "<text x=\"14\" y=\"{0:.1f}\" text-anchor=\"middle\" transform=\"rotate(-90 14 {0:.1f})\">{1}</text>",
             middle, text.y_axis);
}

std::string drawn(const PlotText& text, const Series& series, const Axis& across, const Axis& up) {
  std::string path;
  std::string markers;
  for (const auto& [x, y] : series.points) {
    path += fmt::format("{:.1f},{:.1f} ", across.at(x), up.at(y));
    markers += fmt::format("<g><title>{}, {}: {}</title>{}</g>", series.name, text.x_name(x), text.y_name(y),
                           marker(series.style, across.at(x), up.at(y)));
  }
  return fmt::format("<g class=\"series s{}\"><polyline points=\"{}\"/>{}</g>\n", series.style, path, markers);
}

}  // namespace

std::string plot(const PlotText& text, const std::vector<Series>& series) {
  std::vector<double> xs;
  std::vector<double> ys;
  for (const Series& one : series)
    for (const auto& [x, y] : one.points) {
      xs.push_back(x);
      ys.push_back(y);
    }
  if (xs.empty()) return "";
  const auto [least_x, greatest_x] = std::minmax_element(xs.begin(), xs.end());
  const auto [least_y, greatest_y] = std::minmax_element(ys.begin(), ys.end());
  const Axis across(*least_x, *greatest_x, kBytesBase, kLeft, kRight);
  const Axis up(*least_y, *greatest_y, kValueBase, kBottom, kTop);
  std::string svg =
      fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n", kWidth, kHeight, text.title);
  svg += grid(text, across, up);
  for (const Series& one : series) svg += drawn(text, one, across, up);
  return svg + "</svg>\n";
}

std::string legend(const std::vector<Series>& series) {
  std::string list = "<ul class=\"legend\">";
  for (const Series& one : series)
    list += fmt::format(
        "<li><svg viewBox=\"0 0 34 12\" class=\"key\"><g class=\"series s{}\"><polyline points=\"1,6 "
        "33,6\"/>{}</g></svg>{}</li>",
        one.style, marker(one.style, 17, 6), one.name);
  return list + "</ul>\n";
}

}  // namespace nupa::cli::collectives
