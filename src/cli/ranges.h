// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Checks of numbers on the command line, with the accepted range in words.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <string>
#include <system_error>

namespace nupa::cli {

/// Returns a check that accepts decimal digits for a number of `T` from `least` to `most`. CLI::Range accepts nan.
/// `unit`: "seconds" or another plural; empty: a whole number.
template <class T>
CLI::Validator number_between(T least, T most, const std::string& unit = "") {
  const std::string range = fmt::format("from {} to {}", least, most);
  return {[=](std::string& text) -> std::string {
            T value{};
            const char* const end = text.data() + text.size();
            const auto [read, error] = std::from_chars(text.data(), end, value);
            if (error == std::errc() && read == end && value >= least && value <= most) return "";
            return fmt::format("'{}' is not accepted (expected a {} {})", text,
                               unit.empty() ? "whole number" : "number of " + unit, range);
          },
          fmt::format("{} in [{} - {}]", unit.empty() ? "INT" : "FLOAT", least, most)};
}

}  // namespace nupa::cli
