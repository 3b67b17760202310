// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <string>
#ifdef NUPA_HAS_JSON
#include <nlohmann/json.hpp>

#include "json/json.h"
#endif
#include "transport/pool/medium/spec.h"

namespace nupa::pool {

#ifdef NUPA_HAS_JSON
Result<Spec> parse_spec_json(const std::string& text, std::string_view source) {
  const auto parsed = parse_json(text);
  if (!parsed || !parsed->is_object()) return fail(EINVAL, source, ": not a JSON object");
  const nlohmann::json& read = *parsed;
  if (!read.contains("medium") || !read["medium"].is_string())
    return fail(EINVAL, source, ": \"medium\" is missing, or not a text");
  std::string spec = read["medium"];
  for (const auto& [key, value] : read.items()) {
    if (key == "medium") continue;
    if (value.is_string())
      spec += "," + key + "=" + value.get<std::string>();
    else if (value.is_number_unsigned())
      spec += "," + key + "=" + json_text(value);
    else
      return fail(EINVAL, source, ": \"", key, "\" is neither a text nor a whole number");
  }
  return parse_spec(spec, source);
}
#else
Result<Spec> parse_spec_json(const std::string&, std::string_view source) {
  return fail(ENOTSUP, source, ": this build reads no JSON: set NUPA_POOL instead, or build with nlohmann-json3-dev");
}
#endif

}  // namespace nupa::pool
