#pragma once
/// Lines over two logarithmic axes, as SVG text that a page's style sheet colours.
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace nupa::cli::collectives {

struct Series {
  std::string name;
  size_t style = 0;  ///< class "sN" in the style sheet; those that are equal modulo 3 have one marker
  std::vector<std::pair<double, double>> points;
};

struct PlotText {
  std::string title;
  std::string y_axis;
  std::function<std::string(double)> x_name;
  std::function<std::string(double)> y_name;
};

/// Empty if there is no point.
std::string plot(const PlotText& text, const std::vector<Series>& series);
std::string legend(const std::vector<Series>& series);

}  // namespace nupa::cli::collectives
