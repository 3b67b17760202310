// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <tuple>

#include "explorer.h"

namespace model {
namespace {

std::vector<std::memory_order> weaker_orders(const Site& site) {
  using enum std::memory_order;
  const std::string operation = site.operation;
  std::vector<std::memory_order> all;
  if (operation == "load" || operation == "failure")
    all = {relaxed, acquire};
  else if (operation == "store")
    all = {relaxed, release};
  else
    all = {relaxed, acquire, release, acq_rel};
  const auto is_weaker = [&](std::memory_order order) {
    if (order == site.order) return false;
    switch (site.order) {
      case seq_cst:
        return true;
      case acq_rel:
        return true;
      default:
        return order == relaxed;
    }
  };
  std::erase_if(all, [&](std::memory_order order) { return !is_weaker(order); });
  return all;
}

/// "void nupa::shm::CompletionRing::write(uint64_t, const CqEntry&)" -> "CompletionRing::write".
std::string function_of(const Site& site) {
  std::string name = site.where.function_name();
  const auto with = name.find(" [with ");
  if (with != std::string::npos) name.resize(with);
  const auto end = name.find('(');
  if (end != std::string::npos) name.resize(end);
  const auto begin = name.rfind(' ');
  if (begin != std::string::npos) name.erase(0, begin + 1);
  while (name.find_first_of("*&") == 0) name.erase(0, 1);
  const auto last = name.rfind("::");
  if (last == std::string::npos) return name;
  const auto before = name.rfind("::", last - 1);
  return before == std::string::npos ? name : name.substr(before + 2);
}

}  // namespace

std::vector<std::string> needed_orders(std::span<const Build> cases, std::initializer_list<std::string_view> files) {
  const auto file_of = [&](const Site& site) {
    return std::find_if(files.begin(), files.end(),
                        [&](std::string_view end) { return std::string_view(site.where.file_name()).ends_with(end); });
  };
  std::vector<Site> sites;
  for (const Build& build : cases) {
    const Result result = explore(Memory::kCpp, build);
    if (!result.ok()) return {result.fault};
    for (const Site& site : result.sites)
      if (file_of(site) != files.end() && std::find(sites.begin(), sites.end(), site) == sites.end())
        sites.push_back(site);
  }
  std::sort(sites.begin(), sites.end(), [&](const Site& a, const Site& b) {
    return std::tuple(file_of(a), a.where.line(), a.where.column()) <
           std::tuple(file_of(b), b.where.line(), b.where.column());
  });
  const auto weakest = [&](Memory memory, const Site& site) {
    for (const std::memory_order order : weaker_orders(site)) {
      const Weakened weakened{site, order};
      if (std::all_of(cases.begin(), cases.end(),
                      [&](const Build& build) { return explore(memory, build, &weakened).ok(); }))
        return order;
    }
    return site.order;
  };
  std::vector<std::string> lines;
  std::map<std::string, int> count;
  for (const Site& site : sites) {
    std::string line = function_of(site) + " " + site.operation + " " + name_of(site.order);
    if (const int number = ++count[line]; number > 1) line += " " + std::to_string(number);
    const bool is_fence = std::string_view(site.operation) == "fence";
    const auto text = [&](std::memory_order order) {
      return std::string(is_fence && order == std::memory_order_relaxed ? "none" : name_of(order));
    };
    // On x86 the order of a load or an update changes no instruction.
    const bool matters = is_fence || std::string_view(site.operation) == "store";
    lines.push_back(line + ": x86 " + text(matters ? weakest(Memory::kTso, site) : std::memory_order_relaxed) +
                    ", C++ " + text(weakest(Memory::kCpp, site)));
  }
  return lines;
}

}  // namespace model
