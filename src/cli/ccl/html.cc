/// The results as one page: no other file, no network; light or dark as the reader's system is.
#include <fmt/core.h>

#include <algorithm>

#include "cli/ccl/plot.h"
#include "cli/ccl/report.h"

namespace nupa::cli::collectives {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --back: #f7f8fa; --card: #ffffff; --ink: #16202c; --soft: #5b6776; --line: #e1e5ea;
  --minor: #eff1f4; --light: 42%; --good: #137a3f; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --back: #10151b; --card: #181f27; --ink: #e7ecf2; --soft: #9aa7b5;
  --line: #2b343f; --minor: #202832; --light: 66%; --good: #56c98a; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", Roboto,
  "DejaVu Sans", sans-serif; }
main { max-width: 960px; margin: 0 auto; padding: 40px 20px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; } h2 { font-size: 20px; margin: 0 0 4px; }
p { margin: 0 0 12px; } .soft { color: var(--soft); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 22px 24px;
  margin-top: 20px; }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 12px; }
.grid .major { stroke: var(--line); } .grid .minor { stroke: var(--minor); }
.series { stroke: currentColor; fill: currentColor; }
.series polyline { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; list-style: none; padding: 0; margin: 6px 0 14px;
  font-size: 14px; }
.legend li { display: flex; align-items: center; gap: 8px; } .key { width: 34px; flex: none; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th { font-weight: 600; color: var(--soft); }
th, td { padding: 6px 10px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { padding-left: 0; } td:last-child, th:last-child { text-align: left; }
tr:last-child td { border-bottom: 0; } .ok { color: var(--good); } .wrong { color: var(--bad); font-weight: 600; }
)";

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '<')
      safe += "&lt;";
    else if (c == '&')
      safe += "&amp;";
    else
      safe += c;
  }
  return safe;
}

/// Hues around the circle, neighbours far apart.
std::string colours() {
  constexpr unsigned kHueStep = 143;
  constexpr unsigned kFirstHue = 217;
  std::string style;
  for (size_t i = 0; i < all_operations().size(); ++i)
    style += fmt::format(".s{} {{ color: hsl({} 70% var(--light)); }}\n", i, (kFirstHue + i * kHueStep) % 360);
  return style;
}

/// Three digits and a unit.
std::string time_text(double us) {
  constexpr double kStep = 1000;
  if (us < 1) return fmt::format("{:.3g} ns", us * kStep);
  if (us < kStep) return fmt::format("{:.3g} us", us);
  if (us < kStep * kStep) return fmt::format("{:.3g} ms", us / kStep);
  return fmt::format("{:.3g} s", us / kStep / kStep);
}

std::string bandwidth_text(double gbs) {
  constexpr double kStep = 1000;
  return gbs < 1 ? fmt::format("{:.3g} MB/s", gbs * kStep) : fmt::format("{:.3g} GB/s", gbs);
}

/// One line for each operation; `value` of a result, or none.
template <class Value>
std::vector<Series> series_of(const std::vector<Result>& results, const Value& value) {
  std::vector<Series> all;
  for (const Result& result : results) {
    const std::optional<double> y = value(result);
    if (result.bytes == 0 || !y || *y <= 0) continue;
    const char* const name = traits_of(result.operation).name;
    if (all.empty() || all.back().name != name) all.push_back({name, static_cast<size_t>(result.operation), {}});
    all.back().points.emplace_back(static_cast<double>(result.bytes), *y);
  }
  return all;
}

std::string section(const std::string& title, const std::string& lead, const std::string& body) {
  return fmt::format("<section><h2>{}</h2><p class=\"soft\">{}</p>{}</section>\n", title, lead, body);
}

std::string plot_section(const PlotText& text, const std::string& lead, const std::vector<Series>& series) {
  if (series.empty()) return "";
  return section(text.title, lead, legend(series) + plot(text, series));
}

std::string row(const Result& result, uint32_t ranks) {
  const auto gbs = [](const std::optional<double>& value) { return value ? bandwidth_text(*value) : "-"; };
  const char* const verdict = name_of(result.verdict);
  return fmt::format(
      "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{} x {}</td><td class=\"{}\">{}</td>"
      "<td>{}</td></tr>\n",
      size_text(result.bytes), result.count, time_text(result.timing.median_us), time_text(result.timing.minimum_us),
      gbs(result.algorithm_bandwidth()), gbs(result.bus_bandwidth(ranks)), result.timing.batches,
      result.timing.iterations, verdict, verdict, escaped(result.algorithm));
}

std::string tables(const std::vector<Result>& results, uint32_t ranks) {
  std::string all;
  for (auto begin = results.begin(); begin != results.end();) {
    const auto end =
        std::find_if(begin, results.end(), [&](const Result& result) { return result.operation != begin->operation; });
    std::string table =
        "<div class=\"scroll\"><table><tr><th>size</th><th>count</th><th>median</th><th>minimum</th>"
        "<th>algorithm bandwidth</th><th>bus bandwidth</th><th>batches</th><th>check</th><th>algorithm</th></tr>\n";
    std::for_each(begin, end, [&](const Result& result) { table += row(result, ranks); });
    all += section(traits_of(begin->operation).name, "", table + "</table></div>");
    begin = end;
  }
  return all;
}

}  // namespace

std::string html_of(const BenchOptions& options, const About& about, const std::vector<Result>& results) {
  const auto size_name = [](double bytes) { return size_text(static_cast<size_t>(bytes)); };
  const PlotText times{"Time of an operation over its size", "median", size_name, time_text};
  const PlotText bandwidths{"Bus bandwidth over size", "bandwidth", size_name, bandwidth_text};
  std::string page =
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>NUPA collectives</title>"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><style>";
  page += kStyle + colours() + "</style></head><body><main>\n";
  page += fmt::format("<h1>NUPA collectives</h1><p class=\"soft\">{} ranks, {}, transport {}</p>", about.ranks,
                      text_of(options), escaped(about.transport));
  page += fmt::format("<p class=\"soft\">{}, {}, {}</p>\n", escaped(about.cpu), escaped(about.system), about.date);
  page += plot_section(times, "The slowest rank's; lower is better.",
                       series_of(results, [](const Result& result) { return std::optional(result.timing.median_us); }));
  page += plot_section(bandwidths, "As nccl-tests counts it, 10^9 bytes a second; higher is better.",
                       series_of(results, [&](const Result& result) { return result.bus_bandwidth(about.ranks); }));
  return page + tables(results, about.ranks) + "</main></body></html>\n";
}

}  // namespace nupa::cli::collectives
