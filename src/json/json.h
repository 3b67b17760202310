// SPDX-License-Identifier: Apache-2.0
#pragma once
/// JSON, read and written: nlohmann's parser and writer are templates that take seconds to compile wherever they are
/// called, so the library and the nupa program call them here.

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "nupa/result.h"

namespace nupa {

/// Called for each key of an object in the order of the text. depth: the number of objects and arrays around the key.
/// line: where the key ends, from 1.
using OnJsonKey = std::function<void(size_t depth, const std::string& key, size_t line)>;

/// Reads a text. EINVAL: it is not JSON; the error's text names the line and the column.
Result<nlohmann::json> parse_json(std::string_view text, const OnJsonKey& on_key = nullptr);

/// Returns the JSON of a value. indent: spaces for each level; -1: everything in one line. Bytes that are not UTF-8
/// become U+FFFD.
std::string json_text(const nlohmann::json& value, int indent = -1);

}  // namespace nupa
